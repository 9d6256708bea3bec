"""What a client is told of the tools: names, schemas of arguments and of results, hints."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mcp_types import Tool as McpTool
from mcp_types import ToolAnnotations

from ..models import Capabilities
from ..tools import TOOLS
from ..tools.definitions import CODE_IN_CONTEXT
from . import handlers
from .handlers import Handler
from .options import McpOptions

__all__ = ("END_SESSION", "ServedTool", "served_tools")

END_SESSION = "end_session"

MAX_CODE = 1_000_000
MAX_CONTENT = 4_000_000
MAX_PATH = 4096
MAX_IMAGES = 8

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_TRUTH = {"type": "boolean"}
_NUMBER = {"type": "number"}
_SESSION = {
    "type": "string",
    "description": "The session to work in, as the last line of an earlier result gave it. Without "
    "it you get a new one, with an empty workspace.",
    "minLength": 1,
    "maxLength": 200,
}
_IMAGES = {
    "type": "array",
    "items": {"type": "string", "minLength": 1, "maxLength": MAX_PATH},
    "maxItems": MAX_IMAGES,
    "description": "Image files (PNG, JPEG, GIF or WebP) that you want to see afterwards. Default: "
    "those that it has written at the top of /workspace; [] for none.",
}
_GIVEN = {
    "stdout": _TEXT,
    "stderr": _TEXT,
    "stdout_cut": _TRUTH,
    "stderr_cut": _TRUTH,
    "duration_s": _NUMBER,
}
_ENDED = {
    "exit_code": _WHOLE,
    "exit_reason": {
        "type": "string",
        "enum": ["exited", "signaled", "timed_out", "out_of_memory"],
    },
    "stdout_bytes": _WHOLE,
    "stderr_bytes": _WHOLE,
}
_FILE = {"path": _TEXT, "media_type": _TEXT}
_FILE_MORE = {
    "text": _TEXT,
    "offset": _WHOLE,
    "end": _WHOLE,
    "is_last": _TRUTH,
    "size": _WHOLE,
    "width": _WHOLE,
    "height": _WHOLE,
}
_NEWS = {
    "command_id": _TEXT,
    "running": _TRUTH,
    "output": _TEXT,
    "offset": _WHOLE,
    "next_offset": _WHOLE,
    "total_bytes": _WHOLE,
}
_EXIT = {"exit_code": _WHOLE, "exit_reason": _TEXT}


def _rows(required: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "array", "items": _output(required, more)}


def _output(required: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(more or {})},
        "required": list(required),
    }


_IN_CONTEXT = {
    "context": _TEXT,
    "context_is_new": _TRUTH,
    "timed_out": _TRUTH,
    "left_out_bytes": _WHOLE,
    "value": _TEXT,
    "exception": _output({"name": _TEXT, "value": _TEXT, "traceback": _TEXT}),
}


@dataclass(frozen=True)
class ServedTool:
    """A tool as this server has it.

    Attributes:
        name: What a client calls it.
        description: What a model is told of it.
        parameters: The JSON Schema of its arguments.
        output: The JSON Schema of its structured result.
        handler: What does it.
        reads_only: Whether it changes nothing.
        runs_programs: Whether it needs a sandbox that runs any program.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    output: Mapping[str, Any]
    handler: Handler = field(repr=False)
    reads_only: bool = False
    runs_programs: bool = True

    def definition(self) -> McpTool:
        """Return what a client is told."""
        return McpTool(
            name=self.name,
            description=self.description,
            input_schema=copy.deepcopy(dict(self.parameters)),
            output_schema=copy.deepcopy(dict(self.output)),
            annotations=ToolAnnotations(
                read_only_hint=self.reads_only,
                destructive_hint=not self.reads_only,
                open_world_hint=False,
            ),
        )


