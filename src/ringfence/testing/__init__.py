"""The conformance suite: what every backend has to keep, as checks that anybody can run.

For a backend of your own, in any program::

    report = await ringfence.testing.run(lambda: MyBackend(), python="/usr/bin/python3")
    print(report)

and as tests of pytest, with the known deviations listed: see `Conformance`. Each check is a
`Check` in the table `CHECKS`; it names the fault that it catches and the capabilities that it
needs, and runs in a fresh sandbox of a fresh backend. The sandboxes need a POSIX shell and the
core utilities; checks that make system calls need the path of a Python 3 inside.
"""

from __future__ import annotations

from ._conformance import REQUIRED_VARIABLE, Conformance
from ._context import Context
from ._expect import CheckFailedError, NotApplicable
from ._model import Check, Need, Report
from ._runner import perform, run
from ._table import CHECKS

__all__ = (
    "CHECKS",
    "REQUIRED_VARIABLE",
    "Check",
    "CheckFailedError",
    "Conformance",
    "Context",
    "Need",
    "NotApplicable",
    "Report",
    "perform",
    "run",
)
