"""Copies a sandbox's workspace into a directory of this machine or into an artifact store.

Regular files only; what is left out is in the report with its reason, and no file stops the others.
A file is whole or not there at all. In a store, a second run brings only what is missing or has
changed, by content and not by date, and the manifest is written when all is there.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from ..backend import Sandbox
from ..errors import ConfigError, LeaseStoreError, ObjectKeyError, SandboxError, StoreError
from ..storage.store import ArtifactStore
from .pipeline import AT_ONCE, each_of_batches
from .report import Exported, ExportEvent, ExportLimits, ExportReport, Tally, media_type, reason_of
from .room import Room
from .targets import DirectoryTarget, InHand, StoreTarget, Target
from .walk import FATAL, Found, Walk

__all__ = ("export_workspace",)


async def export_workspace(
    sandbox: Sandbox,
    target: str | os.PathLike[str] | ArtifactStore,
    limits: ExportLimits | None = None,
    *,
    prefix: str = "",
    on_progress: Callable[[ExportEvent], Any] | None = None,
    at_once: int = AT_ONCE,
    room: Room | None = None,
) -> ExportReport:
    """Copy the regular files of a workspace into a directory or a store.

    In a directory they have their exact names, replace files of the same name, and get mode 0644,
    or 0755 where their owner may execute them; directories are made where a file needs them. In a
    store they are objects below `PREFIX/files/`, by keys that `ringfence.storage.unescape_path`
    turns back, with the list of all of them in `PREFIX/manifest.json`; what was there of an earlier
    export and is not in the workspace any more stays, and is not in the list.

    Args:
        sandbox: Whose workspace.
        target: A directory, made if need be, or a store.
        limits: How much.
        prefix: What the keys in a store begin with: `key_prefix(tenant, execution)`.
        on_progress: Called for each file that is done and each entry that
            is skipped; may be async. An exception from it stops the export and
            reaches the caller.
        at_once: How many files are in work at a time, each with some MiB of memory; small ones
            that go to a directory count together.
        room: What may still be added to a store, shared with other exports; None bounds nothing.

    Raises:
        ConfigError: The directory can't be made, or a store has no prefix, or a directory one.
        ObjectKeyError: The prefix is none.
        SandboxLostError: The sandbox died; what was copied until then is whole, and stays.
        SandboxClosedError: It is closed.
        StoreError: The store failed. Exporting again goes on from there.
    """
    if at_once < 1:
        raise ConfigError(f"at_once is 1 or more, not {at_once}")
    export = _Export(sandbox, _target(target, prefix, room), limits or ExportLimits(), on_progress)
    return await export.run(at_once)


def _target(
    target: str | os.PathLike[str] | ArtifactStore, prefix: str, room: Room | None
) -> Target:
    if isinstance(target, ArtifactStore):
        if not prefix:
            raise ConfigError("an export to a store needs a prefix", hint="key_prefix(tenant, id)")
        return StoreTarget(target, prefix, room)
    if prefix:
        raise ConfigError("an export to a directory has no prefix")
    return DirectoryTarget(target)


class _Export:
    """One export on its way."""

    def __init__(
        self,
        sandbox: Sandbox,
        target: Target,
        limits: ExportLimits,
        on_progress: Callable[[ExportEvent], Any] | None,
    ) -> None:
        self._target = target
        self._tally = Tally(limits)
        self._untold: list[ExportEvent] = []
        self._on_progress = on_progress
        self._walk = Walk(sandbox, limits, self._skip)

    async def run(self, at_once: int) -> ExportReport:
        await self._target.begin()
        walk = self._walk
        await each_of_batches(walk.batches(), self._read, self._take, at_once)
        await self._tell()
        report = self._tally.report(
            self._target.name,
            is_complete=self._walk.is_complete,
            manifest=self._target.manifest,
        )
        await self._target.finish(report)
        return report

    def _skip(self, path: bytes, reason: str) -> None:
        self._note(self._tally.skip(path, reason))

    def _note(self, event: ExportEvent) -> None:
        if self._on_progress is not None:
            self._untold.append(event)

    async def _tell(self) -> None:
        """Tell what has happened since, in that order."""
        while self._on_progress is not None and self._untold:
            outcome = self._on_progress(self._untold.pop(0))
            if inspect.isawaitable(outcome):
                await outcome

    async def _read(self, batch: list[Found]) -> list[list[Found]]:
        """Read a batch, and part it into as many as the target takes together."""
        found, most = await self._walk.read(batch), self._target.together
        return [found[at : at + most] for at in range(0, len(found), most)]

    async def _take(self, group: list[Found]) -> None:
        """Bring some files out: what is in hand by one step, the rest one by one."""
        in_hand: list[InHand] = []
        for found in group:
            try:
                file = await self._copy(found)
            except FATAL:
                raise
            except SandboxError as error:
                self._leave_out(found, error)
            else:
                if isinstance(file, InHand):
                    in_hand.append(file)
                else:
                    self._add(found, file)
        if in_hand:
            stored = await self._target.put_many(in_hand)
            for file, outcome in zip(in_hand, stored, strict=True):
                if isinstance(outcome, SandboxError):
                    self._leave_out(file.found, outcome)
                else:
                    self._add(file.found, _exported(file.found, file.key, file.kind, *outcome))
        await self._tell()

    def _add(self, found: Found, file: Exported) -> None:
        self._note(self._tally.add(file))
        self._walk.settle(found, file.size)

    def _leave_out(self, found: Found, error: SandboxError) -> None:
        """Skip a file, unless the error is that of a store and would be that of every file."""
        is_general = isinstance(error, (StoreError, LeaseStoreError))
        if is_general and not isinstance(error, ObjectKeyError):
            raise error
        self._skip(found.path, reason_of(error))
        self._walk.settle(found, 0)

    async def _copy(self, found: Found) -> Exported | InHand:
        """Bring a file out, or return it if it only has to be stored."""
        target = self._target
        key = target.key(found.path)
        kind = media_type(found.path)
        whole = self._walk.whole(found)
        there = await target.there(found, key)
        if there is not None and there.sha256:
            size, sha256 = await self._look(found, whole)
            if sha256 == there.sha256:
                return _exported(found, key, kind, size, sha256, unchanged=True)
        if whole is not None:
            return InHand(found, key, kind, whole)
        async with aclosing(self._walk.content(found)) as content:
            size, sha256 = await target.put(found, key, kind, content)
        return _exported(found, key, kind, size, sha256)

    async def _look(self, found: Found, whole: bytes | None) -> tuple[int, str]:
        """Return a file's size and SHA-256; read it for these alone if it has not been read."""
        if whole is not None:
            return len(whole), hashlib.sha256(whole).hexdigest()
        digest, size = hashlib.sha256(), 0
        async with aclosing(self._walk.content(found)) as content:
            async for part in content:
                digest.update(part)
                size += len(part)
        return size, digest.hexdigest()


def _exported(
    found: Found, key: str, kind: str, size: int, sha256: str, *, unchanged: bool = False
) -> Exported:
    name, mode = os.fsdecode(found.path), found.info.mode & 0o7777
    return Exported(name, size, sha256, mode, found.info.mtime, kind, key, unchanged)
