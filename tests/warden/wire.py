"""The protocol once more, from docs/protocol.md and from nothing else, with a real warden behind.

It shares no code with the package, so that the two halves can't be wrong together.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

START, STDIN, STDIN_END, CREDIT, KILL, PING, LIFETIME, TOKEN, RESIZE, LIMIT = range(1, 11)
HELLO, STARTED, STDOUT, STDERR, STDIN_ACK, EXIT, PONG, FAULT = range(0x81, 0x89)

KILL_LEFTOVERS, HAS_STDIN, STDIN_COMPLETE, TERMINAL = 1, 2, 4, 8
EXITED, SIGNALED, NOT_STARTED, UNKNOWN = range(4)
READ, WRITE, LIST, STAT, MAKE_DIR, REMOVE, MOVE, READ_MANY, WRITE_MANY = range(1, 10)
NO_CAP = 2**64 - 1
NO_MODE = 0xFFFFFFFF

SOON = 30.0
"""Seconds for what takes none on an idle machine."""


def frame(kind: int, channel: int, payload: bytes = b"", flags: int = 0, zero: int = 0) -> bytes:
    return struct.pack("<IIBBH", len(payload), channel, kind, flags, zero) + payload


def start(
    channel: int,
    argv: Sequence[bytes],
    *,
    env: Sequence[bytes] = (b"PATH=/usr/bin:/bin",),
    cwd: bytes = b".",
    fallback: bytes = b"",
    flags: int = 0,
    operation: int = 0,
    timeout_ms: int = 0,
    grace_ms: int = 0,
    window: int = 1 << 20,
    cap: int = NO_CAP,
    numbers: tuple[int, int] = (0, 0),
    stdin: bytes = b"",
) -> bytes:
    head = struct.pack(
        "<IIQIIQQQIIII",
        flags,
        operation,
        timeout_ms,
        grace_ms,
        window,
        cap,
        *numbers,
        len(argv),
        len(env),
        len(stdin),
        0,
    )
    texts = b"".join(text + b"\0" for text in (cwd, fallback, *argv, *env))
    return frame(START, channel, head + texts + stdin)


def new_file(data: bytes, mode: int = NO_MODE) -> bytes:
    """Return what `WRITE_MANY` reads for one file."""
    return struct.pack("<II", mode, len(data)) + data


def kill(channel: int, number: int = 0) -> bytes:
    return frame(KILL, channel, struct.pack("<I", number))


def credit(channel: int, stdout: int, stderr: int) -> bytes:
    return frame(CREDIT, channel, struct.pack("<II", stdout, stderr))


def resize(channel: int, rows: int, columns: int) -> bytes:
    return frame(RESIZE, channel, struct.pack("<II", rows, columns))


def limit(channel: int, milliseconds: int) -> bytes:
    return frame(LIMIT, channel, struct.pack("<Q", milliseconds))


@dataclass(frozen=True)
class Ended:
    """A command's EXIT, with what came before it."""

    outcome: int
    timed_out: int
    kill_incomplete: int
    stage: int
    value: int
    stdout_total: int
    stderr_total: int
    cpu_us: int
    max_rss_kb: int
    oom_kills: int
    stdout: bytes = b""
    stderr: bytes = b""


class RawWarden:
    """A warden in process mode, and the host's end of its stream."""

    def __init__(self, binary: str, workspace: Path, *options: str) -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(SOON)
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            [binary, "serve", "--workspace", str(workspace), *options],
            stdin=theirs.fileno(),
            stderr=subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin"},
        )
        theirs.close()
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()
        try:
            self.process.wait(SOON)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            assert self.process.stderr is not None
            self.process.stderr.close()

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def try_send(self, data: bytes) -> None:
        """Send what it takes: a warden that has had enough closes its end."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def next_frame(self) -> tuple[int, int, bytes] | None:
        """Return type, channel and payload of the next frame; None at the end of the stream."""
        while True:
            if len(self._buffer) >= 12:
                length, channel, kind, flags, zero = struct.unpack_from("<IIBBH", self._buffer)
                assert (flags, zero) == (0, 0)
                assert length <= 128 << 10
                if len(self._buffer) >= 12 + length:
                    payload = self._buffer[12 : 12 + length]
                    self._buffer = self._buffer[12 + length :]
                    return kind, channel, payload
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._buffer += data

    def frames(self) -> Iterator[tuple[int, int, bytes]]:
        """Return all frames until the stream ends."""
        while (found := self.next_frame()) is not None:
            yield found

    def expect(self, kind: int, channel: int | None = None) -> bytes:
        """Return the next frame's payload, which must be of a kind."""
        found = self.next_frame()
        assert found is not None, "the warden has ended"
        assert found[0] == kind, found
        assert channel is None or found[1] == channel, found
        return found[2]

    def until_exit(self, channel: int) -> Ended:
        """Return a command's end, and drop what comes for others."""
        written = {STDOUT: b"", STDERR: b""}
        for kind, about, payload in self.frames():
            if about != channel:
                continue
            if kind in written:
                written[kind] += payload
            elif kind == EXIT:
                fields: Sequence[int] = struct.unpack("<BBBBiQQQQQ", payload)
                return Ended(*fields, written[STDOUT], written[STDERR])  # type: ignore[arg-type,call-arg]
        raise AssertionError("the warden has ended")

    def run(self, channel: int, argv: Sequence[bytes], **options: object) -> Ended:
        """Start a command, with the options of `start`, and return its end."""
        self.send(start(channel, argv, **options))  # type: ignore[arg-type]
        return self.until_exit(channel)

    def has_ended(self) -> int:
        """Return the warden's wait status, which must come in time."""
        return self.process.wait(SOON)


def settles(pid: int) -> bool:
    """Return whether a process goes soon."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], SOON)[0])
    finally:
        os.close(descriptor)
