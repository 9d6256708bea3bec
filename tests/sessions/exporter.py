"""A worker of the test of storage over several workers: exports one execution, in step.

It says `in` when it is about to store its first file, and goes on when it is told to, on its stdin.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial

import anyio
import anyio.to_thread

from ringfence import FakeBackend, Plan, Policy, SessionManager
from ringfence.errors import StoreError
from ringfence.leases import SqliteLeases
from ringfence.storage import LocalStore
from ringfence.storage.store import Content, StoredObject, Whole


class InStep(LocalStore):
    """A store whose first object waits until it is told."""

    def __init__(self, directory: str) -> None:
        super().__init__(directory)
        self._told = anyio.Event()
        self._asked = False

    async def _wait(self) -> None:
        if not self._asked:
            self._asked = True
            print("in", flush=True)
            await anyio.to_thread.run_sync(sys.stdin.readline)
            self._told.set()
        await self._told.wait()

    async def _put(
        self, key: str, content: Content, media_type: str, if_missing: bool
    ) -> StoredObject:
        await self._wait()
        return await super()._put(key, content, media_type, if_missing)

    async def _put_many(self, objects: Sequence[Whole]) -> list[StoredObject | StoreError]:
        await self._wait()
        return await super()._put_many(objects)


async def main(name: str, leases: str, directory: str, *numbers: str) -> None:
    bound, files, size = map(int, numbers)
    backend = FakeBackend()
    policy = Policy({"free": Plan("free", storage_bytes=bound)})
    sessions = SessionManager(backend, leases=SqliteLeases(leases), policy=policy)
    async with backend, sessions:
        session = sessions.session(name, tenant_id="acme", plan="free")
        for number in range(files):
            await session.write_file(f"{number}", bytes(size))
        report = await sessions.export(name, InStep(directory), tenant_id="acme")
        reasons = sorted({item.reason for item in report.skipped})
        print(json.dumps([report.total_bytes, report.skipped_count, reasons]), flush=True)


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
