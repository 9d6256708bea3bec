"""Calling a tool with the arguments that a model gave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..backend import Sandbox
from ..contexts import CodeContexts
from ..errors import (
    CommandError,
    CommandMissingError,
    ContextError,
    SandboxError,
    SandboxLostError,
    ToolError,
    WorkspaceError,
)
from ..sessions import Session
from .definitions import CODE_IN_CONTEXT, TOOLS, anthropic_tools, available, openai_tools
from .in_context import run_in_context

__all__ = ("NEW_WORKSPACE", "ToolOutput", "Toolkit", "call_tool", "check_arguments", "failure")

NEW_WORKSPACE = "[the workspace is new: files of earlier calls are gone]"


@dataclass(frozen=True)
class ToolOutput:
    """What a model gets for its call.

    Attributes:
        text: For it to read.
        is_error: Whether the call failed; a program that failed is no error.
        code: The code of the error, or None.
    """

    text: str
    is_error: bool = False
    code: str | None = None


async def call_tool(
    sandbox: Sandbox, name: str, arguments: Mapping[str, Any] | str | None
) -> ToolOutput:
    """Call a tool, and answer what a model can mend with a text instead of an exception.

    That is: a tool that is not there, arguments that it can't take, a file operation that failed,
    and a sandbox that was lost, after which the next call gets a new one.

    Args:
        sandbox: Where; a session, or any sandbox.
        name: The tool's name.
        arguments: As the model gave them: an object, or the JSON text of one.

    Raises:
        SandboxError: The sandbox can't be had: a matter for whoever runs it.
    """
    try:
        function, given = _checked(sandbox, name, arguments)
        return ToolOutput(await function(sandbox, **given))
    except (
        SandboxLostError, ToolError, CommandError, CommandMissingError, WorkspaceError,
    ) as error:  # fmt: skip
        return failure(error)


def failure(error: SandboxError) -> ToolOutput:
    """Return what a model is told of an error."""
    if isinstance(error, SandboxLostError):
        text = (
            f"[the sandbox was lost: {error.cause}. All files in /workspace are gone; "
            "the next call starts in a new, empty workspace.]"
        )
        return ToolOutput(text, True, error.code)
    return ToolOutput(f"[error: {error}]", True, error.code)


class Toolkit:
    """The tools of one sandbox, as an agent has them.

    It tells the model when its workspace is not the one that it knew.

    Args:
        sandbox: A session, or any sandbox.
        contexts: Its code contexts, opened; with them `run_code` takes the name of one.
    """

    def __init__(self, sandbox: Sandbox, *, contexts: CodeContexts | None = None) -> None:
        self.sandbox = sandbox
        self._contexts = contexts
        self._known = 0

    async def call(self, name: str, arguments: Mapping[str, Any] | str | None) -> ToolOutput:
        """Call a tool; see `call_tool`."""
        if self._contexts is not None and name == CODE_IN_CONTEXT.name:
            output = await self._call_in_context(self._contexts, name, arguments)
        else:
            output = await call_tool(self.sandbox, name, arguments)
        if not self._is_new_workspace():
            return output
        return ToolOutput(f"{NEW_WORKSPACE}\n{output.text}", output.is_error, output.code)

    def openai(self) -> list[dict[str, Any]]:
        """Return the definitions of what this sandbox has, for OpenAI's chat completions."""
        return openai_tools(
            self.sandbox.capabilities,
            in_background=_is_session(self.sandbox),
            in_contexts=self._contexts is not None,
        )

    def anthropic(self) -> list[dict[str, Any]]:
        """Return the definitions of what this sandbox has, for Anthropic's messages."""
        return anthropic_tools(
            self.sandbox.capabilities,
            in_background=_is_session(self.sandbox),
            in_contexts=self._contexts is not None,
        )

    async def _call_in_context(
        self, contexts: CodeContexts, name: str, arguments: Mapping[str, Any] | str | None
    ) -> ToolOutput:
        try:
            given = check_arguments(name, CODE_IN_CONTEXT.parameters, _as_object(arguments))
            if "context" not in given:
                return await call_tool(self.sandbox, name, given)
            return ToolOutput(await run_in_context(contexts, **given))
        except (SandboxLostError, ToolError, CommandError, ContextError) as error:
            return failure(error)

    def _is_new_workspace(self) -> bool:
        session = self.sandbox
        if not isinstance(session, Session) or session.generation == self._known:
            return False
        self._known = session.generation
        return session.has_restarted


