"""The frames between the host and the warden; docs/protocol.md describes them.

What comes from a warden is hostile input: sizes are bounded, unknown types are refused, and no
length that the other side states is ever allocated in advance.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from heapq import nsmallest
from typing import NamedTuple

from ..errors import ProtocolError

__all__ = (
    "MAX_DATA",
    "MAX_START",
    "MAX_STRINGS",
    "MAX_WHOLE",
    "MODE_UNSET",
    "NOT_A_FILE",
    "STATUS",
    "STDIN_WINDOW",
    "TOKEN_SIZE",
    "VERSION",
    "WHOLE_HEAD",
    "Decoder",
    "Entry",
    "ExitFrame",
    "Feature",
    "FirstEntries",
    "FrameType",
    "Hello",
    "Operation",
    "Outcome",
    "Stage",
    "StartFlag",
    "credit_frame",
    "decode_entries",
    "decode_files",
    "decode_statuses",
    "encode_file",
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
MAX_NAME = 255
MAX_STATUS = 255
MODE_UNSET = 0xFFFFFFFF
NOT_A_FILE = 200
MAX_WHOLE = 512 << 10
WHOLE_HEAD = 8
STATUS = 4
UNLIMITED = 0xFFFFFFFFFFFFFFFF

_HEADER = struct.Struct("<IIBBH")
_START = struct.Struct("<IIQIIQQQIIII")
_HELLO = struct.Struct("<IIII16s")
_EXIT = struct.Struct("<BBBBiQQQQQ")
_ENTRY = struct.Struct("<QqII")
_WHOLE = struct.Struct("<II")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SIFTED = 4096  # entries that are worth the sorting


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


# The sizes that a payload from the warden may have.
_SIZES: dict[int, tuple[int, int, FrameType]] = {
    kind.value: (least, most, kind)
    for kind, least, most in (
        (FrameType.HELLO, _HELLO.size, _HELLO.size),
        (FrameType.STARTED, 4, 4),
        (FrameType.STDOUT, 1, MAX_DATA),
        (FrameType.STDERR, 1, MAX_DATA),
        (FrameType.STDIN_ACK, 4, 4),
        (FrameType.EXIT, _EXIT.size, _EXIT.size),
        (FrameType.PONG, 0, 64),
        (FrameType.FAULT, 4, 256),
    )
}
_UNKNOWN = (1, 0, FrameType.FAULT)


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
        version, pid, features, uid, instance = _HELLO.unpack(payload)
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
        outcome, timed_out, incomplete, stage, value, out, err, cpu, rss, kills = _EXIT.unpack(
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


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a directory, as a file operation writes it."""

    name: bytes
    size: int
    mtime_ns: int
    mode: int


class Decoder:
    """Cuts a byte stream into frames.

    Raises:
        ProtocolError: From `feed`, at the first frame that a warden can't have sent.
    """

    def __init__(self) -> None:
        self._part = bytearray()  # of the one frame that came cut

    def feed(self, data: bytes) -> Iterator[tuple[FrameType, int, bytes]]:
        """Add what arrived; return type, channel and payload of each frame that is complete."""
        part, at = self._part, 0
        while at < len(data):
            if not part and (found := _first(data, at)):
                known, channel, end = found
                payload = data[at + _HEADER.size : end]
                at = end
                yield known, channel, payload
                continue
            # Only what this frame lacks: whole ones are not copied twice.
            lacking = _HEADER.size if len(part) < _HEADER.size else _told(part, 0)[2]
            piece = data[at : at + lacking - len(part)]
            part += piece
            at += len(piece)
            if found := _first(part, 0):
                payload = bytes(memoryview(part)[_HEADER.size :])
                part.clear()
                yield found[0], found[1], payload


def _first(data: bytes | bytearray, at: int) -> tuple[FrameType, int, int] | None:
    """Return type, channel and end of the frame that begins there, if it is complete."""
    if len(data) - at < _HEADER.size:
        return None
    found = _told(data, at)
    return found if found[2] <= len(data) else None


