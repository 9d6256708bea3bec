"""The conformance suite on pods."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ringfence.backends.kubernetes import KubernetesBackend
from ringfence.config import KubernetesConfig
from ringfence.testing import Check, Conformance
from scripts.services.kubernetes import VARIABLE, Kubernetes

from .conftest import PATIENCE, PYTHON

POD = Conformance(
    "kubernetes",
    lambda: KubernetesBackend(
        KubernetesConfig(
            image=PYTHON,
            kubeconfig=Path(Kubernetes().env()[VARIABLE]),
            pull_policy="Never",
            sized_volumes=True,  # the tests' cluster is old, and has been told to
            cpu_request=0.01,
            start_timeout=PATIENCE,
            schedule_timeout=PATIENCE,  # for a node that a busy machine takes for lost
        )
    ),
    python="/usr/bin/python3",
    deviations={
        "there_is_no_network_but_its_own": "a pod has an interface of the cluster's network; what "
        "it reaches is up to the policy, which this cluster's network does not enforce",
        "pid_1_can_t_be_killed_from_inside": "who kills all that he can kills what holds the "
        "stream, which is then taken up again",
    },
    patience=6,  # a pod takes seconds to make on a busy machine, and some checks make many
)

# Each check makes a pod or more. What differs from containers is tried, and what any backend could
# get wrong of its own. RINGFENCE_TEST_CONFORMANCE=whole tries everything.
WHOLE = os.environ.get("RINGFENCE_TEST_CONFORMANCE") == "whole"
OF_A_POD = ("exec", "timeouts", "limits", "security", "cancelling_a_one_shot_leaves_nothing")
TOPICS = () if WHOLE else (*OF_A_POD, "a_destroyed_sandbox_is_lost_for_good")

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.parametrize("check", POD.params(TOPICS, hostile_mark="hostile"))
def test_pod(check: Check) -> None:
    POD.verify(check)
