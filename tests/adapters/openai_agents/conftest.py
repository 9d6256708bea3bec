"""Temporal's plugin takes no version of the SDK as new as the newest one: scripts/suites."""

from __future__ import annotations

import importlib.util

collect_ignore = [] if importlib.util.find_spec("temporalio") else ["test_temporal.py"]
