"""The frames between the host and the warden; docs/protocol.md describes them.

What comes from a warden is hostile input: sizes are bounded, unknown types are refused, and no
length that the other side states is ever allocated in advance.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import NamedTuple

from ..errors import ProtocolError

__all__ = (
    "EXIT",
    "HEADER",
    "HELLO",
    "MAX_DATA",
    "MAX_START",
    "MAX_STRINGS",
    "STDIN_WINDOW",
    "TOKEN_SIZE",
    "VERSION",
    "ExitFrame",
    "Feature",
    "FrameType",
    "Hello",
    "Operation",
    "Outcome",
    "Stage",
    "StartFlag",
    "credit_frame",
    "frame",
    "kill_frame",
    "lifetime_frame",
    "limit_frame",
    "resize_frame",
    "start_frame",
    "token_frame",
)

VERSION = 2
MAX_START = 4 << 20
MAX_STRINGS = 131072
MAX_DATA = 128 << 10
STDIN_WINDOW = 64 << 10
TOKEN_SIZE = 32
UNLIMITED = 0xFFFFFFFFFFFFFFFF

HEADER = struct.Struct("<IIBBH")
_START = struct.Struct("<IIQIIQQQIIII")
HELLO = struct.Struct("<IIII16s")
EXIT = struct.Struct("<BBBBiQQQQQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class FrameType(IntEnum):
    """What a frame is."""

    START = 0x01
    STDIN = 0x02
    STDIN_END = 0x03
    CREDIT = 0x04
    KILL = 0x05
    PING = 0x06
    LIFETIME = 0x07
    TOKEN = 0x08
    RESIZE = 0x09
    LIMIT = 0x0A

    HELLO = 0x81
    STARTED = 0x82
    STDOUT = 0x83
    STDERR = 0x84
    STDIN_ACK = 0x85
    EXIT = 0x86
    PONG = 0x87
    FAULT = 0x88


class StartFlag(IntFlag):
    """Options of a START frame."""

    KILL_LEFTOVERS = 1
    STDIN = 2
    STDIN_COMPLETE = 4
    TERMINAL = 8


class Feature(IntFlag):
    """What a warden says of itself before anything else runs beside it."""

    INIT = 1
    SECCOMP = 2
    NO_NEW_PRIVS = 4
    TERMINAL = 8
    READ_MANY = 16
    WRITE_MANY = 32
    LIMIT = 64


class Outcome(IntEnum):
    """How a command's main process ended."""

    EXITED = 0
    SIGNALED = 1
    NOT_STARTED = 2
    UNKNOWN = 3


class Stage(IntEnum):
    """Where the start of a command failed."""

    NONE = 0
    FORK = 1
    SETUP = 2
    CWD = 3
    EXEC = 4
    TERMINAL = 5


_OUTCOMES = tuple(Outcome)  # by number; a lookup costs a tenth of a call of the class
_STAGES = tuple(Stage)
_SIGNALED = int(Outcome.SIGNALED)
_FEATURES = sum(Feature)  # a newer warden may say more of itself
_LAST_OUTCOME = int(Outcome.UNKNOWN)
_LAST_STAGE = int(Stage.TERMINAL)


class Operation(IntEnum):
    """The file operations, which the warden runs as built-in programs."""

    PROGRAM = 0
    READ = 1
    WRITE = 2
    LIST = 3
    STAT = 4
    MAKE_DIR = 5
    REMOVE = 6
    MOVE = 7
    READ_MANY = 8
    WRITE_MANY = 9


@dataclass(frozen=True, slots=True)
class Hello:
    """A warden's first frame."""

    version: int
    pid: int
    features: Feature
    uid: int
    instance: bytes

    @classmethod
    def decode(cls, payload: bytes) -> Hello:
        version, pid, features, uid, instance = HELLO.unpack(payload)
        return cls(version, pid, Feature(features & _FEATURES), uid, instance)


