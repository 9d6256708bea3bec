"""A directory as a tar stream with all that it has, made and unpacked by the sandbox's own `tar`.

The stream is of the sandbox's making and as hostile as anything else of it. It goes back into a
sandbox and nowhere else; for files that leave there is `ringfence.export`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from ..backend import Sandbox
from ..errors import FileTooLargeError, NoSpaceError, UnsupportedError, WorkspaceError
from ..execution import feed
from ..models import Command, Exit, ExitReason

__all__ = ("archived", "collected", "saved", "unpacked")

MAX_BYTES = 2 * 1024**3
"""Of a workspace as a tar stream."""

TRANSFER_SECONDS = 600.0
"""That a transfer may take."""

_IN_MEMORY = 8 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
_MAX_SAID = 2000
_CHANGED, _AS_READ = 1, "file changed as we read it"  # whole, but of more than one moment
_NOT_FOUND = 127


async def archived(
    sandbox: Sandbox, directory: str | None = None, left_out: Sequence[str] = ()
) -> IO[bytes]:
    """Return a directory as a tar stream in a temporary file, to be read from its beginning.

    Args:
        sandbox: Whose.
        directory: Which, as its programs see it. Default: the workspace.
        left_out: Paths relative to it that are not in the stream.

    Raises:
        FileTooLargeError: It has more than 2 GiB.
        UnsupportedError: The sandbox has no `tar`.
        WorkspaceError: `tar` has failed.
    """
    place = directory or sandbox.workspace
    excludes = [f"--exclude=./{path}" for path in left_out]
    options = ("--anchored", "--no-wildcards", *excludes) if excludes else ()
    return await collected(sandbox, ("tar", "-cf", "-", *options, "-C", place, "."), place)


async def unpacked(sandbox: Sandbox, pieces: Iterable[bytes], directory: str | None = None) -> None:
    """Unpack a tar stream into a directory.

    Args:
        sandbox: Whose.
        pieces: The stream, uncompressed.
        directory: Which, as its programs see it; it must be there. Default: the workspace.

    Raises:
        UnsupportedError: The sandbox has no `tar`.
        NoSpaceError: There is no room for it.
        WorkspaceError: It is no archive, or `tar` has failed.
    """
    place = directory or sandbox.workspace
    argv = ("tar", "-xpf", "-", "-C", place)
    command = Command(argv, stdin=feed(pieces), timeout=TRANSFER_SECONDS)
    result = await sandbox.exec(command)
    end = Exit(result.exit_code, result.exit_reason)
    _check_end(sandbox, place, end, result.stderr[:_MAX_SAID])


async def collected(sandbox: Sandbox, argv: Sequence[str], place: str) -> IO[bytes]:
    """Run a program and return what it writes in a temporary file, whatever its size.

    Args:
        sandbox: Where.
        argv: The program and its arguments.
        place: What it reads, for errors.

    Raises:
        FileTooLargeError: It writes more than 2 GiB.
        UnsupportedError: There is no such program.
        WorkspaceError: It has failed.
    """
    process = await sandbox.start(Command(argv, timeout=TRANSFER_SECONDS))
    kept: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  # the caller's
    said, total = b"", 0
    try:
        while (chunk := await process.receive()) is not None:
            if chunk.stream == "stderr":
                said = (said + chunk.data)[:_MAX_SAID]
                continue
            total += len(chunk.data)
            _check_size(place, total)
            kept.write(chunk.data)
        _check_end(sandbox, place, await process.wait(), said)
    except BaseException:
        kept.close()
        await process.kill()
        raise
    kept.seek(0)
    return kept


def saved(found: IO[bytes], target: Path) -> None:
    """Write what was collected to a file of this machine."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as file:
        shutil.copyfileobj(found, file)


def _check_size(place: str, total: int) -> None:
    if total > MAX_BYTES:
        raise FileTooLargeError(place, f"has more than {MAX_BYTES} bytes")


def _check_end(sandbox: Sandbox, place: str, end: Exit, said: bytes) -> None:
    if end.code == 0 and end.reason is ExitReason.EXITED:
        return
    words = said.decode("utf-8", "replace").strip()
    if (
        end.code == _CHANGED
        and words
        and all(line.endswith(_AS_READ) for line in words.split("\n"))
    ):
        return
    if end.code == _NOT_FOUND:
        raise UnsupportedError(
            f"the sandbox has not the program that {place!r} takes: tar for a directory",
            backend=sandbox.backend,
        )
    if end.reason is ExitReason.TIMED_OUT:
        words = "its time was up"
    kind = NoSpaceError if "No space left" in words else WorkspaceError
    raise kind(place, f"failed: {words or f'exit code {end.code}'}")
