"""Profiles and plans: what clamps, what is refused, and what a file of plans may say."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from ringfence.backends.fake import FakeBackend
from ringfence.errors import ConfigError, LimitError
from ringfence.models import Enforced, Isolation, Limits, Mount, Network, SandboxSpec
from ringfence.policy import ONESHOT, SESSION, Plan, Policy, Profile, read_plans

MIB = 1 << 20
ABLE = replace(FakeBackend().capabilities, isolation=Isolation.NAMESPACE)
POLICY = Policy()


def spec(
    asked: SandboxSpec | None = None, plan: str = "free", profile: Profile = SESSION
) -> Limits:
    return POLICY.spec(POLICY.plan(plan), profile, ABLE, asked).limits


def test_a_session_gets_what_its_table_says() -> None:
    got = spec()
    assert (got.memory_bytes, got.cpus, got.pids) == (512 * MIB, 1.0, 256)
    assert (got.timeout, got.max_timeout, got.output_bytes) == (30, 300, MIB)


def test_a_one_shot_gets_less() -> None:
    got, more = spec(profile=ONESHOT), spec()
    for name in ("memory_bytes", "cpus", "pids"):
        assert getattr(got, name) < getattr(more, name)


def test_every_plan_of_the_package_allows_its_profiles() -> None:
    """Catches a plan below the profiles, whose tenants get other sandboxes than the table says."""
    for name in ("free", "pro", "enterprise"):
        for profile in (SESSION, ONESHOT):
            got = spec(plan=name, profile=profile)
            assert got.over(profile.limits) == got
            assert all(
                getattr(got, item.name) == value
                for item in fields(Limits)
                if (value := getattr(profile.limits, item.name)) is not None
            )


def test_plans_grow() -> None:
    plans = read_plans()
    for smaller, larger in (("free", "pro"), ("pro", "enterprise")):
        for item in fields(Limits):
            low = getattr(plans[smaller].limits, item.name)
            high = getattr(plans[larger].limits, item.name)
            assert (low is None) == (high is None)
            assert low is None or low <= high
        assert (plans[smaller].max_sandboxes or 0) < (plans[larger].max_sandboxes or 0)


@pytest.mark.parametrize(
    "name",
    ["memory_bytes", "cpus", "pids", "open_files", "workspace_bytes", "workspace_files",
     "tmp_bytes", "output_bytes"],
)  # fmt: skip
def test_a_limit_above_the_plan_is_refused_by_name(name: str) -> None:
    ceiling = getattr(POLICY.plan("free").limits, name)
    assert getattr(spec(SandboxSpec(limits=Limits(**{name: ceiling}))), name) == ceiling
    with pytest.raises(LimitError) as caught:
        spec(SandboxSpec(limits=Limits(**{name: ceiling + 1})))
    assert (caught.value.limit, caught.value.plan) == (name, "free")
    assert name in str(caught.value)
    assert "free" in str(caught.value)


def test_times_are_clamped_and_never_refused() -> None:
    asked = SandboxSpec(limits=Limits(timeout=1e4, max_timeout=1e4, max_age=1e6))
    got = spec(asked)
    assert (got.timeout, got.max_timeout, got.max_age) == (300, 300, 3600)
    got = spec(asked, plan="enterprise")
    assert (got.timeout, got.max_timeout, got.max_age) == (3600, 3600, 86_400)


def test_a_profile_above_the_plan_is_clamped() -> None:
    policy = Policy({"tiny": Plan("tiny", Limits(memory_bytes=MIB))}, default_plan="tiny")
    got = policy.spec(policy.plan(None), SESSION, ABLE)
    assert got.limits.memory_bytes == MIB


def test_a_ceiling_holds_where_neither_profile_nor_caller_says_anything() -> None:
    """Catches a limit that only the backend's own default decides, whatever the plan says."""
    assert spec(profile=Profile("bare", Limits())).open_files == 1024


def test_a_larger_plan_alone_changes_no_sandbox() -> None:
    """Catches ceilings that are handed out, such as more descriptors than the host may give."""
    for profile in (SESSION, ONESHOT):
        assert spec(plan="enterprise", profile=profile) == spec(profile=profile)


def test_what_nobody_can_hold_is_left_out_unless_it_was_asked_for() -> None:
    able = replace(ABLE, limits=Enforced())
    plan = POLICY.plan("free")
    assert POLICY.spec(plan, SESSION, able).limits.memory_bytes is None
    asked = SandboxSpec(limits=Limits(memory_bytes=MIB))
    assert POLICY.spec(plan, SESSION, able, asked).limits.memory_bytes == MIB


def test_there_is_no_network_unless_it_is_asked_for_and_in_the_plan() -> None:
    assert POLICY.spec(POLICY.plan("pro"), SESSION, ABLE).network == Network("none")
    asked = SandboxSpec(network=Network("bridge"))
    assert POLICY.spec(POLICY.plan("pro"), SESSION, ABLE, asked).network == Network("bridge")
    with pytest.raises(LimitError) as caught:
        POLICY.spec(POLICY.plan("free"), SESSION, ABLE, asked)
    assert (caught.value.limit, caught.value.plan) == ("networks", "free")


def test_what_isolates_nothing_keeps_its_own_network_only_if_none_was_asked_for() -> None:
    able = replace(ABLE, isolation=Isolation.PROCESS, network_modes=("host",))
    assert POLICY.spec(POLICY.plan("free"), SESSION, able).network is None
    with pytest.raises(LimitError, match="host"):
        POLICY.spec(POLICY.plan("free"), SESSION, able, SandboxSpec(network=Network("host")))


def test_the_rest_of_what_is_asked_for_is_passed_on() -> None:
    asked = SandboxSpec(env={"A": "1"}, mounts=(Mount("/usr"),), labels={"x": "y"})
    got = POLICY.spec(POLICY.plan("free"), SESSION, ABLE, asked)
    assert (got.env, got.mounts, got.labels) == ({"A": "1"}, (Mount("/usr"),), {"x": "y"})


def test_an_unknown_plan_or_profile_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"'gold'.*free"):
        POLICY.plan("gold")
    with pytest.raises(ConfigError, match=r"'huge'.*session"):
        POLICY.profile("huge")
    with pytest.raises(ConfigError, match="gold"):
        Policy(default_plan="gold")


def test_plans_are_read_from_a_file_of_one_s_own(tmp_path: Path) -> None:
    (tmp_path / "plans.toml").write_text('[own]\ncpus = 3\nnetworks = ["none", "bridge"]\n')
    plans = read_plans(tmp_path / "plans.toml")
    assert plans == {"own": Plan("own", Limits(cpus=3), networks=("none", "bridge"))}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[a]\nmemory = 1", "no 'memory'"),
        ("[a]\ncpus = -1", "above zero"),
        ("[a]\npids = 'many'", "number"),
        ("[a]\nmax_sandboxes = 0", "above zero"),
        ("[a]\nmax_sandboxes = 1.5", "above zero"),
        ("[a]\nidle_timeout = true", "above zero"),
        ("[a]\nnetworks = 'none'", "list"),
        ("[a]\nnetworks = [1]", "names"),
        ("a = 1", "table"),
        ("[a", "can't be read"),
    ],
)
def test_a_file_with_a_fault_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "plans.toml").write_text(text)
    with pytest.raises((ConfigError, LimitError), match=said):
        read_plans(tmp_path / "plans.toml")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        read_plans(tmp_path / "none.toml")
