"""The socket by which a warden calls: seen by one container, answered once, gone afterwards."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

import anyio
import pytest

pytest.importorskip("aiodocker")

from ringfence.backends._docker_socket import WardenSocket
from ringfence.errors import CreateError


async def _nothing() -> None:
    pass


def call(path: str, data: bytes = b"") -> socket.socket:
    """Connect as a warden does, whose path is a short one."""
    caller = socket.socket(socket.AF_UNIX)
    place = os.open(os.path.dirname(path), os.O_PATH)
    try:
        caller.connect(f"/proc/self/fd/{place}/{os.path.basename(path)}")
    except BaseException:
        caller.close()
        raise
    finally:
        os.close(place)
    caller.sendall(data)
    return caller


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
def test_who_calls_is_heard_and_nothing_stays(anyio_backend: str, tmp_path: Path) -> None:
    directory = str(tmp_path / ("d" * 150))  # longer than a socket's name can be
    ended: list[bool] = []

    async def on_end() -> None:
        ended.append(True)

    async def main() -> None:
        with WardenSocket(directory) as listening:
            assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
            assert stat.S_IMODE(os.stat(listening.path).st_mode) == 0o666
            caller = call(listening.path, b"hello")
            with anyio.fail_after(20):
                stream = await listening.accept(on_end)
        assert not os.path.exists(directory)
        assert await stream.receive() == b"hello"
        caller.close()
        assert await stream.receive() == b""
        await stream.explain()
        stream.close()

    anyio.run(main, backend=anyio_backend)
    assert ended == [True]


def test_once_closed_nobody_can_call_it_by_any_name(tmp_path: Path) -> None:
    """Catches a socket that a program inside could still reach by the mount that shows it."""
    with WardenSocket(str(tmp_path / "d")) as listening:
        os.link(listening.path, tmp_path / "mounted")
    with pytest.raises(ConnectionRefusedError):
        call(str(tmp_path / "mounted"))


def test_a_wait_for_nobody_can_be_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        with WardenSocket(str(tmp_path / "d")) as listening, anyio.move_on_after(0.05) as scope:
            await listening.accept(_nothing)
        assert scope.cancelled_caught

    anyio.run(main)
    assert not (tmp_path / "d").exists()


def test_a_place_that_is_taken_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(CreateError, match="File exists"):
        WardenSocket(str(tmp_path / "d"))
    assert (tmp_path / "d").exists()


def test_without_descriptors_there_is_a_typed_error_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket.socket, "listen", none_left)
    with pytest.raises(CreateError, match="Too many open files"):
        WardenSocket(str(tmp_path / "d"))
    assert not (tmp_path / "d").exists()
