"""The cluster that the tests run on: brought up, found again, put down, and nothing left of it.

It has processes and a place of its own, apart from the one that is shared.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.services import kubernetes_build
from scripts.services.kubernetes import Kubernetes

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a cluster"),
]

PROJECT = Path(__file__).parent.parent.parent
SERVICES = f"{shlex.quote(sys.executable)} -m scripts.services"
PLACE = Kubernetes().place

MACHINE = f"""
set -eu
no() {{ if "$@"; then echo "it did: $*" >&2; exit 1; fi; }}  # -e does not see what `!` turns round
mount -t tmpfs none {shlex.quote(str(PLACE))}
record() {{ cut -d, -f1 {shlex.quote(str(PLACE))}/$1/process.json | tr -d '['; }}
group() {{ sed -n 's/.*"group": "\\(.*\\)".*/\\1/p' {shlex.quote(str(PLACE))}/plan.json; }}
network() {{ sed -n 's/.*"network": "\\(.*\\)0.24".*/\\1/p' {shlex.quote(str(PLACE))}/plan.json; }}
"""


def on_a_machine(script: str, **environ: str) -> None:
    """Run a shell script there, which must end well."""
    assert kubernetes_build.kept_program(), "the cluster of these tests has built it"
    PLACE.mkdir(parents=True, exist_ok=True)
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    inherited = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    done = subprocess.run(
        [*namespaces, "bash", "-c", MACHINE + script],
        cwd=PROJECT,
        env=inherited | environ,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_is_started_once_again_when_it_was_killed_and_nothing_is_left() -> None:
    on_a_machine(f"""
        settings() {{ sysctl vm.overcommit_memory kernel.panic kernel.panic_on_oops; }}
        before=$(settings; wc -l </proc/mounts)
        no {SERVICES} ready kubernetes
        {SERVICES} up kubernetes
        {SERVICES} ready kubernetes
        first=$(record node) one=$(group)
        {SERVICES} up kubernetes
        [ "$(record node)" = "$first" ]
        ls -d /sys/fs/cgroup/*/$one >/dev/null

        kill -9 $first $(record api)
        no {SERVICES} ready kubernetes
        {SERVICES} up kubernetes
        {SERVICES} ready kubernetes
        other=$(group) network=$(network)
        [ "$other" != "$one" ]
        no ls -d /sys/fs/cgroup/*/$one

        {SERVICES} down kubernetes
        no {SERVICES} ready kubernetes
        no ls -d /sys/fs/cgroup/*/$other
        [ -z "$(ip route | grep -F "$network")" ]
        [ "$(settings; wc -l </proc/mounts)" = "$before" ]
        [ -z "$(ls {shlex.quote(str(PLACE))})" ]
        for directory in /proc/[0-9]*; do
            case $(cat $directory/comm 2>/dev/null) in
                etcd | kube* | containerd* | unshare) exit 1 ;;
            esac
        done
        {SERVICES} down kubernetes
    """)


def test_a_cluster_that_is_given_and_does_not_answer_is_no_reason_to_start_one(
    tmp_path: Path,
) -> None:
    on_a_machine(
        f"""
        no {SERVICES} ready kubernetes
        no {SERVICES} up kubernetes
        [ -z "$(ls {shlex.quote(str(PLACE))})" ]
        """,
        KUBECONFIG=str(nobody(tmp_path)),
    )


def nobody(place: Path) -> Path:
    path = place / "config"
    path.write_text(
        '{"apiVersion": "v1", "kind": "Config", "current-context": "a",'
        ' "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],'
        ' "users": [{"name": "a", "user": {"token": "none"}}],'
        ' "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]}',
        "utf-8",
    )
    return path
