"""Observers that write to the usual places; each needs the extra `observability`.

::

    observers = [StructlogObserver(), TracingObserver(), MetricsObserver()]
    async with SessionManager(backend, observers=observers) as sessions: ...

What they get is names, sizes, times and codes: never a command's arguments or output, a file's
content, or the value of a variable.
"""

from .logs import StructlogObserver
from .metrics import MetricsObserver
from .traces import TracingObserver

__all__ = ("MetricsObserver", "StructlogObserver", "TracingObserver")
