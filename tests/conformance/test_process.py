"""The conformance suite on the process backend."""

from __future__ import annotations

import pytest

from ringfence.backends.process import ProcessBackend
from ringfence.testing import Check, Conformance

SUITE = Conformance(
    "process",
    ProcessBackend,
    python="/usr/bin/python3",
    # Its warden finds what left its group; `kill_tree` is no promise, for want of a PID namespace.
    beyond={
        "leftovers_that_left_the_group_die_if_the_command_says_so",
        "a_one_shot_leaves_no_daemon_running",
        "closing_the_sandbox_ends_its_daemons",
        "killing_a_process_ends_those_that_left_its_group",
        "a_deadline_reaches_those_that_left_the_group",
        "ten_timeouts_leave_no_zombies",
        "cancelling_reaches_those_that_left_the_group",
        "orphans_are_reaped",
        "killing_one_s_keeper_sets_nobody_free",
    },
)


@pytest.mark.parametrize("check", SUITE.params(hostile_mark="hostile"))
def test_process(check: Check) -> None:
    SUITE.verify(check)
