"""A worker of the test of sudden deaths: sessions that work and check themselves, for ever.

Prints one line of JSON for each session that came to its end, and `fault` lines for what must not
be: a live execution that lost its sandbox, its files or its lease. What a session has written is
exported to a store that all workers share, where it can be told from its name what it must be.
"""

from __future__ import annotations

import json
import random
import secrets
import sys
from typing import Any

import anyio

from ringfence.errors import SandboxError
from ringfence.registry import open_backend
from ringfence.sessions import SessionManager
from ringfence.storage import LocalStore

SESSIONS_AT_ONCE = 4
CALLS = 6
FILE_BYTES = 20_000


def content(execution: str, number: int) -> bytes:
    """Return what a file of an execution has in it, no two the same."""
    return (f"{execution} {number}\n".encode() * FILE_BYTES)[:FILE_BYTES]


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def live(sessions: SessionManager, mark: str, store: LocalStore) -> None:
    """Use one execution for a while, and look at each step whether it is still the same."""
    name = f"run-{secrets.token_hex(6)}"
    session = sessions.session(name, plan="enterprise")
    try:
        await session.write_file("own", name)
        await sessions.exec(name, f"(setsid sleep {mark} &) ; sleep {mark} &")
        for number in range(CALLS):
            result = await sessions.exec(name, f"sleep 0.0{random.randrange(9)}; cat own")
            if result.stdout_text != name or session.generation != 1:
                say(fault="another workspace", stdout=result.stdout_text)
            await session.write_file(f"file-{number}", content(name, number))
        kept = len((await session.list_files()).entries)
        if kept != CALLS + 1:
            say(fault="files are gone", kept=kept)
        report = await sessions.export(name, store)
        if len(report.files) != CALLS + 1 or report.skipped:
            say(fault="an export is not whole", report=report.to_dict())
    except SandboxError as error:
        say(fault=f"{type(error).__name__}: {error}")
    await sessions.destroy_execution(name)
    say(done=name)


async def work(sessions: SessionManager, mark: str, store: LocalStore) -> None:
    while True:
        await live(sessions, mark, store)


async def main(config: str, mark: str, directory: str) -> None:
    store = LocalStore(directory)
    async with open_backend(json.loads(config)) as backend, SessionManager(backend) as sessions:
        say(ready=sessions.owner)
        async with anyio.create_task_group() as group:
            for _ in range(SESSIONS_AT_ONCE):
                group.start_soon(work, sessions, mark, store)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], sys.argv[3])