def _told(data: bytes | bytearray, at: int) -> tuple[FrameType, int, int]:
    """Return type, channel and end of the frame of which there is the header."""
    length, channel, kind, flags, zero = _HEADER.unpack_from(data, at)
    least, most, known = _SIZES.get(kind, _UNKNOWN)
    if not least <= length <= most or flags or zero:
        raise ProtocolError(f"a frame of type {kind:#x} with {length} bytes")
    return known, channel, at + _HEADER.size + length


def frame(kind: FrameType, channel: int, payload: bytes = b"") -> bytes:
    """Return one frame to the warden."""
    return _HEADER.pack(len(payload), channel, kind, 0, 0) + payload


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


def decode_entries(data: bytes) -> Iterator[Entry]:
    """Return the entries that a listing wrote.

    Raises:
        ProtocolError: They do not add up.
    """
    end = 0
    for entry, end in _whole_entries(data):  # noqa: B007  # `end` is looked at below
        yield entry
    if end != len(data):
        raise ProtocolError("a directory entry that is cut")


def decode_files(data: bytes | bytearray, count: int) -> list[bytes | int]:
    """Return the content or the errno of each of so many files that were read together.

    Raises:
        ProtocolError: They do not add up.
    """
    found: list[bytes | int] = []
    whole = memoryview(data)
    at = 0
    for _ in range(count):
        if len(data) - at < _WHOLE.size:
            raise ProtocolError("fewer files than were asked for")
        status, length = _WHOLE.unpack_from(data, at)
        start = at + _WHOLE.size
        at = start + length
        if status > MAX_STATUS or length > (0 if status else min(MAX_WHOLE, len(data) - start)):
            raise ProtocolError("a file that can't be as it was told")
        found.append(status or bytes(whole[start:at]))
    if at != len(data):
        raise ProtocolError("more files than were asked for")
    return found


def encode_file(data: bytes, mode: int | None) -> tuple[bytes, bytes]:
    """Return what goes before a file that is to be written together with others, and the file."""
    return _WHOLE.pack(MODE_UNSET if mode is None else mode & 0o7777, len(data)), data


def decode_statuses(data: bytes | bytearray, count: int) -> list[int]:
    """Return the errno, or 0, of each of so many files that were written together.

    Raises:
        ProtocolError: They do not add up.
    """
    if len(data) != count * STATUS:
        raise ProtocolError("more or fewer files than were to be written")
    statuses = [status for (status,) in _U32.iter_unpack(data)]
    if any(status > MAX_STATUS for status in statuses):
        raise ProtocolError("a file that can't have been written as it was told")
    return statuses


class FirstEntries:
    """The first entries of a listing by their names, sifted while it comes.

    Memory is bounded by how many are wanted, whatever the other side sends.

    Attributes:
        total: How many there have been.

    Raises:
        ProtocolError: From `take` and `finish`: they do not add up.
    """

    def __init__(self, most: int) -> None:
        self.total = 0
        self._most = most
        self._rest = b""
        self._kept: list[Entry] = []

    def take(self, data: bytes) -> None:
        """Take what has come of the listing."""
        data = self._rest + data
        end = 0
        for entry, end in _whole_entries(data):  # noqa: B007  # `end` is looked at below
            self._kept.append(entry)
            self.total += 1
        self._rest = data[end:]
        if len(self._kept) > 2 * self._most + _SIFTED:
            self._sift()

    def finish(self) -> list[Entry]:
        """Return the first entries, sorted, when all has come."""
        if self._rest:
            raise ProtocolError("a directory entry that is cut")
        self._sift()
        return self._kept

    def _sift(self) -> None:
        self._kept = nsmallest(self._most, self._kept, key=lambda entry: entry.name)


def _whole_entries(data: bytes) -> Iterator[tuple[Entry, int]]:
    """Return the whole entries at the beginning, each with where it ends."""
    at = 0
    while len(data) - at >= _ENTRY.size:
        size, mtime_ns, mode, length = _ENTRY.unpack_from(data, at)
        start = at + _ENTRY.size
        at = start + length
        name = data[start:at]
        if not 0 < length <= MAX_NAME or b"/" in name or b"\0" in name:
            raise ProtocolError("a directory entry with a name that does not exist")
        if len(name) != length:
            return
        yield Entry(name, size, mtime_ns, mode), at
