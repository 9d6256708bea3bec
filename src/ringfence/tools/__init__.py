"""The tools of an agent: plain async functions on a sandbox, and their definitions for models.

Each takes a `Sandbox`, which a session is too, and returns text for a model to read: bounded, with
what was cut and how to get it, and with a last line that no program in the sandbox can make up.
`call_tool` takes the arguments as a model gives them, and answers faults that the model can mend
with a text instead of an exception::

    output = await call_tool(session, "terminal", {"command": "ls"})
    print(output.text, output.is_error)
"""

from .background import (
    list_commands,
    read_output,
    start_command,
    stop_command,
    write_input,
)
from .calling import Toolkit, ToolOutput, call_tool
from .definitions import TOOLS, Tool, anthropic_tools, openai_tools
from .files import list_files, read_file, write_file
from .functions import run_code, terminal
from .in_context import run_in_context

__all__ = (
    "TOOLS",
    "Tool",
    "ToolOutput",
    "Toolkit",
    "anthropic_tools",
    "call_tool",
    "list_commands",
    "list_files",
    "openai_tools",
    "read_file",
    "read_output",
    "run_code",
    "run_in_context",
    "start_command",
    "stop_command",
    "terminal",
    "write_file",
    "write_input",
)
