"""One sandbox for each execution, made at its first use, shared by all its calls, and its end.

::

    async with open_backend("auto") as backend, SessionManager(backend) as sessions:
        await sessions.exec("execution-1", "echo hello >note.txt")
        result = await sessions.exec("execution-1", "cat note.txt")
        await sessions.destroy_execution("execution-1")
"""

from .background import BackgroundCommands
from .background_command import BackgroundCommand
from .kept_output import OutputPart
from .manager import DEFAULT_IDLE_TIMEOUT, DEFAULT_TENANT, SessionManager
from .session import Session
from .streaming import StreamedRun

__all__ = (
    "DEFAULT_IDLE_TIMEOUT",
    "DEFAULT_TENANT",
    "BackgroundCommand",
    "BackgroundCommands",
    "OutputPart",
    "Session",
    "SessionManager",
    "StreamedRun",
)
