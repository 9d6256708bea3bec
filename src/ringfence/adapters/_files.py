"""Files as frameworks ask for them: by any path that the sandbox's programs see.

What is in the workspace goes the sandbox's own way. What is outside of it, or reached by a link
that the sandbox's own file operations refuse, goes through `/bin/sh` inside, as the sandbox's user:
so nothing can be reached in this way that a command could not reach, and no content travels in a
script's text.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from ..backend import Sandbox
from ..errors import (
    FileConflictError,
    FileIsDirectoryError,
    FileKindError,
    FileMissingError,
    FileNotDirectoryError,
    FilePermissionError,
    FileTooLargeError,
    PathError,
    UnsupportedError,
    WorkspaceError,
)
from ..models import FileKind, Result
from ._commands import absolute, command_in

__all__ = ("Entry", "Files")

MAX_LINKS = 40
"""Links that a path may lead through, as in Linux."""

_LISTING_BYTES = 4 << 20

# What a script says by its exit code: 100 and the error's number.
_FAULTS: dict[int, tuple[type[WorkspaceError], str]] = {
    100 + errno.ENOENT: (FileMissingError, "there is nothing"),
    100 + errno.EACCES: (FilePermissionError, "permission denied"),
    100 + errno.EEXIST: (FileConflictError, "is in the way"),
    100 + errno.ENOTDIR: (FileNotDirectoryError, "not a directory"),
    100 + errno.EISDIR: (FileIsDirectoryError, "is a directory"),
    100 + errno.EINVAL: (FileKindError, "is not a regular file"),
}

# Finds out what is in the way of a path that is not there.
_ABOVE = """
above() { up=${1%/*}; up=${up:-/}
  while ! [ -e "$up" ]; do up=${up%/*}; up=${up:-/}; done
  [ -d "$up" ] || exit 120; [ -w "$up" ] && [ -x "$up" ] || exit 113; }
"""

_READ = """
[ -d "$1" ] && exit 121
[ -e "$1" ] || exit 102
[ -f "$1" ] || exit 122
[ -r "$1" ] || exit 113
exec cat -- "$1"
"""

_WRITE = f"""{_ABOVE}
[ -d "$1" ] && exit 121
if [ -e "$1" ]; then [ -f "$1" ] || exit 122; [ -w "$1" ] || exit 113
else above "$1"; up=${{1%/*}}; up=${{up:-/}}
  mkdir -p -- "$up" || exit 1; [ -w "$up" ] || exit 113; fi
exec cat > "$1"
"""

_STAT = """
if [ -d "$1" ]; then printf d; elif [ -f "$1" ]; then
  printf f; [ -r "$1" ] && wc -c < "$1"; exit 0
elif [ -e "$1" ]; then printf o; elif [ -L "$1" ]; then printf l; else exit 102; fi
"""

_LIST = """
[ -d "$1" ] || { [ -e "$1" ] && exit 120; exit 102; }
[ -r "$1" ] && [ -x "$1" ] || exit 113
for f in "$1"/* "$1"/.[!.]* "$1"/..?*; do
  if [ -d "$f" ]; then printf 'd%s\\0' "${f##*/}"; elif [ -e "$f" ] || [ -L "$f" ]; then
  printf 'f%s\\0' "${f##*/}"; fi; done
exit 0
"""

_DIRECTORIES = 'for f; do if [ -d "$f" ]; then printf d; else printf f; fi; done'

_MAKE_DIR = f"""{_ABOVE}
[ -d "$1" ] && exit 0; [ -e "$1" ] && exit 117
above "$1"; exec mkdir -p -- "$1"
"""

_REMOVE = """
[ -e "$1" ] || [ -L "$1" ] || exit 102
exec rm -rf -- "$1"
"""

_FIRST_LINK = """
i=0
for p; do [ -L "$p" ] && { printf '%s:' $i; exec readlink -n -- "$p"; }; i=$((i+1)); done
exit 0
"""

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Entry:
    """A file or directory, links followed.

    Attributes:
        name: Its name.
        is_dir: Whether it is a directory.
        size: Bytes of a regular file, where that is known.
    """

    name: str
    is_dir: bool
    size: int | None = None


class Files:
    """The files of one sandbox.

    Every error is a `WorkspaceError`, and so the `OSError` of its kind. A path is absolute or
    relative to the workspace.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def read(self, path: str, max_bytes: int) -> bytes:
        """Return a file's whole content.

        Raises:
            FileTooLargeError: It has more than `max_bytes`.
            WorkspaceError: It can't be read.
        """

        async def natively() -> bytes:
            return await self._sandbox.read_file(path, max_bytes=max_bytes + 1)

        async def inside() -> bytes:
            return (await self._run(_READ, path, output_bytes=max_bytes + 1)).stdout

        data = await self._either(natively, inside)
        if len(data) > max_bytes:
            raise FileTooLargeError(path, f"has more than {max_bytes} bytes")
        return data

    async def write(self, path: str, data: bytes) -> None:
        """Write a file, making the directories above it."""
        await self._either(
            lambda: self._sandbox.write_file(path, data),
            lambda: self._run(_WRITE, path, stdin=data),
        )

    async def stat(self, path: str) -> Entry:
        """Describe what a path leads to."""
        name = posixpath.basename(posixpath.normpath(path))

        async def natively() -> Entry:
            found = await self._sandbox.stat(path)
            if found.kind is FileKind.SYMLINK:
                raise PathError(path, "is a link")
            is_file = found.kind is FileKind.FILE
            return Entry(name, found.kind is FileKind.DIRECTORY, found.size if is_file else None)

        async def inside() -> Entry:
            said = (await self._run(_STAT, path)).stdout_text
            size = said[1:].strip()
            return Entry(name, said.startswith("d"), int(size) if size.isdecimal() else None)

        return await self._either(natively, inside)

    async def list_dir(self, path: str, max_entries: int) -> list[Entry]:
        """Return what is in a directory, by the bytes of the names.

        Raises:
            FileTooLargeError: There are more entries than that.
            WorkspaceError: It can't be listed.
        """

        async def natively() -> list[Entry]:
            listing = await self._sandbox.list_files(path, max_entries=max_entries)
            if listing.truncated:
                raise FileTooLargeError(path, f"has more than {max_entries} entries")
            links = [one.name for one in listing.entries if one.kind is FileKind.SYMLINK]
            directories = await self._directories(path, links) if links else set[str]()
            return [
                Entry(
                    one.name,
                    one.kind is FileKind.DIRECTORY or one.name in directories,
                    one.size if one.kind is FileKind.FILE else None,
                )
                for one in listing.entries
            ]

        async def inside() -> list[Entry]:
            done = await self._run(_LIST, path, output_bytes=_LISTING_BYTES)
            names = sorted(done.stdout.split(b"\0")[:-1], key=lambda name: name[1:])
            if done.stdout_truncated or len(names) > max_entries:
                raise FileTooLargeError(path, f"has more than {max_entries} entries")
            return [Entry(os.fsdecode(name[1:]), name.startswith(b"d")) for name in names]

        return await self._either(natively, inside)

    async def make_dir(self, path: str) -> None:
        """Make a directory and those above it; one that exists is fine."""
        await self._either(lambda: self._sandbox.make_dir(path), lambda: self._run(_MAKE_DIR, path))

    async def remove(self, path: str) -> None:
        """Remove a file, a link itself, or a directory with all that is in it."""
        await self._either(lambda: self._sandbox.remove(path), lambda: self._run(_REMOVE, path))

    async def real_path(self, path: str) -> str:
        """Return where a path leads, links followed; what is not there stays as it is written.

        Raises:
            WorkspaceError: It leads through too many links, as in a loop.
        """
        above, rest = "", absolute(self._sandbox, path).split("/")
        for _ in range(MAX_LINKS):
            steps = []
            at = above
            for part in rest:
                if part not in ("", "."):
                    at = posixpath.dirname(at).rstrip("/") if part == ".." else f"{at}/{part}"
                steps.append(at)
            said = (await self._run(_FIRST_LINK, *(step or "/" for step in steps))).stdout
            if not said:
                return at or "/"
            number, _, target = os.fsdecode(said).partition(":")
            index = int(number)
            above = "" if target.startswith("/") else posixpath.dirname(steps[index]).rstrip("/")
            rest = [*target.split("/"), *rest[index + 1 :]]
        raise WorkspaceError(path, "leads through too many links")

    async def _directories(self, path: str, names: list[str]) -> set[str]:
        """Return those among the links of a directory that lead to a directory."""
        paths = [posixpath.join(path, name) for name in names]
        said = (await self._run(_DIRECTORIES, *paths)).stdout_text
        return {name for name, kind in zip(names, said, strict=True) if kind == "d"}

    async def _either(
        self, natively: Callable[[], Awaitable[_Value]], inside: Callable[[], Awaitable[_Value]]
    ) -> _Value:
        try:
            return await natively()
        except PathError:
            return await inside()

    async def _run(
        self, script: str, *paths: str, stdin: bytes | None = None, output_bytes: int | None = None
    ) -> Result:
        argv = ["/bin/sh", "-c", script, "sh", *(absolute(self._sandbox, path) for path in paths)]
        command = command_in(self._sandbox, argv, stdin=stdin, output_bytes=output_bytes)
        result = await self._sandbox.exec(command)
        if result.ok:
            return result
        if result.exit_code == 127 and not result.stdout:
            raise UnsupportedError(
                f"{paths[0]!r} is outside of the workspace and can't be reached: there is no "
                "/bin/sh, or not the programs that it takes",
                backend=self._sandbox.backend,
                hint=f"keep files below {self._sandbox.workspace}",
            )
        kind, words = _FAULTS.get(result.exit_code, (WorkspaceError, ""))
        raise kind(paths[0], words or result.stderr_text.strip()[:200] or "failed")
