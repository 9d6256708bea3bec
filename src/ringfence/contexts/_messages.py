"""What a relay says, taken apart. It comes from a sandbox: nothing in it is believed.

Only the short lines are JSON, so that what is parsed can't grow in memory; the parts after them
are bytes of a size that is known and bounded before the first of them is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ._bounds import MAX_NAME, MAX_PARTS, MESSAGE_BYTES

__all__ = ("Message", "MessageError", "Messages")

MAX_LINE = 32 * 1024
MAX_TEXT = 8192
_MAX_NUMBER = 2**62


class MessageError(Exception):
    """What came is no message of a relay."""


@dataclass
class Message:
    """One message.

    Attributes:
        kind: What it is: `ready`, `missing`, `msg`, `done` or `dead`.
        about: The fields of its line.
        parts: Its parts by name.
    """

    kind: str
    about: dict[str, Any]
    parts: dict[str, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """What it counts for, in bytes."""
        return MESSAGE_BYTES + sum(map(len, self.parts.values()))

    def text(self, name: str, most: int = MAX_TEXT) -> str:
        """Return a field that is text."""
        value = self.about.get(name)
        if not isinstance(value, str) or len(value) > most:
            raise MessageError(f"{name} is no text")
        return value.encode("utf-8", "replace").decode()

    def number(self, name: str) -> int:
        """Return a field that is a whole number."""
        return _number(self.about.get(name))

    def cut(self) -> dict[str, int]:
        """Return how much was left out, by the name of the part."""
        found = self.about.get("cut")
        if not isinstance(found, dict) or len(found) > 2 * MAX_PARTS:
            raise MessageError("cut is no table")
        return {_name(name): _number(size) for name, size in found.items()}


class Messages:
    """Takes bytes as they come and gives the messages that are whole.

    Args:
        most: The most bytes that the parts of one message may have together.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._line = bytearray()
        self._body = bytearray()
        self._wanted = 0
        self._open: tuple[Message, list[tuple[str, int]]] | None = None

    def feed(self, data: bytes) -> Iterator[Message]:
        """Take bytes and yield what is whole then.

        Raises:
            MessageError: It is no message.
        """
        view = memoryview(data)
        while view:
            if self._open is None:
                view = self._take_line(view)
            else:
                part = view[: self._wanted - len(self._body)]
                self._body += part
                view = view[len(part) :]
            if self._open is not None and len(self._body) == self._wanted:
                yield self._close(*self._open)

    def _take_line(self, view: memoryview) -> memoryview:
        piece = bytes(view[: MAX_LINE + 1 - len(self._line)])
        end = piece.find(b"\n")
        self._line += piece if end < 0 else piece[:end]
        if len(self._line) > MAX_LINE:
            raise MessageError("a line is too long")
        if end < 0:
            return view[len(piece) :]
        about = _object(bytes(self._line))
        self._line.clear()
        sizes = self._sizes(about.get("parts", []))
        self._wanted = sum(size for _, size in sizes)
        self._open = Message(str(about.get("is"))[:MAX_NAME], about), sizes
        return view[end + 1 :]

    def _sizes(self, found: object) -> list[tuple[str, int]]:
        if not isinstance(found, list) or len(found) > MAX_PARTS:
            raise MessageError("the parts are no list, or too many")
        sizes = []
        for one in found:
            if not isinstance(one, list) or len(one) != 2:
                raise MessageError("a part is no name and size")
            sizes.append((_name(one[0]), _number(one[1])))
        if min((size for _, size in sizes), default=0) < 0:
            raise MessageError("a part has no size")
        if sum(size for _, size in sizes) > self._most:
            raise MessageError("the parts are too large")
        return sizes

    def _close(self, message: Message, sizes: list[tuple[str, int]]) -> Message:
        at = 0
        for name, size in sizes:
            message.parts[name] = bytes(self._body[at : at + size])
            at += size
        self._open, self._wanted = None, 0
        self._body = bytearray()
        return message


def _object(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise MessageError("a line is no JSON") from None
    if not isinstance(found, dict):
        raise MessageError("a line is no object")
    return found


def _name(value: object) -> str:
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise MessageError("a part has no name")
    return value.encode("utf-8", "replace").decode()


def _number(value: object) -> int:
    if type(value) is not int or not -_MAX_NUMBER < value < _MAX_NUMBER:
        raise MessageError("a number is none")
    return value
