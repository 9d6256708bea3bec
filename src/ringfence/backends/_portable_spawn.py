"""Starting a command of a portable sandbox with asyncio."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, cast

from ..errors import CommandError, SandboxError
from ..process import Launch
from ._portable_parts import Stdin
from ._portable_process import PortableProcess

__all__ = ("spawn",)

_BUSY_TRIES, _BUSY_PAUSE = 10, 0.01
"""How often and after how many seconds a program that is still open for writing is tried again."""

_NOT_FOUND = {errno.ENOENT, errno.ENOTDIR}
_NOT_EXECUTABLE = {
    errno.EACCES,
    errno.EPERM,
    errno.ENOEXEC,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ETXTBSY,
    errno.EINVAL,
}


async def spawn(launch: Launch, env: Mapping[bytes, bytes], cwd: str) -> PortableProcess:
    """Start a command in a process group of its own.

    Raises:
        CommandError: Its arguments and variables are more than the kernel takes.
        SandboxError: The machine has no room for another process.
    """
    process = PortableProcess(launch)
    argv = list(launch.command.argv_bytes)
    names = [argv[0]]
    if launch.command.fallback:
        names.append(os.fsencode(launch.command.fallback))
    busy = 0
    while True:
        try:
            await _spawn(process, [names[0], *argv[1:]], env, cwd)
        except OSError as error:
            # Another child may hold a just written program open until it has become its own.
            if error.errno == errno.ETXTBSY and busy < _BUSY_TRIES:
                busy += 1
                await asyncio.sleep(_BUSY_PAUSE)
                continue
            if error.errno in _NOT_FOUND and len(names) > 1:
                names.pop(0)
                continue
            name = os.fsdecode(names[-1]).encode("utf-8", "replace").decode()
            if error.errno == errno.E2BIG:
                raise CommandError(
                    f"{name!r}: the arguments and variables are too long together"
                ) from error
            if error.errno in _NOT_FOUND:
                process.failed(127, f"{name}: command not found\n")
            elif error.errno in _NOT_EXECUTABLE:
                process.failed(
                    126, f"{name}: cannot be executed: {os.strerror(error.errno or 0)}\n"
                )
            else:
                raise SandboxError(
                    f"a process could not be started: {error}",
                    backend="process",
                    hint="the machine is out of processes, memory or descriptors",
                ) from error
        return process


async def _spawn(
    process: PortableProcess, argv: list[bytes], env: Mapping[bytes, bytes], cwd: str
) -> None:
    loop = asyncio.get_running_loop()
    protocol = _Protocol(process)
    wants_stdin = process.wants_stdin
    pipe = os.pipe() if wants_stdin and sys.platform != "win32" else None
    # Not asyncio's own pipe on POSIX: that is a socket, and a program can't open /dev/stdin then.
    stdin = pipe[0] if pipe else asyncio.subprocess.PIPE if wants_stdin else subprocess.DEVNULL
    try:
        transport, _ = await loop.subprocess_exec(
            lambda: protocol,
            *(_plain_text(part) for part in argv),
            stdin=stdin,
            env=_plain(env),
            cwd=cwd,
            start_new_session=True,
        )
    except BaseException:
        if pipe:
            os.close(pipe[1])
        raise
    finally:
        if pipe:
            os.close(pipe[0])
    process.attach(transport)
    if not wants_stdin:
        return
    stdin_protocol = protocol.stdin = Stdin()
    if pipe:
        writer = os.fdopen(pipe[1], "wb", buffering=0)
        await loop.connect_write_pipe(lambda: stdin_protocol, writer)
    elif (inner := transport.get_pipe_transport(0)) is not None:
        stdin_protocol.connection_made(inner)
    process.feed(stdin_protocol)


def _plain(env: Mapping[bytes, bytes]) -> dict[Any, Any]:
    """Return an environment as this platform's `subprocess` takes it."""
    return {_plain_text(name): _plain_text(value) for name, value in env.items()}


def _plain_text(value: bytes) -> Any:
    return os.fsdecode(value) if sys.platform == "win32" else value


class _Protocol(asyncio.SubprocessProtocol):
    """Hands what asyncio reports to the process."""

    def __init__(self, process: PortableProcess) -> None:
        self._process = process
        self._transport: asyncio.SubprocessTransport | None = None
        self.stdin: Stdin | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        self._process.data("stdout" if fd == 1 else "stderr", data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            if self.stdin:
                self.stdin.connection_lost(exc)
        else:
            self._process.pipe_closed("stdout" if fd == 1 else "stderr")

    def process_exited(self) -> None:
        assert self._transport is not None
        self._process.exited(self._transport.get_returncode() or 0)

    def pause_writing(self) -> None:
        if self.stdin:
            self.stdin.pause_writing()

    def resume_writing(self) -> None:
        if self.stdin:
            self.stdin.resume_writing()
