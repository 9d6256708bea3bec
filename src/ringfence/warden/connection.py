"""Many commands over one byte stream.

There is no task of its own that reads: whoever waits for something reads for all. The first
waiter becomes the reader and hands every frame to the channel that it belongs to; when it has what
it came for, or is cancelled, the next waiter takes over. So a sandbox needs no task group, works
on every event loop, and can be closed from any task.

Memory is bounded by credit: a channel says how much of each stream it will take, and a warden that
sends more is breaking the protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

import anyio

from ..errors import ProtocolError, SandboxLostError, StreamBrokenError
from ..models import Chunk, Stream
from ..process import HOST_SLACK
from .decoder import Decoder
from .frames import STDIN_WINDOW, ExitFrame, FrameType, Hello, frame
from .stream import ByteStream, asyncio_loop

__all__ = ("Channel", "Connection")

_NEVER = float("inf")
_FLUSH_SECONDS = 1.0
_MANY_CHUNKS = 1024
_SMALL_CHUNK = 1024


class Channel:
    """What has arrived for one command, and who waits for it."""

    __slots__ = (
        "chunks",
        "credit",
        "deadline",
        "end",
        "id",
        "pid",
        "stdin_free",
        "waiters",
        "waits",
    )

    def __init__(self, channel_id: int, window: int, stdin_free: int) -> None:
        self.id = channel_id
        self.chunks: deque[Chunk] = deque()
        self.credit: dict[Stream, int] = {"stdout": window, "stderr": window}
        self.stdin_free = stdin_free
        self.pid: int | None = None
        self.end: ExitFrame | None = None
        self.deadline = _NEVER
        self.waits = 0
        self.waiters: set[anyio.Event] = set()

    def has_news(self) -> bool:
        """Whether there is output to take, or it has ended."""
        return self.end is not None or bool(self.chunks)


class Connection:
    """The frames of one warden.

    Args:
        stream: The byte stream; it belongs to the connection from now on.
        on_lost: Called once, at once, when the other side can't be trusted any more: it must
            kill the sandbox and return the error that everybody waiting gets.
        loop: asyncio's event loop, for who makes one outside of a task.
    """

    def __init__(
        self,
        stream: ByteStream,
        on_lost: Callable[[SandboxLostError], SandboxLostError],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._stream = stream
        self._on_lost = on_lost
        self._decoder = Decoder()
        self._channels: dict[int, Channel] = {}
        self._next_id = 1
        self._reading = False
        self._waiting: dict[anyio.Event, None] = {}  # in the order of arrival
        self._unsent = bytearray()
        self._sending = False
        self._loop = loop or asyncio_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._pinging = Channel(0, 0, 0)
        self._pings = self._ponged = 0
        self.silent = False
        self.lost: SandboxLostError | StreamBrokenError | None = None
        self.hello: Hello | None = None

    def open_channel(self, window: int, stdin_free: int) -> Channel:
        """Return a new channel, or raise the `SandboxLostError` of a dead connection."""
        self.check()
        channel = Channel(self._next_id, window, stdin_free)
        self._next_id += 1
        self._channels[channel.id] = channel
        return channel

    @property
    def keeps_deadlines(self) -> bool:
        """Whether `watch` works on this event loop."""
        return self._loop is not None

    def watch(self, channel: Channel, seconds: float) -> None:
        """Give the connection up as `silent` if somebody waits for the channel after that time.

        One timer serves all channels, and is seldom touched: a cancel scope for each command
        would cost more than all the rest that is done for it.
        """
        assert self._loop is not None
        channel.deadline = self._loop.time() + seconds

    def _watch_wait(self, channel: Channel) -> None:
        """See to it that a wait that begins now has an end."""
        assert self._loop is not None
        now = self._loop.time()
        if channel.deadline < now:  # nobody has read since: its end may have been here for long
            channel.deadline = now + HOST_SLACK
        if self._timer is None or channel.deadline < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(channel.deadline, self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        assert self._loop is not None
        self._timer = None
        awaited = (channel.deadline for channel in self._channels.values() if channel.waits)
        first = min(awaited, default=_NEVER)
        if first <= self._loop.time():
            self.silent = True
            self.lose(SandboxLostError("it did not end a command in time", cause="silent"))
        elif first != _NEVER:
            self._timer = self._loop.call_at(first, self._look_at_deadlines)

    def check(self) -> None:
        """Raise the error of a connection that is lost."""
        if self.lost is not None:
            raise self.lost.with_traceback(None)

    def forget(self, channel: Channel) -> None:
        """Take a channel back of which the warden never heard."""
        del self._channels[channel.id]

    def queue(self, data: bytes) -> None:
        """Let a frame go out before the next one that is sent."""
        self._unsent += data

    async def send(self, data: bytes) -> None:
        """Send a whole frame. What a cancelled call leaves goes out before the next one."""
        if not self.send_now(data):
            await self.send_rest()

    def send_now(self, data: bytes) -> bool:
        """Send a frame without waiting; if that can't be done, `send_rest` must be awaited."""
        self.check()
        if self._sending:  # whoever is at it sends this too
            self._unsent += data
            return True
        if self._unsent:
            data = bytes(self._unsent + data)
            self._unsent.clear()
        try:
            sent = self._stream.send_now(data)
        except OSError:  # the next attempt meets it too, and has the time to ask why
            sent = 0
        if sent == len(data):
            return True
        self._unsent += data[sent:]
        return False

    async def send_rest(self) -> None:
        """Send what `send_now` has left."""
        self._sending = True
        try:
            await self._flush()
        except OSError:
            words = self._last_words()
            await self._stream.explain()
            raise self.lose(words) from None
        except BaseException:  # cancelled, and others rely on what is still unsent
            with anyio.move_on_after(_FLUSH_SECONDS, shield=True), contextlib.suppress(OSError):
                await self._flush()
            raise
        finally:
            self._sending = False

    def send_last(self, data: bytes) -> None:
        """Send a frame that nothing follows, if it can go without waiting; else it is dropped."""
        if self.lost is None and not self._unsent:
            with contextlib.suppress(OSError):
                self._stream.send_now(data)

    def _last_words(self) -> SandboxLostError:
        """Return why the other side has closed its stream, which it may have said before."""
        try:
            for kind, channel_id, payload in self._decoder.feed(self._stream.receive_now() or b""):
                self._take(kind, channel_id, payload)
        except SandboxLostError as error:
            return error
        return SandboxLostError("it has closed its stream", cause="died")

    async def _flush(self) -> None:
        while self._unsent:
            sent = await self._stream.send_some(self._unsent)
            del self._unsent[:sent]

    async def wait(self, channel: Channel, ready: Callable[[], bool]) -> None:
        """Return when `ready()` is true; until then, read for everybody or wait for who does.

        Raises:
            SandboxLostError: The connection is lost.
        """
        if channel.deadline != _NEVER:
            self._watch_wait(channel)
        channel.waits += 1
        try:
            while not ready():
                self.check()
                if self._reading:
                    await self._follow(channel)
                    continue
                self._reading = True
                try:
                    data = await self._stream.receive()
                    if not data:
                        await self._stream.explain()
                except ProtocolError as error:
                    raise self.lose(error) from None
                finally:
                    self._reading = False
                self._take_all(data)
        finally:
            channel.waits -= 1
            if self._waiting and not self._reading:
                self._hand_over()

    async def _follow(self, channel: Channel) -> None:
        event = anyio.Event()
        self._waiting[event] = None
        channel.waiters.add(event)
        try:
            await event.wait()
        finally:
            del self._waiting[event]
            channel.waiters.discard(event)

    def _take_all(self, data: bytes) -> None:
        """Take what has arrived; nothing is the end of the stream."""
        if not data:
            raise self.lose(SandboxLostError("it has ended", cause="died"))
        try:
            for kind, channel_id, payload in self._decoder.feed(data):
                self._take(kind, channel_id, payload)
        except ProtocolError as error:
            raise self.lose(error) from None

    def look(self) -> bool:
        """Take what has arrived; return False where that can't be done without waiting.

        Raises:
            SandboxLostError: What has arrived makes no sense.
        """
        if self._reading:  # who reads would wait on for what we had taken
            return False
        data = self._stream.receive_now()
        if data:
            self._take_all(data)
        return data is not None

    def _hand_over(self) -> None:
        for event in self._waiting:
            if not event.is_set():
                event.set()
                return

    def _take(self, kind: FrameType, channel_id: int, payload: bytes) -> None:
        channel = self._channels.get(channel_id)
        if channel is None or self.hello is None:
            self._take_unbound(kind, channel_id, payload)
            return
        if kind is FrameType.EXIT:
            channel.end = ExitFrame.decode(payload)
            del self._channels[channel_id]
        elif kind is FrameType.STDOUT or kind is FrameType.STDERR:
            stream: Stream = "stdout" if kind is FrameType.STDOUT else "stderr"
            channel.credit[stream] -= len(payload)
            if channel.credit[stream] < 0:
                raise ProtocolError("more output than there was credit for")
            if len(channel.chunks) < _MANY_CHUNKS or not _joined(channel.chunks, stream, payload):
                channel.chunks.append(Chunk(stream, payload))
        elif kind is FrameType.STARTED:
            channel.pid = int.from_bytes(payload, "little")
            return
        elif kind is FrameType.STDIN_ACK:
            channel.stdin_free += int.from_bytes(payload, "little")
            if channel.stdin_free > STDIN_WINDOW:
                raise ProtocolError("more of stdin was taken than was sent")
        else:
            raise ProtocolError(f"a {kind.name} frame out of place")
        for event in channel.waiters:
            event.set()

    def _take_unbound(self, kind: FrameType, channel_id: int, payload: bytes) -> None:
        """Take a frame that belongs to no command."""
        if channel_id == 0 and kind is FrameType.HELLO and self.hello is None:
            self.hello = Hello.decode(payload)
        elif channel_id == 0 and kind is FrameType.PONG and self.hello is not None:
            self._take_pong(int.from_bytes(payload, "little"))
        elif channel_id == 0 and kind is FrameType.FAULT:
            raise self.lose(_fault(int.from_bytes(payload[:4], "little"), payload[4:]))
        else:
            raise ProtocolError(f"a {kind.name} frame for channel {channel_id}, unknown here")

    def _take_pong(self, number: int) -> None:
        if not self._ponged < number <= self._pings:
            raise ProtocolError("an answer to a ping that nobody waits for")
        self._ponged = number
        for event in self._pinging.waiters:
            event.set()

    def close(self) -> None:
        """Close it in good order; whoever still waits gets a `SandboxLostError`."""
        self._end(SandboxLostError("it was closed", cause="closed"))

    def lose(self, error: SandboxLostError) -> SandboxLostError | StreamBrokenError:
        """Give the connection up, wake everybody, and return the error that they get."""
        return self.lost or self._end(self._on_lost(error))

    def break_off(self, error: StreamBrokenError) -> None:
        """Give the connection up, of which the other side lives and can be reached anew."""
        self._end(error)

    def _end(
        self, error: SandboxLostError | StreamBrokenError
    ) -> SandboxLostError | StreamBrokenError:
        if self.lost is None:
            self.lost = error
            self._stream.close()
            if self._timer is not None:
                self._timer.cancel()
            for event in self._waiting:
                event.set()
        return self.lost

    def take_early(self, data: bytes) -> bool:
        """Take what was received before there was a connection, and return if it was the hello."""
        self._take_all(data)
        return self.hello is not None

    async def greet(self) -> Hello:
        """Wait for the warden's first frame and return it."""
        channel = Channel(0, 0, 0)
        await self.wait(channel, lambda: self.hello is not None)
        assert self.hello is not None
        return self.hello

    async def ping(self) -> None:
        """Return when the warden has answered.

        Raises:
            SandboxLostError: The connection is lost.
        """
        self._pings += 1
        number = self._pings
        await self.send(frame(FrameType.PING, 0, number.to_bytes(8, "little")))
        await self.wait(self._pinging, lambda: self._ponged >= number)

    async def send_stdin(self, channel: Channel, data: bytes) -> None:
        """Send stdin within the warden's window."""
        view = memoryview(data)
        while view:
            await self.wait(channel, lambda: channel.stdin_free > 0 or channel.end is not None)
            if channel.end is not None:
                return
            part = view[: min(channel.stdin_free, 32 << 10)]
            view = view[len(part) :]
            channel.stdin_free -= len(part)
            await self.send(frame(FrameType.STDIN, channel.id, bytes(part)))


def _joined(chunks: deque[Chunk], stream: Stream, payload: bytes) -> bool:
    """Add to the stream's last chunk, if that is small and near; return whether it was.

    A byte takes a hundred times its size as a chunk of its own, and a program that nobody listens
    to may write its whole window byte by byte.
    """
    for place in (-1, -2):
        last = chunks[place]
        if last.stream == stream:  # what is before it must stay before it
            if len(last.data) < _SMALL_CHUNK:
                chunks[place] = Chunk(stream, last.data + payload)
                return True
            break
    return False


def _fault(code: int, text: bytes) -> SandboxLostError:
    shown = text.decode("ascii", "backslashreplace")
    cause = {1: "protocol violation", 2: "maximum age"}.get(code, "internal fault")
    return SandboxLostError(f"it ended itself: {shown}", cause=cause)