_OUTPUTS = {
    "write_file": _output({"path": _TEXT, "bytes": _WHOLE, "appended": _TRUTH}),
    "read_file": _output(_FILE, _FILE_MORE),
    "list_files": _output(
        {
            "entries": _rows({"path": _TEXT, "kind": _TEXT}, {"size": _WHOLE}),
            "left_out": _WHOLE,
            "unseen_directories": _WHOLE,
        }
    ),
    "start_command": _output(_NEWS, _EXIT),
    "read_output": _output(_NEWS, _EXIT),
    "write_input": _output(_NEWS, _EXIT),
    "stop_command": _output(_NEWS, _EXIT),
    "list_commands": _output(
        {
            "commands": _rows(
                {
                    "command_id": _TEXT,
                    "command": _TEXT,
                    "running": _TRUTH,
                    "age_s": _NUMBER,
                    "total_bytes": _WHOLE,
                },
                {"exit_code": _WHOLE},
            )
        }
    ),
}
_READERS = {"read_file", "list_files", "read_output", "list_commands"}
_BOUNDS = {"code": MAX_CODE, "content": MAX_CONTENT, "text": MAX_CONTENT, "path": MAX_PATH}
_NAMES = {"terminal": "run_command"}


def _taken_over(name: str, *, in_contexts: bool) -> ServedTool:
    """Return one of the package's own tools, as it is served."""
    tool = TOOLS[name]
    output = _OUTPUTS.get(name) or _output({**_GIVEN, **_ENDED})
    if in_contexts and name == CODE_IN_CONTEXT.name:
        tool, output = CODE_IN_CONTEXT, _output(_GIVEN, {**_ENDED, **_IN_CONTEXT})
    served = _NAMES.get(name, name)
    parameters = copy.deepcopy(tool.parameters)
    for key, schema in parameters["properties"].items():
        if schema["type"] == "string" and "enum" not in schema:
            schema.setdefault("maxLength", _BOUNDS.get(key, MAX_CODE))
    if served in ("run_command", "run_code"):
        parameters["properties"]["images"] = copy.deepcopy(_IMAGES)
    description = tool.description.replace("Use terminal instead", "Use run_command instead")
    if name == "read_file":
        description = "Read a text file in the sandbox or a part of it, or look at an image."
    return ServedTool(
        served,
        description,
        parameters,
        output,
        getattr(handlers, served),
        name in _READERS,
        tool.runs_programs,
    )


def _nothing() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


_EXPORT = ServedTool(
    "export_workspace",
    "Copy the files of the sandbox's workspace to the machine of the server, for its user.",
    _nothing(),
    _output(
        {
            "target": _TEXT,
            "files": _rows({"path": _TEXT, "size": _WHOLE}),
            "file_count": _WHOLE,
            "total_bytes": _WHOLE,
            "skipped": _rows({"path": _TEXT, "reason": _TEXT}),
            "skipped_count": _WHOLE,
            "is_complete": _TRUTH,
        }
    ),
    handlers.export_workspace,
    runs_programs=False,
)
_END = ServedTool(
    END_SESSION,
    "End a session: everything that runs in it is killed, and its files are gone.",
    {**_nothing(), "properties": {"session": _SESSION}, "required": ["session"]},
    _output({"ended": _TRUTH}),
    handlers.end_session,
    runs_programs=False,
)


def served_tools(
    able: Capabilities, options: McpOptions, *, by_handle: bool
) -> dict[str, ServedTool]:
    """Return the tools that a server offers, by name.

    Args:
        able: What the backend can promise; what it can't keep is not offered.
        options: The server's.
        by_handle: Whether clients are stateless, and pass a session handle with each call.
    """
    in_contexts = able.live and able.arbitrary_programs
    tools = [_taken_over(name, in_contexts=in_contexts) for name in TOOLS]
    if options.export_dir is not None:
        tools.append(_EXPORT)
    kept = [
        tool for tool in tools if (able.arbitrary_programs if tool.runs_programs else able.files)
    ]
    if not able.terminal:
        kept = [_without(tool, "terminal") for tool in kept]
    if by_handle:
        kept = [*map(_with_session, kept), _END]
    return {tool.name: tool for tool in kept}


def _without(tool: ServedTool, argument: str) -> ServedTool:
    properties = {
        key: value for key, value in tool.parameters["properties"].items() if key != argument
    }
    return replace(tool, parameters={**tool.parameters, "properties": properties})


def _with_session(tool: ServedTool) -> ServedTool:
    properties = {**tool.parameters["properties"], "session": _SESSION}
    output = {
        **tool.output,
        "properties": {**tool.output["properties"], "session": _TEXT},
        "required": [*tool.output["required"], "session"],
    }
    return replace(tool, parameters={**tool.parameters, "properties": properties}, output=output)
