"""A jail that can't be made is an error; its command never runs without it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.config import BubblewrapConfig
from ringfence.errors import BackendUnavailableError, ConfigError

STUBS = {
    "blocked": ("echo 'bwrap: loopback: Failed RTM_NEWADDR: not permitted' >&2; exit 1", "RTM_NEW"),
    "silent": ("exit 1", ""),
    "killed": ("kill -KILL $$", ""),
    "hanging": ("exec sleep 300", ""),
    "talking": ("head -c 5000 /dev/urandom; exec sleep 300", ""),
    "talking on the socket": ("head -c 5000 /dev/urandom >&0; exec sleep 300", ""),
    # What comes after the last option is the program; a bwrap that isolates nothing runs it.
    "isolating nothing": ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', ""),
}


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A directory that the uid of a jail may enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


def _stub(open_dir: Path, script: str) -> BubblewrapBackend:
    path = open_dir / "bwrap"
    path.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.11.0 && exit\n{script}\n'
    )
    path.chmod(0o755)
    return BubblewrapBackend(BubblewrapConfig(bwrap_path=path, start_timeout=2.0))


@pytest.mark.parametrize("name", STUBS)
def test_a_bwrap_that_does_not_work(name: str, open_dir: Path) -> None:
    script, text = STUBS[name]
    witness = open_dir / "ran"
    backend = _stub(open_dir, script)

    async def main() -> None:
        async with backend:
            await backend.execute("touch", [str(witness)])

    with pytest.raises(BackendUnavailableError) as caught:
        anyio.run(main)
    assert text in str(caught.value)
    assert not witness.exists()
    probe = anyio.run(_stub(open_dir, script).probe)
    assert not probe.ok
    assert text in probe.reason


def test_a_bwrap_that_is_missing(open_dir: Path) -> None:
    backend = BubblewrapBackend(BubblewrapConfig(bwrap_path=open_dir / "bwrap"))
    with pytest.raises((BackendUnavailableError, ConfigError), match="bwrap"):
        anyio.run(backend.__aenter__)
    assert not anyio.run(backend.probe).ok
