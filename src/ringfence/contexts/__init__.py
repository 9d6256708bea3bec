"""Contexts in which code finds what earlier code has left: one Jupyter kernel each, in a sandbox.

::

    async with backend.create() as sandbox, CodeContexts(sandbox) as contexts:
        context = await contexts.create_context()
        await contexts.run_code("x = 6", context=context)
        result = await contexts.run_code("x * 7", context=context)
        print(result.value.text)
"""

from ._context import CodeContext
from ._kernel import ContextLimits
from .contexts import DEFAULT_CONTEXT, CodeContexts
from .outputs import CodeResult, ErrorOutput, Output, RichOutput, StreamOutput
from .run import CodeRun

__all__ = (
    "DEFAULT_CONTEXT",
    "CodeContext",
    "CodeContexts",
    "CodeResult",
    "CodeRun",
    "ContextLimits",
    "ErrorOutput",
    "Output",
    "RichOutput",
    "StreamOutput",
)
