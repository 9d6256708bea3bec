"""The contract of a backend, its sandboxes and their processes, as abstract classes.

Three kinds of method are kept apart. What a backend must implement is abstract and starts with an
underscore (`_create`, `_start`, ...). What follows from it is written once, here and in
`execution`. What users call has no underscore and is final.

A backend makes sandboxes; a sandbox runs commands and holds one workspace; a process is one
running command. A program that fails is a `Result`; a sandbox that can't run it is a
`SandboxError`.
"""

from ..process import Launch, Process
from .backend import BASE_LIMITS, Backend
from .closeable import Closeable
from .commands import as_command, command_cwd, one_shot_command, workspace_path
from .files import DEFAULT_LIST_ENTRIES, NOT_BEGUN, UNDO_SECONDS, NewFile, SandboxFiles
from .sandbox import Sandbox

__all__ = (
    "BASE_LIMITS",
    "DEFAULT_LIST_ENTRIES",
    "NOT_BEGUN",
    "UNDO_SECONDS",
    "Backend",
    "Closeable",
    "Launch",
    "NewFile",
    "Process",
    "Sandbox",
    "SandboxFiles",
    "as_command",
    "command_cwd",
    "one_shot_command",
    "workspace_path",
)
