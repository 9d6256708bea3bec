"""Where an export can go: a directory under the files' own names, or a store under keys."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import anyio.to_thread

from ..errors import (
    ConfigError,
    LimitError,
    ObjectMissingError,
    PathError,
    SandboxError,
    WorkspaceError,
)
from ..storage.drafts import is_draft, place_file, place_whole, sweep
from ..storage.keys import check_key, escape_path
from ..storage.root import Root
from ..storage.store import ArtifactStore, Content, StoredObject, Whole
from .manifest import FILES, MANIFEST, manifest_of
from .report import ExportReport
from .room import Growth, Room
from .walk import Found

__all__ = ("DirectoryTarget", "InHand", "StoreTarget", "Target")

_SHOWN = 0o644
_EXECUTABLE = 0o755
_UNBOUNDED = 1 << 62


@dataclass(frozen=True)
class InHand:
    """A small file that has been read and is to be stored.

    Attributes:
        found: What the walk said of it.
        key: Its key.
        kind: Its media type.
        content: All of it.
    """

    found: Found
    key: str
    kind: str
    content: bytes


Stored = tuple[int, str] | SandboxError
"""The size and SHA-256 of a file that was stored, or why it was not."""


class Target(ABC):
    """What an export needs of the place that it goes to.

    Attributes:
        name: For the report.
        manifest: The key of the manifest, or empty.
        together: How many small files it is best given at a time.
    """

    name: str
    manifest: str = ""
    together: int = 1

    @abstractmethod
    async def begin(self) -> None:
        """Get ready: find out what is there."""

    @abstractmethod
    def key(self, path: bytes) -> str:
        """Return the key of a file, or raise an error that says why it can't have one."""

    @abstractmethod
    async def there(self, found: Found, key: str) -> StoredObject | None:
        """Describe what is there under a file's key, if it may be the same."""

    @abstractmethod
    async def put(self, found: Found, key: str, kind: str, content: Content) -> tuple[int, str]:
        """Store a file whole or not at all; return its size and SHA-256."""

    @abstractmethod
    async def put_many(self, files: Sequence[InHand]) -> list[Stored]:
        """Store small files, each whole or not at all; none stops the others."""

    @abstractmethod
    async def finish(self, report: ExportReport) -> None:
        """Say that all of this is there."""


class DirectoryTarget(Target):
    """A directory of this machine; each file is written under it through no link."""

    together = 32

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.name = os.path.abspath(directory)

    async def begin(self) -> None:
        await anyio.to_thread.run_sync(self._make)

    def _make(self) -> None:
        try:
            os.makedirs(self.name, exist_ok=True)
            sweep(self.name)
        except (OSError, WorkspaceError) as error:
            raise ConfigError(
                f"{self.name!r} is no directory to export to: {error.strerror or error}"
            ) from None

    def key(self, path: bytes) -> str:
        if is_draft(path):
            raise PathError(os.fsdecode(path), "is a name of unfinished files")
        return ""

    async def there(self, found: Found, key: str) -> None:
        return None

    async def put(self, found: Found, key: str, kind: str, content: Content) -> tuple[int, str]:
        return await place_file(
            self.name, found.path, content, mode=_mode(found), made_mode=_EXECUTABLE
        )

    async def put_many(self, files: Sequence[InHand]) -> list[Stored]:
        return await anyio.to_thread.run_sync(self._place_all, files)

    def _place_all(self, files: Sequence[InHand]) -> list[Stored]:
        try:
            with Root(self.name, made_mode=_EXECUTABLE) as root:
                return [_place(root, file) for file in files]
        except WorkspaceError as error:
            return [error] * len(files)

    async def finish(self, report: ExportReport) -> None:
        return


def _place(root: Root, file: InHand) -> Stored:
    try:
        return place_whole(root, file.found.path, file.content, mode=_mode(file.found))
    except WorkspaceError as error:
        return error


def _mode(found: Found) -> int:
    return _EXECUTABLE if found.info.mode & 0o100 else _SHOWN


class StoreTarget(Target):
    """A store, below a prefix; nothing is put there that the room has no place for."""

    def __init__(self, store: ArtifactStore, prefix: str, room: Room | None = None) -> None:
        self._store = store
        self._room = room or Room(_UNBOUNDED, 0, limit="storage_bytes")
        self._files = f"{check_key(prefix)}/{FILES}"
        self.manifest = check_key(f"{prefix}/{MANIFEST}")
        self.name = store.name
        self.together = store._together
        self._sizes: dict[str, int] = {}

    async def begin(self) -> None:
        self._sizes = {item.key: item.size async for item in self._store.list(self._files)}

    def key(self, path: bytes) -> str:
        return check_key(f"{self._files}/{escape_path(path)}")

    async def there(self, found: Found, key: str) -> StoredObject | None:
        if self._sizes.get(key) != found.info.size:
            return None
        try:
            return await self._store.head(key)
        except ObjectMissingError:  # removed since
            return None

    async def put(self, found: Found, key: str, kind: str, content: Content) -> tuple[int, str]:
        growth = self._room.growth(self._sizes.get(key, 0))
        size = None
        try:
            stored = await self._store.put(key, growth.counted(content), media_type=kind)
            size = stored.size
        finally:
            growth.settle(size)
        return stored.size, stored.sha256

    async def put_many(self, files: Sequence[InHand]) -> list[Stored]:
        growths = [self._room.growth(self._sizes.get(file.key, 0)) for file in files]
        outcomes: list[Stored | None] = [None] * len(files)
        try:
            for at, (file, growth) in enumerate(zip(files, growths, strict=True)):
                outcomes[at] = await _refused(growth, len(file.content))
            fitting = [at for at, outcome in enumerate(outcomes) if outcome is None]
            stored = await self._store._put_many(
                [Whole(files[at].key, files[at].content, files[at].kind) for at in fitting]
            )
            for at, one in zip(fitting, stored, strict=True):
                outcomes[at] = (one.size, one.sha256) if isinstance(one, StoredObject) else one
        finally:
            for growth, outcome in zip(growths, outcomes, strict=True):
                growth.settle(outcome[0] if isinstance(outcome, tuple) else None)
        return [outcome for outcome in outcomes if outcome is not None]

    async def finish(self, report: ExportReport) -> None:
        data = await anyio.to_thread.run_sync(manifest_of, report)
        await self._store.put(self.manifest, data, media_type="application/json")


async def _refused(growth: Growth, size: int) -> LimitError | None:
    """Take what an object needs; return the error if there is no room for it."""
    try:
        await growth.to(size)
    except LimitError as error:
        return error
    return None
