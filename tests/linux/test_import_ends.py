"""An import that is given up leaves whole files and no other, in a sandbox with a warden."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from ringfence import import_files
from ringfence.backends.bubblewrap import BubblewrapBackend
from ringfence.warden.connection import Connection

pytestmark = pytest.mark.anyio

SIZE = 100_000


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("number", [1, 2, 3, 5, 9, 30])
async def test_a_cancelled_import_leaves_whole_files(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled when so many frames have been sent."""
    sent = 0
    send = Connection.send
    scope = anyio.CancelScope()

    async def counted(self: Connection, data: bytes) -> None:
        nonlocal sent
        await send(self, data)
        sent += 1
        if sent == number:
            scope.cancel()

    contents = {f"d/{n}": bytes([n]) * SIZE for n in range(60)}
    async with BubblewrapBackend() as backend, await backend.create() as sandbox:
        monkeypatch.setattr(Connection, "send", counted)
        with scope:
            await import_files(sandbox, contents)
        monkeypatch.undo()
        assert scope.cancelled_caught
        assert (await sandbox.exec("true")).ok
        for info in (await sandbox.list_files()).entries:
            for file in (await sandbox.list_files(info.name)).entries:
                assert file.size == SIZE, f"{file.name} has {file.size} bytes"
                content = await sandbox.read_file(f"d/{file.name}")
                assert content == contents[f"d/{file.name}"]
