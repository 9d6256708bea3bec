"""Whatever a warden says, the host half ends in a result or a typed error, soon and in bounds."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringfence.backend import NewFile
from ringfence.errors import ProtocolError, SandboxError, SandboxLostError, WorkspaceError
from ringfence.models import (
    Capabilities,
    Command,
    Exit,
    Isolation,
    Limits,
    Result,
    SandboxSpec,
    TerminalSize,
)
from ringfence.warden import answers, frames
from ringfence.warden.connection import Connection
from ringfence.warden.decoder import Decoder
from ringfence.warden.sandbox import Host, WardenSandbox
from ringfence.warden.stream import ByteStream, SocketStream

from ..machine import forget_peak, status_bytes
from . import wire
from .mutations import cut_anew, damaged, seeded

pytestmark = [pytest.mark.fuzz, pytest.mark.timeout(240)]

FRAMES = 300_000
LARGEST = 128 << 10

HELLO = wire.frame(wire.HELLO, 0, struct.pack("<IIII16s", 1, 1, 63, 65534, b"i" * 16))


def started(channel: int) -> bytes:
    return wire.frame(wire.STARTED, channel, struct.pack("<I", 7))


def exited(channel: int, value: int = 0, outcome: int = 0) -> bytes:
    fields = struct.pack("<BBBBiQQQQQ", outcome, 0, 0, 0, value, 3, 3, 1000, 2000, 2**64 - 1)
    return wire.frame(wire.EXIT, channel, fields)


def entry(name: bytes) -> bytes:
    return struct.pack("<QqII", 5, 10**18, 0o100644, len(name)) + name


def whole(found: bytes | int) -> bytes:
    if isinstance(found, int):
        return struct.pack("<II", found, 0)
    return struct.pack("<II", 0, len(found)) + found


def statuses(*found: int) -> bytes:
    return struct.pack(f"<{len(found)}I", *found)


class Script(ByteStream):
    """A stream on which a fixed text arrives in pieces, and then the end."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces[::-1]
        self.sent = 0

    async def receive(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        return self._pieces.pop() if self._pieces else b""

    async def send_some(self, data: bytes | bytearray | memoryview) -> int:
        self.sent += len(data)
        return len(data)

    def close(self) -> None:
        self._pieces.clear()


def sandbox_over(stream: ByteStream) -> WardenSandbox:
    async def close() -> None:
        return

    return WardenSandbox(
        Connection(stream, lambda error: error),
        Host(close, None, {b"A": b"b"}),
        backend="fuzz",
        sandbox_id="fuzz",
        spec=SandboxSpec(),
        limits=Limits(),
        capabilities=Capabilities(isolation=Isolation.NAMESPACE, terminal=True),
    )


Use = Callable[[WardenSandbox], Awaitable[Any]]


@dataclass(frozen=True)
class Session:
    """What is done with a sandbox, and what a warden says to that."""

    use: Use
    frames: list[bytes]


async def stream_it(sandbox: WardenSandbox) -> Result:
    async with sandbox.stream("x") as run:
        async for _ in run:
            pass
        return run.result


async def feed_it(sandbox: WardenSandbox) -> Result:
    return await sandbox.exec(Command(("x",), stdin=b"a" * 150_000))


async def in_a_terminal(sandbox: WardenSandbox) -> Exit:
    process = await sandbox.start(Command(("x",), terminal=TerminalSize()), stdin_open=True)
    await process.resize(50, 132)
    await process.write_stdin(b"a" * 65536)
    await process.close_stdin()
    return await process.wait()


async def read_many(sandbox: WardenSandbox) -> None:
    found = await sandbox._read_files([b"a", b"b", b"c"], 100)
    assert len(found) == 3
    assert sum(len(one) for one in found if isinstance(one, bytes)) <= 100


async def write_many(sandbox: WardenSandbox) -> None:
    files = [NewFile(b"a", b"x" * 100_000), NewFile(b"b", b"", 0o600), NewFile(b"c", b"c")]
    found = await sandbox._write_files(files)
    assert len(found) == 3
    assert all(one is None or isinstance(one, WorkspaceError) for one in found)


async def two_at_once(sandbox: WardenSandbox) -> list[Result]:
    found: list[Result] = []

    async def one() -> None:
        found.append(await sandbox.exec("x"))

    async with anyio.create_task_group() as group:
        group.start_soon(one)
        group.start_soon(one)
    return found


def sessions() -> list[Session]:
    """Rows of frames that are right, so that damage to them goes deep."""
    output = [
        wire.frame(wire.STDOUT, 1, b"out\n" * 50),
        wire.frame(wire.STDERR, 1, "é".encode()[:1]),
        wire.frame(wire.STDERR, 1, "é".encode()[1:]),
    ]
    took = [
        wire.frame(wire.STDIN_ACK, 1, struct.pack("<I", size)) for size in (65536, 65536, 18928)
    ]
    second = [started(2), wire.frame(wire.STDOUT, 2, b"2"), exited(2, 9, wire.SIGNALED)]
    listing = entry(b"a") + entry(b"\xff\n") + entry(b"c" * 255)

    def answer(*parts: bytes, value: int = 0) -> list[bytes]:
        return [started(1), *(wire.frame(wire.STDOUT, 1, part) for part in parts), exited(1, value)]

    return [
        Session(lambda box: box.exec("x"), [started(1), *output, exited(1)]),
        Session(stream_it, [started(1), *output, exited(1, 3)]),
        Session(lambda box: box.exec("x"), [exited(1, 2, wire.NOT_STARTED)]),
        Session(feed_it, [started(1), *took, *output, exited(1)]),
        Session(in_a_terminal, [started(1), *took[:1], *output[:1], exited(1)]),
        Session(in_a_terminal, [exited(1, 28, wire.NOT_STARTED)]),
        Session(two_at_once, [started(1), *second, *output, exited(1)]),
        Session(lambda box: box.read_file("f"), answer(struct.pack("<Q", 4), b"text")),
        Session(lambda box: box.read_file("f", max_bytes=2), answer(struct.pack("<Q", 4) + b"te")),
        Session(
            lambda box: box.write_file("f", b"x" * 100_000), [started(1), *took[:1], exited(1)]
        ),
        Session(lambda box: box.list_files("d", max_entries=2), answer(listing[:30], listing[30:])),
        Session(read_many, answer(whole(b"one") + whole(b"")[:3], whole(b"")[3:] + whole(2))),
        Session(
            write_many,
            [started(1), *took[:1], *answer(statuses(0) + b"\x15", b"\0\0\0" + statuses(0))[1:]],
        ),
        Session(lambda box: box.stat("f"), answer(entry(b"f"))),
        Session(lambda box: box.move("f", "g"), answer(b"t", value=2)),
        Session(lambda box: box.make_dir("d"), answer()),
    ]


async def play(session: Session, pieces: list[bytes]) -> str:
    """Use a sandbox whose warden says that, and return how it ended."""
    sandbox = sandbox_over(Script(pieces))
    ended = "result"
    try:
        with anyio.fail_after(60):
            await sandbox.connection.greet()
            await session.use(sandbox)
    except* SandboxError as group:
        ended = type(group.exceptions[0]).__name__
    finally:
        await sandbox.aclose()
    return ended


@pytest.mark.parametrize("number", range(len(sessions())))
def test_the_sessions_are_right_before_damage_is_done(number: int) -> None:
    session = sessions()[number]
    ended = anyio.run(play, session, [HELLO, *session.frames])
    assert ended in ("result", "LimitError", "FileMissingError")


def test_damaged_sessions_end_in_a_result_or_a_typed_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rng, seed = seeded()
    ends: Counter[str] = Counter()
    count = 0

    async def play_all() -> None:
        nonlocal count
        known = sessions()
        while count < FRAMES:
            session = rng.choice(known)
            row = damaged(session.frames, rng)
            hello = HELLO if rng.random() < 0.95 else b"".join(damaged([HELLO], rng))
            count += len(row)
            ends[await play(session, [hello, *cut_anew(b"".join(row), rng)])] += 1

    anyio.run(play_all)
    with capsys.disabled():
        print(f"\n  {count} frames in {ends.total()} sessions, seed {seed}: {dict(ends)}", end="")
    assert count >= 100_000
    assert min(ends[end] for end in ("result", "ProtocolError", "SandboxLostError")) > 1000


def test_random_frames_do_not_confuse_the_decoder(capsys: pytest.CaptureFixture[str]) -> None:
    rng, seed = seeded()
    right = [row for session in sessions() for row in session.frames]
    ends: Counter[str] = Counter()
    for _ in range(20_000):
        decoder = Decoder()
        row = damaged(rng.choices(right, k=5), rng)
        try:
            for piece in cut_anew(b"".join(row), rng):
                for kind, _, payload in decoder.feed(piece):
                    assert isinstance(kind, frames.FrameType)
                    assert len(payload) <= LARGEST
                    if kind is frames.FrameType.EXIT:
                        frames.ExitFrame.decode(payload)
                assert len(decoder._part) <= LARGEST + 12
            ends["whole"] += 1
        except ProtocolError:
            ends["refused"] += 1
    with capsys.disabled():
        print(f"\n  {ends.total() * 5} frames to the decoder, seed {seed}: {dict(ends)}", end="")
    assert min(ends.values()) > 100


# Properties.

known_frames = st.builds(
    lambda kind, channel, size: wire.frame(kind, channel, b"p" * size),
    st.sampled_from((wire.STDOUT, wire.STDERR)),
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
)


@given(st.lists(known_frames, max_size=6), st.lists(st.integers(1, 200)))
def test_how_a_stream_is_cut_does_not_matter(row: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(row)
    decoder, found = Decoder(), []
    for size in [*cuts, len(whole)]:
        found += list(decoder.feed(whole[:size]))
        whole = whole[size:]
    assert [wire.frame(kind, channel, payload) for kind, channel, payload in found] == row


@given(st.binary(max_size=400))
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    try:
        found = list(Decoder().feed(data))
    except ProtocolError:
        return
    again = b"".join(wire.frame(kind, channel, payload) for kind, channel, payload in found)
    assert data.startswith(again)
    assert len(data) - len(again) < 12 + LARGEST


@given(st.binary(min_size=48, max_size=48))
def test_any_exit_is_one_that_exists_or_refused(payload: bytes) -> None:
    try:
        end = frames.ExitFrame.decode(payload)
    except ProtocolError:
        return
    assert 0 <= end.value <= 255
    assert end.outcome is not frames.Outcome.SIGNALED or 1 <= end.value <= 64


names = st.binary(min_size=1, max_size=40).filter(lambda name: not {0, 47} & set(name))


@settings(max_examples=200)
@given(st.lists(names, max_size=30), st.integers(0, 40), st.randoms(use_true_random=False))
def test_a_listing_that_comes_in_pieces(found: list[bytes], most: int, rng: random.Random) -> None:
    data = b"".join(entry(name) for name in found)
    assert [item.name for item in answers.decode_entries(data)] == found
    listing = answers.FirstEntries(most)
    for piece in cut_anew(data, rng):
        listing.take(piece)
    assert [item.name for item in listing.finish()] == sorted(found)[:most]
    assert listing.total == len(found)


@given(st.binary(max_size=600))
def test_any_listing_is_entries_or_refused(data: bytes) -> None:
    try:
        found = list(answers.decode_entries(data))
    except ProtocolError:
        return
    assert all(0 < len(item.name) <= 255 for item in found)


@given(st.lists(st.integers(1, 255) | st.binary(max_size=50), min_size=1, max_size=20))
def test_files_that_were_read_together(found: list[bytes | int]) -> None:
    data = b"".join(map(whole, found))
    assert answers.decode_files(data, len(found)) == found
    for count in (len(found) - 1, len(found) + 1):
        with pytest.raises(ProtocolError):
            answers.decode_files(data, count)


@given(st.binary(max_size=600), st.integers(0, 80))
def test_any_files_are_whole_or_refused(data: bytes, count: int) -> None:
    try:
        found = answers.decode_files(data, count)
    except ProtocolError:
        return
    assert b"".join(map(whole, found)) == data


@given(st.lists(st.integers(0, 255), max_size=20))
def test_files_that_were_written_together(found: list[int]) -> None:
    assert answers.decode_statuses(statuses(*found), len(found)) == found
    for wrong in (statuses(*found, 0), statuses(*found) + b"\0"):
        with pytest.raises(ProtocolError):
            answers.decode_statuses(wrong, len(found))


@given(st.binary(max_size=80), st.integers(0, 20))
def test_any_statuses_are_errnos_or_refused(data: bytes, count: int) -> None:
    try:
        found = answers.decode_statuses(data, count)
    except ProtocolError:
        return
    assert statuses(*found) == data


# Floods: an honest row, and then the same for ever.


def flood(frame: bytes) -> Iterator[bytes]:
    block = frame * max(1, (1 << 16) // len(frame))
    while True:
        yield block


FLOODS = {
    "output without credit": wire.frame(wire.STDOUT, 1, b"x" * LARGEST),
    "small output": wire.frame(wire.STDERR, 1, b"x"),
    "pids": started(1),
    "empty acknowledgements": wire.frame(wire.STDIN_ACK, 1, bytes(4)),
    "acknowledgements": wire.frame(wire.STDIN_ACK, 1, b"\0\1\0\0"),
    "entries": wire.frame(wire.STDOUT, 1, entry(b"n" * 255) * 100),
    "a frame without its end": struct.pack("<IIBBH", LARGEST, 1, wire.STDOUT, 0, 0),
    "pongs": wire.frame(wire.PONG, 1, b"x" * 64),
    "answers to pings": wire.frame(wire.PONG, 0, (1).to_bytes(8, "little")),
}


async def hear_another(sandbox: WardenSandbox) -> Result:
    """Leave the first command's output where it is."""
    await sandbox.start(Command(("x",)))
    return await sandbox.exec("y", timeout=0.5)


USES: dict[str, Use] = {
    "exec": lambda box: box.exec("x", timeout=0.5),
    "exec with a large cap": lambda box: box.exec(
        Command(("x",), output_bytes=3 << 19, timeout=0.5)
    ),
    "another": hear_another,
    "read": lambda box: box.read_file("f", max_bytes=100),
    "read many": lambda box: box._read_files([b"f"] * 10, 100),
    "write many": lambda box: box._write_files([NewFile(b"f", b"x" * 20_000)] * 10),
    "list": lambda box: box.list_files("d", max_entries=50),
    "stat": lambda box: box.stat("f"),
    "ping": lambda box: box.ping(timeout=0.5),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_neither_fills_the_memory_nor_stops_the_loop(
    name: str, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringfence.warden.files._FILE_TIMEOUT", 1.0)
    monkeypatch.setattr("ringfence.warden.sandbox.HOST_SLACK", 0.5)
    monkeypatch.setattr("ringfence.warden.files.HOST_SLACK", 0.5)
    monkeypatch.setattr("ringfence.execution.HOST_SLACK", 0.5)
    anyio.run(drown, FLOODS[name], USES[use])


async def drown(frame: bytes, use: Use) -> None:
    ours, theirs = socket.socketpair()
    sender = threading.Thread(target=pour, args=(theirs, frame))
    sender.start()
    sandbox = sandbox_over(SocketStream(ours))
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            await anyio.sleep(0.02)
            beats += 1

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(beat)
            began = anyio.current_time()
            forget_peak()
            before = status_bytes("VmRSS")
            with anyio.fail_after(60):
                await sandbox.connection.greet()
                with contextlib.suppress(SandboxLostError):
                    result = await use(sandbox)
                    assert isinstance(result, Result)
                    assert result.timed_out
            lasted = anyio.current_time() - began
            assert beats >= min(2, lasted / 0.5 - 1)  # a loop that is stopped has none
            group.cancel_scope.cancel()
        assert status_bytes("VmHWM") - before < 32 << 20
    finally:
        sandbox.connection.close()
        ours.close()
        sender.join()


def pour(end: socket.socket, frame: bytes) -> None:
    with end:
        try:
            end.sendall(HELLO)
            end.recv(1 << 16)  # the host has begun
            for block in flood(frame):
                end.sendall(block)
        except OSError:
            return  # the other end has had enough
