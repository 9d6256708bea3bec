"""How much of a kernel's messages goes to the host. Runs inside the sandbox, with `_relay`.

A message has parts, bytes by name: of a stream its text, of an error its three texts, of a result
one part for each form that it has. What is too large is left out, or cut where it is text.
"""

from __future__ import annotations

import json
from typing import Any

MESSAGE_BYTES = 1024
"""What each message counts for, beside its parts."""

MAX_PARTS = 32
MAX_NAME = 120
MAX_TRACEBACK = 1 << 18


class Run:
    """What is sent back for one request, and how much of it has been."""

    def __init__(self, name: str, request: str, item: int, total: int) -> None:
        self.name = name
        self.request = request
        self.item = item
        self.left = total
        self.cut = 0  # bytes that were left out without a message of their own
        self.is_idle = False
        self.replied_at = 0.0
        self.count = 0

    def omitted(self, kind: str, size: int) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """Return a message that says what is not there, or None where that is only counted."""
        if kind == "stream" or self.left < MESSAGE_BYTES:
            self.cut += size
            return None
        return self.message(kind, {}, {"*": size})

    def fitted(
        self, kind: str, content: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, bytes]] | None:
        """Return as much of a message as there is room for, or None."""
        wanted = _parts(kind, content)
        room = min(self.item, self.left - MESSAGE_BYTES)
        if room <= 0:
            self.cut += sum(map(len, wanted.values()))
            return None
        kept: dict[str, bytes] = {}
        cut: dict[str, int] = {}
        for name in sorted(wanted, key=lambda name: len(wanted[name])):  # what is small comes first
            data = wanted[name]
            most = min(room, MAX_TRACEBACK) if name == "traceback" else room
            if len(kept) == MAX_PARTS:
                cut["*"] = cut.get("*", 0) + len(data)
                continue
            if len(data) > most:
                # Of a text a part is better than nothing; of a picture or a page it is nothing.
                is_text = kind in ("stream", "error") or name == "text/plain"
                part = data[:most].decode("utf-8", "ignore").encode() if is_text else b""
                if kind == "stream":
                    self.cut += len(data) - len(part)
                elif len(cut) < MAX_PARTS:
                    cut[name] = len(data) - len(part)
                if not part:
                    continue
                data = part
            kept[name] = data
            room -= len(data)
        return self.message(kind, kept, cut)

    def message(
        self, kind: str, parts: dict[str, bytes], cut: dict[str, int]
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return a message, counted."""
        self.left -= MESSAGE_BYTES + sum(map(len, parts.values()))
        return {"is": "msg", "id": self.name, "type": kind, "cut": cut}, parts


def _parts(kind: str, content: dict[str, Any]) -> dict[str, bytes]:
    """Return what a message has, as bytes by name: what is not text is JSON's text."""
    if kind == "stream":
        return {str(content["name"])[:MAX_NAME]: _bytes(content["text"])}
    if kind == "error":
        lines = "\n".join(map(str, content["traceback"]))
        found = {"ename": content["ename"], "evalue": content["evalue"], "traceback": lines}
    else:
        found = content["data"]
    return {str(name)[:MAX_NAME]: _bytes(value) for name, value in found.items()}


def _bytes(value: Any) -> bytes:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("utf-8", "replace")
