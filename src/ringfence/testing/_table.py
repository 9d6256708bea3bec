"""The table of all checks, by topic."""

from __future__ import annotations

from ._checks_exec import CHECKS as _EXEC
from ._checks_exec_given import CHECKS as _EXEC_GIVEN
from ._checks_files import CHECKS as _FILES
from ._checks_import import CHECKS as _IMPORT
from ._checks_leaks import CHECKS as _LEAKS
from ._checks_leftovers import CHECKS as _LEFTOVERS
from ._checks_lifecycle import CHECKS as _LIFECYCLE
from ._checks_limits import CHECKS as _LIMITS
from ._checks_limits_space import CHECKS as _LIMITS_OF_SPACE
from ._checks_listing import CHECKS as _LISTING
from ._checks_neighbours import CHECKS as _NEIGHBOURS
from ._checks_output import CHECKS as _OUTPUT
from ._checks_paths import CHECKS as _PATHS
from ._checks_security import CHECKS as _SECURITY
from ._checks_stdin import CHECKS as _STDIN
from ._checks_terminal import CHECKS as _TERMINAL
from ._checks_timeouts import CHECKS as _TIMEOUTS
from ._model import Check

__all__ = ("CHECKS",)

CHECKS: tuple[Check, ...] = (
    *_EXEC_GIVEN,
    *_EXEC,
    *_STDIN,
    *_OUTPUT,
    *_LEFTOVERS,
    *_TIMEOUTS,
    *_TERMINAL,
    *_LIMITS,
    *_LIMITS_OF_SPACE,
    *_FILES,
    *_IMPORT,
    *_LISTING,
    *_PATHS,
    *_LIFECYCLE,
    *_LEAKS,
    *_SECURITY,
    *_NEIGHBOURS,
)
"""Every check of the suite; each name is there once."""
