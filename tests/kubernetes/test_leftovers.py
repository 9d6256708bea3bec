"""`ringfence ps` and `ringfence reap`, told to look into a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..cli.conftest import Cli
from .conftest import PATIENCE, Cluster
from .pods import names, nothing_left, run_out
from .workers import killed_afterwards

pytestmark = pytest.mark.timeout(3 * PATIENCE)

HERE = ("--backend", "kubernetes")


@pytest.fixture
def cli(cluster: Cluster, namespace: str, tmp_path: Path) -> Cli:
    """The command on a machine of its own: another inventory."""
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    env = {
        "KUBECONFIG": cluster.kubeconfig,
        "RINGFENCE_NAMESPACE": namespace,
        "RINGFENCE_STATE_DIR": str(state),
    }
    return Cli(tmp_path, env)


def test_another_machine_s_sandbox_is_listed_and_goes_when_its_lease_has_run_out(
    cli: Cli, cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    state = str(tmp_path_factory.mktemp("other"))
    with killed_afterwards(cluster, namespace, state, reconnect_timeout=600.0) as left:
        (found,) = cli("ps", *HERE, "--json").json
        assert (found["id"], found["alive"]) == (left, True)
        assert (found["backend"], found["namespace"]) == ("kubernetes", namespace)
        assert found["labels"] == {"told": "any text: at all"}
        shown = cli("ps", *HERE).out.decode()
        assert left in shown
        assert "live" in shown
        assert found["owner"] in shown
        assert cli("ps").out == b"no sandboxes\n"
        assert cli("reap", *HERE).out == b"removed 0 sandboxes of dead owners\n"
    (theirs,) = names(cluster, namespace, "leases")
    run_out(cluster, namespace, theirs)
    assert "left over" in cli("ps", *HERE).out.decode()
    assert cli("reap").out == b"removed 0 sandboxes of dead owners\n"
    assert cli("reap", *HERE, "--json").json == {"reaped": 1, "left": 0, "fault": None}
    assert cli("ps", *HERE, "--json").json == []
    nothing_left(cluster, namespace)


def test_a_killed_process_of_this_machine_leaves_one_row_and_no_lease(
    cli: Cli, cluster: Cluster, namespace: str
) -> None:
    state = cli.env["RINGFENCE_STATE_DIR"]
    with killed_afterwards(cluster, namespace, state, reconnect_timeout=600.0) as left:
        (found,) = cli("ps", *HERE, "--json").json
        assert (found["id"], found["alive"]) == (left, True)
    (found,) = cli("ps", *HERE, "--json").json
    assert (found["id"], found["alive"]) == (left, False)
    assert cli("reap", *HERE).out == b"removed 1 sandbox of dead owners\n"
    assert names(cluster, namespace, "leases") == []
    assert cli("ps", *HERE).out == b"no sandboxes\n"
    nothing_left(cluster, namespace)


@pytest.mark.parametrize("command", ["ps", "reap"])
def test_a_cluster_that_can_t_be_looked_at_is_a_fault(cli: Cli, command: str) -> None:
    done = cli(command, *HERE, RINGFENCE_KUBECONFIG="/no/such/file")
    assert (done.code, done.out) == (125, b"")
    assert "there is no kubeconfig '/no/such/file'" in done.err
