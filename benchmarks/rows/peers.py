"""Other packages that need no daemon, in the same rounds as ours."""

from __future__ import annotations

from ringfence.backends.bubblewrap import BubblewrapBackend

from ..measure import CheckError, alternate
from ..peer import PEERS, Peer, PeerError, started
from ..report import Line, compare
from ..settings import Settings
from .live import exec_side
from .new import spare_side

__all__ = ("run",)


async def run(settings: Settings, not_run: list[str]) -> list[Line]:
    """Measure each package that can be installed and works; say of the others why not."""
    if not settings.peers:
        not_run.append("all of them: --no-peers was given")
        return []
    lines: list[Line] = []
    for peer in PEERS:
        try:
            lines += await _measure(peer, settings)
        except (PeerError, CheckError) as error:
            not_run.append(f"{peer.name} {peer.version}: {error}")
    return lines


async def _measure(peer: Peer, settings: Settings) -> list[Line]:
    name, rounds = f"{peer.name} {peer.version}", settings.rounds(40)
    lines = []
    with started(peer) as worker:
        note = worker.protection()
        async with BubblewrapBackend() as backend:
            if peer.live:
                async with await backend.create() as sandbox:
                    live = exec_side(sandbox, ["/bin/true"])
                    taken = await alternate(
                        {"ours": live, name: worker.side("live")}, rounds, pause=settings.pause
                    )
                lines.append(compare("a command in a live sandbox", taken, note=f"{name}: {note}"))
            sides = {"ours": spare_side(backend), name: worker.side("new")}
            taken = await alternate(sides, rounds, pause=settings.pause)
            lines.append(compare("execute() with a spare at hand", taken, note=f"{name}: {note}"))
    return lines
