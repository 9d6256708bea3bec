"""Sandboxes for smolagents: `CodeAgent(..., executor=SmolagentsExecutor(sandbox))`.

The code that the model writes runs in a code context, so that it finds what its earlier steps have
defined; the agent itself, its model and its keys stay outside. Tools are sent into the sandbox as
their source and run there. Nothing that comes back is unpickled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Self

from ._missing import missing

try:
    from smolagents import Tool
    from smolagents.local_python_executor import CodeOutput
    from smolagents.monitoring import AgentLogger, LogLevel
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.utils import AgentError
except ModuleNotFoundError as error:
    raise missing("smolagents", error) from error


from .. import sync
from ..contexts import CodeContext, CodeResult, ContextLimits, ErrorOutput, StreamOutput
from ..errors import ConfigError, ContextLostError, SandboxClosedError, SandboxLostError
from ..models import TIMEOUT_MARKER

__all__ = ("SmolagentsExecutor",)

MAX_LOGS = 50_000
"""Characters of what code has printed that the agent gets, as with smolagents' own executors."""

# A final answer is JSON, of which a few bytes can be a hundred times as much in memory.
_LIMITS = ContextLimits(item_bytes=2 << 20, total_bytes=8 << 20)

# smolagents imports these with the tool for final answers, which then does without them.
_NOT_NEEDED = ["numpy", "PIL", "pillow"]
_IMPORT = re.compile(r"^import (numpy|PIL)$", re.MULTILINE)

_INSTALL = """
import importlib.metadata, re, subprocess, sys
def _is_there(name):
    try:
        return bool(importlib.metadata.version(re.split("[^A-Za-z0-9._-]", name)[0]))
    except importlib.metadata.PackageNotFoundError:
        return False
_missing = [name for name in {names!r} if not _is_there(name)]
if _missing:
    _pip = [sys.executable, "-m", "pip", "install", "-q", "--retries", "1", "--", *_missing]
    _done = subprocess.run(_pip, capture_output=True, text=True)
    if _done.returncode:
        raise ImportError("can't install " + ", ".join(_missing) + ": " + _done.stderr[-500:])
"""


