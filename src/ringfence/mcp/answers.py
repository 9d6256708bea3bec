"""What a tool returns, and what a client gets of it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp_types import CallToolResult, ContentBlock, ImageContent, TextContent

from ..errors import SandboxError
from ..tools.calling import NEW_WORKSPACE, failure

__all__ = ("ERROR_META", "Answer", "Picture", "as_result", "before_the_end", "error_result")

ERROR_META = "ringfence/error"
"""Where a failed call's result has the error's `code`, and whether it is `retryable`."""


@dataclass(frozen=True)
class Picture:
    """An image to be shown.

    Attributes:
        media_type: Such as `image/png`.
        data: The file.
    """

    media_type: str
    data: bytes


@dataclass(frozen=True)
class Answer:
    """What a tool did.

    Attributes:
        text: For a model to read.
        data: The same for a program, as the tool's output schema says.
        pictures: What goes with it.
        error: What failed after all that, or None.
        failed: Whether what was run ended in an exception, which `text` has, and which is no
            error of the call.
    """

    text: str
    data: Mapping[str, Any]
    pictures: tuple[Picture, ...] = ()
    error: SandboxError | None = None
    failed: bool = False


def before_the_end(text: str, more: str) -> str:
    """Return a text with more before its last line, which is how a program has ended."""
    said, newline, end = text.rpartition("\n")
    return f"{said}\n{more}{newline}{end}" if more else text


def as_result(answer: Answer, *, is_new: bool, handle: str) -> CallToolResult:
    """Return what the client gets.

    Args:
        answer: What the tool did.
        is_new: Whether the workspace is not the one that the client knew.
        handle: What a stateless client has to pass on, or empty.
    """
    lines = [NEW_WORKSPACE, answer.text] if is_new else [answer.text]
    if answer.error is not None:
        lines.append(failure(answer.error).text)
    data = dict(answer.data)
    if handle:
        data["session"] = handle
        lines.append(f"[session: {handle}]")
    content: list[ContentBlock] = [TextContent(text="\n".join(lines))]
    content += [
        ImageContent(data=base64.b64encode(one.data).decode("ascii"), mime_type=one.media_type)
        for one in answer.pictures
    ]
    return CallToolResult(
        content=content,
        structured_content=data,
        is_error=answer.error is not None or answer.failed,
        _meta=None if answer.error is None else _about(answer.error),
    )


def error_result(error: SandboxError, *, is_new: bool = False, handle: str = "") -> CallToolResult:
    """Return what a client gets for a call that failed; see `as_result`."""
    lines = [NEW_WORKSPACE] if is_new else []
    lines.append(failure(error).text)
    if handle:
        lines.append(f"[session: {handle}]")
    return CallToolResult(
        content=[TextContent(text="\n".join(lines))],
        is_error=True,
        _meta=_about(error),
    )


def _about(error: SandboxError) -> dict[str, Any]:
    return {ERROR_META: {"code": error.code, "retryable": error.retryable}}
