"""What a type checker must see in code that uses the package; `make types` checks it."""

from __future__ import annotations

from typing import assert_type

import ringfence
from ringfence import (
    Backend,
    BackendConfig,
    BubblewrapConfig,
    Chunk,
    Command,
    FileInfo,
    Listing,
    Mount,
    Process,
    ProcessConfig,
    Result,
    Run,
    Sandbox,
    feed,
    open_backend,
    select_backend,
    shell,
    sync,
)


async def asynchronous() -> None:
    assert_type(await select_backend("auto"), Backend)
    async with open_backend(BackendConfig(backend="bubblewrap", memory_bytes=1 << 28)) as backend:
        assert_type(backend, Backend)
        assert_type(await backend.execute("ls", ["-l"], timeout=5), Result)
        async with await backend.create() as sandbox:
            assert_type(sandbox, Sandbox)
            assert_type(await sandbox.exec(shell("true")), Result)
            assert_type(await sandbox.start(Command(["cat"], stdin=feed([b"x"]))), Process)
            assert_type(await sandbox.list_files(), Listing)
            async with sandbox.stream("ls") as run:
                assert_type(run, Run)
                async for chunk in run:
                    assert_type(chunk, Chunk)


def synchronous() -> None:
    with sync.open_backend(BubblewrapConfig(mounts=(Mount("/opt"),), cpus=1)) as backend:
        assert_type(backend, sync.Backend)
        with backend.create() as sandbox:
            assert_type(sandbox, sync.Sandbox)
            assert_type(sandbox.stat("a"), FileInfo)
            assert_type(sandbox.start(Command(["x"])), sync.Process)
            with sandbox.stream("ls") as run:
                for chunk in run:
                    assert_type(chunk, Chunk)
            assert_type(run.result, Result)


def wrong() -> None:
    """Each ignore is of an error that a type checker must find: an unused one fails the check."""
    ProcessConfig(memry_bytes=1)  # type: ignore[call-arg]
    ProcessConfig(memory_bytes="1")  # type: ignore[arg-type]
    Command(["x"], stdin=[b"x"])  # type: ignore[arg-type]
    open_backend(5)  # type: ignore[arg-type]


def test_every_public_name_is_exported_once() -> None:
    assert len(set(ringfence.__all__)) == len(ringfence.__all__)
    public = {name for name in vars(ringfence) if name[0].isupper()}
    assert public <= set(ringfence.__all__)
