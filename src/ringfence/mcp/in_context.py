"""`run_code` in a context: code that finds what earlier code has left, and shows figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..contexts import CodeResult, RichOutput
from ..errors import ContextLostError, LimitError, SandboxError, ToolError
from ..tools.in_context import end_text, result_text
from ..tools.text import MAX_TEXT, cut
from .answers import Answer, Picture, before_the_end
from .calls import Call
from .images import recognize
from .options import McpOptions
from .pictures import bring_images

__all__ = ("run_in_context",)

MOST_FIGURES = 32
"""How many pictures that code shows come back from one call."""

_SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp")  # the best of one output first
_SMALLER = "make fewer or smaller ones, such as with a lower resolution"


async def run_in_context(
    call: Call,
    name: str,
    language: str,
    code: str,
    timeout: float | None,
    images: Sequence[str] | None,
) -> Answer:
    """Run code in a context of the client's and return what it gave.

    Raises:
        ToolError: There are no contexts for the language, or as many as may be.
        ContextError: The sandbox has no kernel.
        SandboxError: The sandbox could not run it.
    """
    if language != "python":
        raise ToolError(f"contexts are for python; run {language} without one")
    seconds = timeout or call.session.limits.timeout
    async with call.progress(seconds) as progress:
        contexts, began_anew = await call.contexts.ready(name)
        try:
            heard = None if progress is None else progress.heard
            result = await contexts.run_code(code, context=name, timeout=timeout, on_output=heard)
        except ContextLostError as error:
            lost = ContextLostError(
                f"the Python of context {name} has died: {error.cause}",
                cause=error.cause,
                backend=error.backend,
                hint="its variables are gone, files are not; the next call starts a new one",
            )
            if error.result is None:
                raise lost from None
            return _answer(call.options, name, began_anew, error.result, lost)
    answer = _answer(call.options, name, began_anew, result, None)
    shown = sum(len(one.data) for one in answer.pictures)
    found = await call.new_images.written(shown)
    pictures, failed, told = found.pictures, answer.error, found.told
    if images is not None:
        pictures, told = (), ""
        if failed is None:
            pictures, failed = await bring_images(call.session, call.options, images, shown)
    text = before_the_end(answer.text, told)
    return Answer(text, answer.data, answer.pictures + pictures, failed, answer.failed)


def _answer(
    options: McpOptions,
    name: str,
    began_anew: str | None,
    result: CodeResult,
    lost: ContextLostError | None,
) -> Answer:
    pictures, too_large = _figures(options, result.displays)
    stdout, stderr = cut(result.stdout, MAX_TEXT), cut(result.stderr, MAX_TEXT)
    data: dict[str, Any] = {
        "stdout": stdout,
        "stderr": stderr,
        "stdout_cut": stdout != result.stdout,
        "stderr_cut": stderr != result.stderr,
        "duration_s": round(result.duration_s, 6),
        "context": name,
        "context_is_new": began_anew is not None,
        "timed_out": result.timed_out,
        "left_out_bytes": result.cut_bytes,
    }
    if result.value is not None and result.value.text is not None:
        data["value"] = cut(result.value.text, MAX_TEXT)
    if (error := result.error) is not None:
        data["exception"] = {
            "name": cut(error.name, MAX_TEXT),
            "value": cut(error.value, MAX_TEXT),
            "traceback": cut(error.traceback, MAX_TEXT),
        }
    lines = [result_text(result)]
    if began_anew:
        lines.insert(0, f"[context {name} is new: {began_anew}; its variables are gone]")
    if lost is None:
        lines.append(end_text(result, name))
    return Answer("\n".join(lines), data, pictures, lost or too_large, not result.ok)


def _figures(
    options: McpOptions, displays: Sequence[RichOutput]
) -> tuple[tuple[Picture, ...], SandboxError | None]:
    """Return the pictures that were shown, and what keeps the first that can't be from the client.

    What says that it is a picture and is none stays as it is in the text, a remark.
    """
    found: list[Picture] = []
    room = options.images_bytes
    for output in displays:
        data = next(filter(None, map(output.picture, _SHOWN)), None)
        image = recognize(data) if data else None
        if data is None or image is None:
            continue
        if len(data) > options.image_bytes:
            fault = f"{len(data)} bytes, and at most {options.image_bytes} are shown"
        elif image.width * image.height > options.image_pixels:
            most = options.image_pixels
            fault = f"{image.width} x {image.height} pixels, and at most {most} in all are shown"
        elif len(data) > room:
            fault = f"more bytes than are left of one call's {options.images_bytes}"
        elif len(found) == MOST_FIGURES:
            fault = f"{MOST_FIGURES} before it, which is all that are shown"
        else:
            room -= len(data)
            found.append(Picture(image.media_type, data))
            continue
        error = LimitError("images", f"a figure has {fault}", hint=_SMALLER)
        return tuple(found), error
    return tuple(found), None
