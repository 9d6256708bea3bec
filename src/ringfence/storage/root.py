"""A directory that stays open while files are placed below it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Self

from ..host_paths import directory

__all__ = ("Root",)


class Root:
    """An open directory that files are placed below, through no link. Close it after the last.

    The directory below it that was used last stays open: files come by directories, and to open
    one anew for each would take longer than to write a small file.

    Args:
        path: Of the directory.
        made_mode: Of directories that have to be made below it.

    Raises:
        WorkspaceError: From all methods; one of its children says why.
    """

    def __init__(self, path: str, *, made_mode: int) -> None:
        self._made_mode = made_mode
        self._own, self._last = ExitStack(), ExitStack()
        self._above: bytes | None = None
        self._inner: int | str = ""
        self.place = self._own.enter_context(directory(path, b"."))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it. Safe to call again."""
        self.forget()
        self._own.close()

    def above(self, path: bytes) -> tuple[int | str, bytes]:
        """Return the directory of a file, made if need be, and the file's own name."""
        above, _, name = path.rpartition(b"/")
        if above != self._above:
            self.forget()
            made = directory(self.place, above or b".", make=True, made_mode=self._made_mode)
            self._inner = self._last.enter_context(made)
            self._above = above
        return self._inner, name

    def forget(self) -> None:
        """Open the next file's directory anew."""
        self._last.close()
        self._above = None
