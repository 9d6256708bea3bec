"""What is read of a cluster's answers, and what follows for sandboxes and settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ringfence.backends._kube_facts import Facts, isolation_of, parse_version
from ringfence.backends._kube_failures import End, job_end, pod_end
from ringfence.backends._kube_limits import checked_limits, one_shot_limits
from ringfence.backends._kube_objects import (
    own_labels,
)
from ringfence.backends._kube_reap import is_left_over, is_over, lease_end
from ringfence.config import KubernetesConfig
from ringfence.errors import ConfigError, LimitError
from ringfence.models import Enforcement, Isolation, Limits

LIMITS = Limits(
    memory_bytes=256 << 20,
    cpus=0.5,
    open_files=1024,
    workspace_bytes=128 << 20,
    tmp_bytes=64 << 20,
    max_age=3600.0,
)
CONFIG = KubernetesConfig(image="alpine:3")


@pytest.mark.parametrize(
    ("conditions", "end"),
    [
        ([], None),
        ([("SuccessCriteriaMet", "True", "", "")], None),
        ([("FailureTarget", "True", "BackoffLimitExceeded", "m")], None),
        ([("Complete", "False", "", "")], None),
        ([("SuccessCriteriaMet", "True", "", ""), ("Complete", "True", "", "")], (True, "")),
        (
            [("FailureTarget", "True", "x", "y"), ("Failed", "True", "DeadlineExceeded", "late")],
            (False, "DeadlineExceeded: late"),
        ),
    ],
)
def test_only_a_job_s_last_word_counts(conditions: list[Any], end: object) -> None:
    names = ("type", "status", "reason", "message")
    rows = [dict(zip(names, row, strict=True)) for row in conditions]
    assert job_end({"status": {"conditions": rows}}) == end


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("DeletionByTaintManager", "node lost"),
        ("EvictionByEvictionAPI", "evicted"),
        ("PreemptionByScheduler", "preempted"),
        ("SomethingNew", "removed"),
    ],
)
def test_why_a_pod_is_being_removed_is_told(reason: str, cause: str) -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m"}
    status = {"phase": "Running", "conditions": [condition]}
    assert pod_end({"status": status}) is None
    going = {"metadata": {"deletionTimestamp": "now"}, "status": status}
    assert pod_end(going) == End(cause, f"{reason}: m")


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ({"major": "1", "minor": "27+"}, (1, 27)),
        ({"major": "1", "minor": "36"}, (1, 36)),
        ({"major": "", "minor": ""}, (1, 19)),
        ({}, (1, 19)),
    ],
)
def test_a_version_is_read(told: dict[str, str], version: tuple[int, int]) -> None:
    assert parse_version(told) == version


def job(**labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": {f"ringfence.{key}": text for key, text in labels.items()}}}


@pytest.mark.parametrize(
    ("labels", "left"),
    [
        ({"store": "here", "sandbox": "rf-live"}, False),
        ({"store": "here", "sandbox": "rf-dead"}, True),
        ({"store": "there", "owner": "live", "expires": "2000"}, False),
        ({"store": "there", "owner": "late", "expires": "2000"}, True),
        ({"store": "there", "owner": "gone", "expires": "2000"}, True),
        ({"store": "there", "owner": "live", "expires": "800"}, True),
        ({"store": "there", "owner": "live", "expires": "950"}, False),
    ],
)
def test_who_is_dead_is_told_by_locks_here_and_by_leases_elsewhere(
    labels: dict[str, str], left: bool
) -> None:
    ends = {"live": 1010.0, "late": 990.0}
    assert is_left_over(job(**labels), "here", frozenset({"rf-live"}), ends, 1000.0) is left


@pytest.mark.parametrize(
    ("labels", "now", "over"),
    [
        ({"ringfence.store": "s", "ringfence.slot": "1"}, 100, False),  # held, though run out
        ({"ringfence.store": "s", "ringfence.slot": "2"}, 0, True),
        ({"ringfence.store": "s", "ringfence.slot": "x"}, 100, False),
        ({"ringfence.store": "s"}, 100, False),
        ({"ringfence.store": "t", "ringfence.slot": "2"}, 100, False),  # another machine's
        ({"ringfence.store": "t", "ringfence.slot": "2"}, 10_000, True),
    ],
)
def test_a_lease_is_over_when_nobody_here_holds_its_slot(
    labels: dict[str, str], now: float, over: bool
) -> None:
    spec = {"renewTime": "1970-01-01T00:00:01.000000Z", "leaseDurationSeconds": 30}
    lease = {"metadata": {"name": "l", "labels": labels}, "spec": spec}
    assert is_over(lease, "s", frozenset({1}), now) is over


def test_a_lease_lives_from_its_last_renewal() -> None:
    spec = {"renewTime": "1970-01-01T00:01:00.500000Z", "leaseDurationSeconds": 30}
    assert lease_end({"spec": spec}) == 90.5
    torn: list[dict[str, Any]] = [{}, {"spec": {}}, {"spec": {"renewTime": "never"}}]
    assert [lease_end(lease) for lease in torn] == [0.0, 0.0, 0.0]


def test_labels_say_whose_it_is_and_until_when() -> None:
    assert own_labels("rf-1", "s", "o", 1000.5, 60.0) == {
        "ringfence.sandbox": "rf-1",
        "ringfence.store": "s",
        "ringfence.owner": "o",
        "ringfence.created": "1000",
        "ringfence.expires": "1060",
    }


# Limits, capabilities and settings.


def test_a_workspace_in_memory_has_to_fit_into_it() -> None:
    small = replace(LIMITS, memory_bytes=64 << 20)
    assert checked_limits(small, frozenset(), CONFIG).workspace_bytes == 32 << 20
    with pytest.raises(LimitError, match="does not fit"):
        checked_limits(small, frozenset({"workspace_bytes"}), CONFIG)
    disk = KubernetesConfig(image="i", volume_medium="disk")
    assert checked_limits(small, frozenset(), disk) == small


def test_a_one_shot_has_a_net_of_its_own() -> None:
    limits = replace(LIMITS, max_timeout=300.0, kill_grace=0.5)
    assert one_shot_limits(limits).max_age == 330.5
    assert one_shot_limits(replace(limits, max_age=60.0)).max_age == 60.0


@pytest.mark.parametrize(
    ("settings", "level"),
    [
        ({}, Isolation.POD),
        ({"runtime_class": "gvisor"}, Isolation.GVISOR),
        ({"runtime_class": "kata-qemu"}, Isolation.KATA),
        ({"runtime_class": "fast", "isolation": "gvisor"}, Isolation.GVISOR),
        ({"runtime_class": "gvisor-like", "isolation": "container"}, Isolation.POD),
    ],
)
def test_the_level_is_that_of_the_runtime(settings: dict[str, Any], level: Isolation) -> None:
    assert isolation_of(KubernetesConfig(image="i", **settings)) is level


def test_none_is_promised_with_the_policy_alone() -> None:
    open_to_all = KubernetesConfig(image="i", network_policy="none")
    assert Facts().capabilities(CONFIG).network_modes == ("none",)
    assert Facts().capabilities(open_to_all).network_modes == ("cluster",)


def test_what_nobody_holds_is_said() -> None:
    able = Facts(version=(1, 20)).capabilities(CONFIG)
    assert able.limits.pids is Enforcement.NONE
    assert able.limits.workspace_bytes is Enforcement.NONE
    assert Facts(version=(1, 22)).capabilities(CONFIG).limits.tmp_bytes is Enforcement.ENFORCED
    logs = Facts().capabilities(KubernetesConfig(image="i", transport="logs"))
    promised = (logs.live, logs.files, logs.separate_streams, logs.terminal)
    assert promised == (False, False, False, False)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"namespace": "Bad_Name"}, "no name of a namespace"),
        ({"service_account": "-"}, "no name of an object"),
        ({"image": "a b"}, "blanks"),
        ({"user": "0:0"}, "neither is 0"),
        ({"tolerations": ({"nope": 1},)}, "no toleration"),
        ({"pull_secrets": ("a b",)}, "no secret's name"),
        ({"labels": {"ringfence.x": "1"}}, "belongs to ringfence"),
        ({"transport": "attach"}, "transport"),
        ({"cpus": 0.1, "cpu_request": 0.2}, "above the limit"),
        ({"memory_bytes": 1 << 20, "memory_request_bytes": 1 << 21}, "above the limit"),
        ({"ttl": -1}, "ttl"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, LimitError), match=said):
        KubernetesConfig(**{"image": "i", **settings})


def test_the_namespace_is_default_where_none_is_given() -> None:
    assert KubernetesConfig().namespace == KubernetesConfig(namespace="").namespace == "default"