class ExitFrame(NamedTuple):  # made for every command, and three times as cheap as a dataclass
    """How a command ended, as the warden tells it.

    Attributes:
        oom_kills: Processes of the sandbox that its memory limit killed while the command ran, or
            None where the warden can't tell.
    """

    outcome: Outcome
    timed_out: bool
    kill_incomplete: bool
    stage: Stage
    value: int
    stdout_total: int
    stderr_total: int
    cpu_us: int
    max_rss_kb: int
    oom_kills: int | None

    @classmethod
    def decode(cls, payload: bytes) -> ExitFrame:
        outcome, timed_out, incomplete, stage, value, out, err, cpu, rss, kills = EXIT.unpack(
            payload
        )
        least, most = (1, 64) if outcome == _SIGNALED else (0, 255)
        if outcome > _LAST_OUTCOME or stage > _LAST_STAGE or not least <= value <= most:
            raise ProtocolError("an EXIT frame with values that do not exist")
        return cls(
            _OUTCOMES[outcome],
            timed_out != 0,
            incomplete != 0,
            _STAGES[stage],
            value,
            out,
            err,
            cpu,
            rss,
            None if kills == UNLIMITED else kills,
        )


def frame(kind: FrameType, channel: int, payload: bytes = b"") -> bytes:
    """Return one frame to the warden."""
    return HEADER.pack(len(payload), channel, kind, 0, 0) + payload


def credit_frame(channel: int, stdout: int, stderr: int) -> bytes:
    """Return a frame that lets the warden send that many more bytes of each stream."""
    return frame(FrameType.CREDIT, channel, _U32.pack(stdout) + _U32.pack(stderr))


def kill_frame(channel: int, signal: int | None) -> bytes:
    """Return a frame that ends a command's tree, or sends it one signal."""
    return frame(FrameType.KILL, channel, _U32.pack(signal or 0))


def resize_frame(channel: int, rows: int, columns: int) -> bytes:
    """Return a frame that sets the size of a command's terminal."""
    return frame(FrameType.RESIZE, channel, _U32.pack(rows) + _U32.pack(columns))


def limit_frame(channel: int, seconds: float) -> bytes:
    """Return a frame that sets how long a command may run from now."""
    return frame(FrameType.LIMIT, channel, _U64.pack(_milliseconds(seconds)))


def lifetime_frame(seconds: float) -> bytes:
    """Return a frame that sets how long the sandbox lives from now."""
    return frame(FrameType.LIFETIME, 0, _U64.pack(_milliseconds(seconds)))


def token_frame(token: bytes) -> bytes:
    """Return a frame with the 32 bytes by which a broken stream can be taken up again."""
    return frame(FrameType.TOKEN, 0, token)


def _milliseconds(seconds: float, most: int = 1 << 60) -> int:
    return max(1, min(most, round(seconds * 1000)))


def start_frame(
    channel: int,
    argv: Sequence[bytes],
    *,
    env: Sequence[bytes] = (),
    cwd: bytes = b".",
    fallback: bytes = b"",
    operation: Operation = Operation.PROGRAM,
    numbers: tuple[int, int] = (0, 0),
    flags: int = 0,
    timeout: float | None = None,
    grace: float = 0.0,
    window: int = 0,
    cap: int | None = None,
    stdin: bytes = b"",
) -> bytes:
    """Return a START frame.

    Args:
        channel: The number by which all later frames name this command.
        argv: The program and its arguments, or a file operation's paths.
        env: `NAME=value` strings.
        cwd: Relative to the workspace.
        fallback: Another program if `argv[0]` is not found.
        operation: A file operation instead of a program.
        numbers: The two numbers that some file operations take; a terminal's rows and columns.
        flags: Options.
        timeout: Seconds until TERM; None for no deadline.
        grace: Seconds from TERM to KILL.
        window: Bytes of each stream that may be sent before the first credit.
        cap: Bytes of each stream to send at all; None for everything.
        stdin: The first bytes of stdin, at most `STDIN_WINDOW`.
    """
    head = _START.pack(
        flags,
        operation,
        0 if timeout is None else _milliseconds(timeout),
        _milliseconds(grace, 0xFFFFFFFF) if grace else 0,
        window,
        UNLIMITED if cap is None else cap,
        numbers[0],
        numbers[1],
        len(argv),
        len(env),
        len(stdin),
        0,
    )
    texts = b"\0".join((cwd, fallback, *argv, *env, b""))
    return frame(FrameType.START, channel, b"".join((head, texts, stdin)))
