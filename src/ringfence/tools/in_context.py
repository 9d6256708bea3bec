"""Code that finds what earlier code has defined, as a tool."""

from __future__ import annotations

from ..contexts import CodeContexts, CodeResult, ErrorOutput, RichOutput, StreamOutput
from ..errors import ContextLostError, LimitError, ToolError
from ..models import TIMEOUT_MARKER
from .text import MAX_TEXT, cut

__all__ = ("end_text", "result_text", "run_in_context")


async def run_in_context(
    contexts: CodeContexts,
    context: str,
    code: str,
    timeout: float | None = None,
    language: str = "python",
) -> str:
    """Run Python in a context of a name, which is made when it is first used.

    One whose Python has died is begun anew, and the text says so.

    Args:
        contexts: Where.
        context: The name.
        code: What to run.
        timeout: Seconds; default 30, clamped to the sandbox's maximum.
        language: Must be `python`.

    Raises:
        ToolError: There are no contexts for the language, or as many as there can be.
        CommandError: The name or the code can't be right.
        ContextError: The sandbox has no kernel.
        SandboxError: The sandbox could not run it.
    """
    if language != "python":
        raise ToolError(f"contexts are for python; run {language} without one")
    known = {one.id: one for one in await contexts.list_contexts()}
    note = ""
    try:
        if context not in known:
            await contexts.create_context(name=context)
        elif not known[context].alive:
            note = f"[context {context} is new: {known[context].lost}; its variables are gone]\n"
            await contexts.restart_context(context)
        result = await contexts.run_code(code, context=context, timeout=timeout)
    except LimitError as error:
        if error.limit != "code_contexts":
            raise
        raise ToolError(f"{error.message}; there are {', '.join(known)}") from None
    except ContextLostError as error:
        said = result_text(error.result) + "\n" if error.result is not None else ""
        return (
            f"{note}{said}[the Python of context {context} has died: {error.cause}. Its variables "
            "are gone, files are not; the next call starts a new one]"
        )
    return f"{note}{result_text(result)}\n{end_text(result, context)}"


def result_text(result: CodeResult, max_text: int = MAX_TEXT) -> str:
    """Return what code gave back as text for a model, without how it ended."""
    parts = []
    for output in result.outputs:
        if isinstance(output, StreamOutput):
            parts.append(output.text)
        elif isinstance(output, ErrorOutput):
            parts.append(output.traceback)
        else:
            parts.append(_shown(output))
    text = "\n".join(part.removesuffix("\n") for part in parts)
    notes = f"\n[cut: {result.cut_bytes} bytes were not kept]" if result.cut_bytes else ""
    return (cut(text, max_text) or "(no output)") + notes


def _shown(output: RichOutput) -> str:
    """Return what can be read of something that is shown, and what else there is of it."""
    pictures = [form for form in output.data if form.startswith("image/")]
    told = [f"[{form}, {len(output.data[form])} characters]" for form in pictures]
    told += [f"[{form}: {size} bytes were left out]" for form, size in output.cut.items()]
    return "\n".join([output.text, *told] if output.text is not None else told)


def end_text(result: CodeResult, context: str) -> str:
    """Return how code in a context ended, as a line for a model."""
    if result.kernel_lost:
        return (
            f"{TIMEOUT_MARKER[:-1]}; the Python of context {context} did not heed the interrupt "
            "and was ended, its variables are gone]"
        )
    if result.timed_out:
        return TIMEOUT_MARKER
    if result.error is not None:
        return f"[exception: {result.error.name:.100}]"
    return "[done]"
