"""What a model is told of the tools, in the forms that model providers take."""

from __future__ import annotations

import copy
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..models import Capabilities
from . import background, files, functions
from .background import MAX_WAIT
from .files import DEFAULT_ENTRIES, MAX_ENTRIES, MAX_READ
from .text import MAX_TEXT

__all__ = ("CODE_IN_CONTEXT", "TOOLS", "Tool", "anthropic_tools", "available", "openai_tools")


@dataclass(frozen=True)
class Tool:
    """One tool.

    Attributes:
        name: What a model calls it.
        description: What it is told of it.
        parameters: The JSON Schema of its arguments, an object.
        function: What is called, with the sandbox first.
        runs_programs: Whether it needs a sandbox that runs any program.
        in_background: Whether it needs a session, which has background commands.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Coroutine[Any, Any, str]] = field(repr=False)
    runs_programs: bool = False
    in_background: bool = False


_TIMEOUT = {
    "type": "number",
    "description": "Seconds until the command is ended. Default 30, at most 300.",
    "exclusiveMinimum": 0,
}
_ID = {"type": "string", "description": "The command's id, such as c1.", "minLength": 1}
_WAIT = {
    "type": "number",
    "description": f"Seconds to wait for new output, at most {MAX_WAIT:g}.",
    "minimum": 0,
    "maximum": MAX_WAIT,
}
_PATH = {
    "type": "string",
    "description": "Relative to /workspace, or absolute below it.",
    "minLength": 1,
}


def _object(required: Iterable[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_ALL = (
    Tool(
        "terminal",
        "Run a shell command in the sandbox and get its output and exit code. Files in /workspace "
        "stay from one call to the next; the current directory and variables do not.",
        _object(
            ["command"],
            command={"type": "string", "description": "For bash -c.", "minLength": 1},
            timeout=_TIMEOUT,
        ),
        functions.terminal,
        runs_programs=True,
    ),
    Tool(
        "run_code",
        "Run a program in the sandbox and get what it prints. Each call is a new process; write "
        "files to /workspace to keep something.",
        _object(
            ["language", "code"],
            language={"type": "string", "enum": ["python", "bash", "javascript"]},
            code={"type": "string", "description": "The whole program."},
            timeout=_TIMEOUT,
        ),
        functions.run_code,
        runs_programs=True,
    ),
    Tool(
        "write_file",
        "Write a text file in the sandbox; directories above it are made.",
        _object(
            ["path", "content"],
            path=_PATH,
            content={"type": "string"},
            append={
                "type": "boolean",
                "description": "Add to the end instead of replacing. Default false.",
            },
        ),
        files.write_file,
    ),
    Tool(
        "read_file",
        "Read a text file in the sandbox, or a part of it.",
        _object(
            ["path"],
            path=_PATH,
            offset={
                "type": "integer",
                "description": "The byte to begin with. Default 0.",
                "minimum": 0,
            },
            limit={
                "type": "integer",
                "description": f"The most bytes to return. Default {MAX_TEXT}.",
                "minimum": 1,
                "maximum": MAX_READ,
            },
        ),
        files.read_file,
    ),
    Tool(
        "list_files",
        "List the files in the sandbox's workspace, or below one directory of it.",
        _object(
            [],
            path=_PATH,
            recursive={
                "type": "boolean",
                "description": "Look into directories too. Default true.",
            },
            limit={
                "type": "integer",
                "description": f"The most names to return. Default {DEFAULT_ENTRIES}.",
                "minimum": 1,
                "maximum": MAX_ENTRIES,
            },
        ),
        files.list_files,
    ),
    Tool(
        "start_command",
        "Start a shell command that runs on in the background, such as a server, a watcher or an "
        "interactive program. Returns its id and its first output at once. Its stdin stays open "
        "for write_input. Use terminal instead for commands that end soon.",
        _object(
            ["command"],
            command={"type": "string", "description": "For bash -c.", "minLength": 1},
            terminal={
                "type": "boolean",
                "description": "Give it a terminal, for programs that need one. Default false.",
            },
            wait=_WAIT,
        ),
        background.start_command,
        runs_programs=True,
        in_background=True,
    ),
    Tool(
        "read_output",
        "Read what a background command has written, stdout and stderr together, and whether it "
        "still runs. Without an offset you get the end of it.",
        _object(
            ["command_id"],
            command_id=_ID,
            offset={
                "type": "integer",
                "description": "The byte to begin with, as the last call told it.",
                "minimum": 0,
            },
            wait=_WAIT,
            limit={
                "type": "integer",
                "description": f"The most bytes to return. Default {MAX_TEXT}.",
                "minimum": 1,
                "maximum": MAX_TEXT,
            },
        ),
        background.read_output,
        runs_programs=True,
        in_background=True,
    ),
    Tool(
        "write_input",
        "Send text to the stdin of a background command, and read what it writes then. End a line "
        "with \\n. In a terminal, \\u0003 is Ctrl-C and \\u001b is Escape.",
        _object(
            ["command_id"],
            command_id=_ID,
            text={"type": "string", "description": "Sent as it is."},
            end={
                "type": "boolean",
                "description": "End its input after that. Default false.",
            },
            wait=_WAIT,
        ),
        background.write_input,
        runs_programs=True,
        in_background=True,
    ),
    Tool(
        "stop_command",
        "End a background command and all that it has started.",
        _object(
            ["command_id"],
            command_id=_ID,
            interrupt={
                "type": "boolean",
                "description": "Only interrupt it, as Ctrl-C does. Default false.",
            },
        ),
        background.stop_command,
        runs_programs=True,
        in_background=True,
    ),
    Tool(
        "list_commands",
        "List the background commands that run, and those that ended lately.",
        _object([]),
        background.list_commands,
        runs_programs=True,
        in_background=True,
    ),
)

CODE_IN_CONTEXT = Tool(
    "run_code",
    "Run a program in the sandbox and get what it prints. Without a context each call is a new "
    "process. With one, Python finds there what earlier code in it has defined, and shows the "
    "value of its last line.",
    _object(
        ["language", "code"],
        language={"type": "string", "enum": ["python", "bash", "javascript"]},
        code={"type": "string", "description": "The whole program."},
        context={
            "type": "string",
            "description": "A name of your choice for what is to be kept together. Python only.",
            "minLength": 1,
            "maxLength": 64,
        },
        timeout=_TIMEOUT,
    ),
    functions.run_code,
    runs_programs=True,
)
"""What `run_code` is where there are code contexts."""

TOOLS: dict[str, Tool] = {tool.name: tool for tool in _ALL}
"""Every tool by its name."""


def available(
    capabilities: Capabilities | None = None,
    *,
    in_background: bool = False,
    in_contexts: bool = False,
) -> list[Tool]:
    """Return the tools that a sandbox has; all of them if it is not said which.

    Args:
        capabilities: Leave out what a sandbox with these does not have.
        in_background: Whether it is a session, which has background commands.
        in_contexts: Whether code can be run in contexts.
    """
    return [
        CODE_IN_CONTEXT if in_contexts and tool.name == CODE_IN_CONTEXT.name else tool
        for tool in TOOLS.values()
        if capabilities is None
        or (
            (capabilities.arbitrary_programs if tool.runs_programs else capabilities.files)
            and (in_background or not tool.in_background)
        )
    ]


def openai_tools(
    capabilities: Capabilities | None = None,
    *,
    in_background: bool = False,
    in_contexts: bool = False,
) -> list[dict[str, Any]]:
    """Return the definitions as OpenAI's chat completions take them.

    Args:
        capabilities: Leave out what a sandbox with these does not have.
        in_background: Whether it is a session, which has background commands.
        in_contexts: Whether code can be run in contexts.
    """
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": copy.deepcopy(tool.parameters),
            },
        }
        for tool in available(capabilities, in_background=in_background, in_contexts=in_contexts)
    ]


def anthropic_tools(
    capabilities: Capabilities | None = None,
    *,
    in_background: bool = False,
    in_contexts: bool = False,
) -> list[dict[str, Any]]:
    """Return the definitions as Anthropic's messages take them.

    Args:
        capabilities: Leave out what a sandbox with these does not have.
        in_background: Whether it is a session, which has background commands.
        in_contexts: Whether code can be run in contexts.
    """
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "input_schema": copy.deepcopy(tool.parameters),
        }
        for tool in available(capabilities, in_background=in_background, in_contexts=in_contexts)
    ]
