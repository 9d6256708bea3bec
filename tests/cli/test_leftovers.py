"""`ringfence ps` sees what is on the machine, and `ringfence reap` takes what is left over."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import Cli

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the inventory is of Linux"),
]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """The command with an inventory of its own: elsewhere others of this user are reaped too."""
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    return Cli(tmp_path, {"RINGFENCE_STATE_DIR": str(state)})


def listed(cli: Cli) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cli("ps", "--json").json
    return found


def test_a_live_sandbox_is_listed_and_not_reaped(cli: Cli) -> None:
    assert listed(cli) == []
    assert cli("ps").out == b"no sandboxes\n"
    with cli.started("run", "--backend", "process", "--", "sh", "-c", "echo; cat") as process:
        assert process.stdout
        process.stdout.readline()
        (found,) = listed(cli)
        assert found["alive"]
        assert (found["backend"], found["owner_pid"]) == ("process", process.pid)
        assert found["labels"] == {"command": "sh"}
        shown = cli("ps").out.decode()
        assert found["id"] in shown
        assert "live" in shown
        assert cli("reap", "--json").json == {"reaped": 0, "left": 0, "fault": None}
        process.communicate(timeout=20)
    assert listed(cli) == []


def test_what_a_killed_owner_left_is_shown_and_removed(cli: Cli) -> None:
    with cli.started("run", "--backend", "process", "--", "sh", "-c", "echo; cat") as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    (found,) = listed(cli)
    assert not found["alive"]
    assert os.path.isdir(found["work_dir"])
    assert "left over" in cli("ps").out.decode()
    assert cli("reap").out == b"removed 1 sandbox of dead owners\n"
    assert not os.path.exists(found["work_dir"])
    assert listed(cli) == []
    assert cli("reap").out == b"removed 0 sandboxes of dead owners\n"


def test_a_state_directory_that_is_not_ours_alone_is_a_fault(cli: Cli) -> None:
    Path(cli.env["RINGFENCE_STATE_DIR"]).chmod(0o777)
    done = cli("ps")
    assert done.code == 125
    assert "can be written to by others" in done.err
    assert done.err.count("\n") == 1