def _checked(
    sandbox: Sandbox, name: str, arguments: Mapping[str, Any] | str | None
) -> tuple[Any, dict[str, Any]]:
    """Return the function and its arguments.

    Raises:
        ToolError: There is no such tool here, or it can't take them.
    """
    able = available(sandbox.capabilities, in_background=_is_session(sandbox))
    names = [tool.name for tool in able]
    if name not in names:
        raise ToolError(f"there is no tool {name!r:.80}; there are {', '.join(names)}")
    tool = TOOLS[name]
    return tool.function, check_arguments(name, tool.parameters, _as_object(arguments))


def check_arguments(
    name: str, parameters: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a tool's arguments without those that are null.

    Args:
        name: The tool's name.
        parameters: The JSON Schema of its arguments.
        given: As the model gave them.

    Raises:
        ToolError: The tool can't take them; it names the argument and what it takes.
    """
    properties: dict[str, dict[str, Any]] = parameters["properties"]
    if unknown := [key for key in given if key not in properties]:
        raise ToolError(
            f"{name} has no argument {unknown[0]!r:.80}; it has {', '.join(properties)}"
        )
    given = {key: value for key, value in given.items() if value is not None}
    if missing := [key for key in parameters["required"] if key not in given]:
        raise ToolError(f"{name} needs the argument {missing[0]!r}")
    for key, value in given.items():
        if fault := _fault(value, properties[key]):
            raise ToolError(f"{name}: {key} {fault}, not {_short(value)}")
    return given


def _is_session(sandbox: Sandbox) -> bool:
    return isinstance(sandbox, Session)


def _as_object(arguments: Mapping[str, Any] | str | None) -> dict[str, Any]:
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ToolError(f"the arguments are not JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise ToolError(f"the arguments are an object, not {_short(arguments)}")
    return dict(arguments)


_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
}


def _fault(value: object, schema: Mapping[str, Any]) -> str | None:
    """Return what is wrong with an argument, or None."""
    kind = schema["type"]
    if not isinstance(value, _KINDS[kind]) or (isinstance(value, bool) and kind != "boolean"):
        return f"is {'an' if kind[0] in 'ai' else 'a'} {kind}"
    if "enum" in schema and value not in schema["enum"]:
        return f"is one of {', '.join(schema['enum'])}"
    if isinstance(value, str) and len(value) < schema.get("minLength", 0):
        return "may not be empty"
    if isinstance(value, str) and len(value) > schema.get("maxLength", len(value)):
        return f"has at most {schema['maxLength']} characters"
    if isinstance(value, list):
        return _fault_of_list(value, schema)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
        if not -(2**63) < value < 2**63:  # NaN is neither
            return "is a finite number"
        if low is not None and value < low:
            return f"is at least {low}"
        if above is not None and value <= above:
            return f"is above {above}"
        if "maximum" in schema and value > schema["maximum"]:
            return f"is at most {schema['maximum']}"
    return None


def _fault_of_list(values: list[Any], schema: Mapping[str, Any]) -> str | None:
    if len(values) > schema["maxItems"]:
        return f"has at most {schema['maxItems']} items"
    faults = (_fault(value, schema["items"]) for value in values)
    return next((f"has an item that {fault}" for fault in faults if fault), None)


def _short(value: object) -> str:
    return f"{value!r:.80}"