class SmolagentsExecutor(RemotePythonExecutor):
    """Runs an agent's code in a sandbox. Use it in a `with` block, or call `cleanup`.

    Code that fails is an `AgentError`, which the agent shows to its model. So is code whose time
    was up, and code that took its kernel or sandbox down: then there is a new one, which has the
    tools again but no variables, and the error says so.

    Args:
        sandbox: A sandbox or session of `ringfence.sync`; it stays open.
        python: The sandbox's interpreter, a name or a path; it has the package `ipykernel`.
        timeout: Seconds for each piece of code; default: the sandbox's own.
        additional_imports: Packages that the code may need; those that are not there are
            installed with pip, for which the sandbox has to reach an index.
        logger: The agent's logger; default: one that is silent.

    Raises:
        ConfigError: It is no sandbox of `ringfence.sync`.
        KernelMissingError: The sandbox has no ipykernel; the hint says how to get one.
    """

    def __init__(
        self,
        sandbox: sync.Sandbox,
        *,
        python: str = "python3",
        timeout: float | None = None,
        additional_imports: Sequence[str] = (),
        logger: AgentLogger | None = None,
    ) -> None:
        if not isinstance(sandbox, sync.Sandbox):
            raise ConfigError(
                f"agents of smolagents block: they take a sandbox of ringfence.sync, "
                f"not {type(sandbox).__name__}",
                hint="open the backend with ringfence.sync.open_backend",
            )
        super().__init__(list(additional_imports), logger or AgentLogger(level=LogLevel.OFF))
        self.timeout = timeout
        self._tools: dict[str, Tool] = {}
        self._variables: dict[str, Any] = {}
        self._is_defining = False
        self._contexts: sync.CodeContexts | None = None
        contexts = sync.CodeContexts(sandbox, python=python, limits=_LIMITS)
        contexts.__enter__()
        self._contexts = contexts
        try:
            self._context: CodeContext = contexts.create_context()
            self.install_packages(self.additional_imports)
            self.installed_packages = [*self.additional_imports, *_NOT_NEEDED]
        except BaseException:
            self.cleanup()
            raise

    def send_tools(self, tools: dict[str, Tool]) -> None:
        """Define the agent's tools where its code runs."""
        self._tools = dict(tools)
        self._is_defining = True
        try:
            super().send_tools(tools)
        finally:
            self._is_defining = False

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Define variables where the agent's code runs; what is no JSON is refused."""
        self._variables = dict(variables)
        super().send_variables(variables)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Have packages in the sandbox.

        Raises:
            AgentError: One is not there and can't be installed.
        """
        if additional_imports:
            self.run_code_raise_errors(_INSTALL.format(names=list(additional_imports)))
        return additional_imports

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run code and return what it did.

        Raises:
            AgentError: It failed, its time was up, or its kernel or sandbox is gone.
            SandboxError: The sandbox can't be had.
        """
        contexts = self._contexts
        if contexts is None:
            raise SandboxClosedError("the executor has been cleaned up")
        if self._is_defining:
            code = _IMPORT.sub(r"try: import \1\nexcept ImportError: pass", code)
        try:
            result = contexts.run_code(code, context=self._context, timeout=self.timeout)
        except ContextLostError as error:
            raise self._lost(error.result, error.cause) from None
        except SandboxLostError as error:
            raise self._lost(None, f"its sandbox was lost: {error.cause}; files are gone") from None
        logs = _logs(result)
        if result.kernel_lost:
            raise self._lost(result, TIMEOUT_MARKER)
        if result.timed_out:
            raise AgentError(f"{logs}\n{TIMEOUT_MARKER}", self.logger)
        if result.error is not None:
            return self._ended(result.error, logs)
        value = result.value
        return CodeOutput(value.text if value else None, logs, is_final_answer=False)

    def cleanup(self) -> None:
        """End the code's kernel; the sandbox stays. Safe to call again."""
        contexts, self._contexts = self._contexts, None
        if contexts is not None:
            contexts.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.cleanup()

    def _ended(self, error: ErrorOutput, logs: str) -> CodeOutput:
        """Return the final answer, which comes as an exception, or raise any other."""
        if error.name != self.FINAL_ANSWER_EXCEPTION:
            raise AgentError(f"{logs}\n{error.traceback}", self.logger)
        if error.cut:
            raise AgentError("the final answer is too long; write it to a file", self.logger)
        answer = self._deserialize_final_answer(error.value, allow_pickle=False)
        return CodeOutput(answer, logs, is_final_answer=True)

    def _lost(self, result: CodeResult | None, cause: str) -> AgentError:
        """Begin anew, with the tools and variables that were sent, and return what to say of it."""
        contexts = self._contexts
        assert contexts is not None
        self._context = contexts.restart_context(self._context)
        tools, variables = self._tools, self._variables
        self._tools, self._variables = {}, {}  # what breaks it again is not sent for ever
        if variables:
            self.send_variables(variables)
        if tools:
            self.send_tools(tools)
        logs = _logs(result) if result is not None else ""
        return AgentError(
            f"{logs}\nPython was ended by this code: {cause}. All variables and imports are gone; "
            "define again what you need.",
            self.logger,
        )


def _logs(result: CodeResult) -> str:
    """Return what code has printed, the beginning and the end of it."""
    text = "".join(one.text for one in result.outputs if isinstance(one, StreamOutput))
    notes = f"\n[{result.cut_bytes} more bytes were not kept]" if result.cut_bytes else ""
    if len(text) > MAX_LOGS:
        half = MAX_LOGS // 2
        middle = f"\n[... {len(text) - 2 * half} characters left out ...]\n"
        text = f"{text[:half]}{middle}{text[-half:]}"
    return text + notes
