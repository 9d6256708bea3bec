"""What the API server answers, and what its refusals say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

__all__ = ("RefusedError", "read_answer", "refusal", "refusal_of", "why")

_MAX_ANSWER = 64 << 20


class RefusedError(Exception):
    """The server answered, and said no.

    Attributes:
        status: The HTTP status.
        reason: The API's own word for it, such as `Forbidden`.
        message: What it said.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


async def read_answer(answer: aiohttp.ClientResponse) -> bytes:
    """Return an answer's body, which may be large, and not more than that."""
    parts = []
    size = 0
    async for data in answer.content.iter_any():
        size += len(data)
        if size > _MAX_ANSWER:
            raise aiohttp.ClientPayloadError("the answer is too large")
        parts.append(data)
    return b"".join(parts)


def refusal(status: int, data: bytes) -> RefusedError:
    """Return what an answer with an error says."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return RefusedError(status, "", data.decode("utf-8", "replace").strip()[:1000])
    return refusal_of(status, found)


def refusal_of(status: int, found: Mapping[str, Any]) -> RefusedError:
    """Return what a status object of the API says."""
    return RefusedError(
        status, str(found.get("reason") or ""), str(found.get("message") or "")[:1000]
    )


def why(error: Exception) -> str:
    """Return a fault of the connection as text."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
