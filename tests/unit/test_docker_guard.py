"""Where bridges can't be guarded, there are none; or it is said that they are open."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace

import pytest

pytest.importorskip("aiodocker")

from ringfence.backends import _docker_guard as guard
from ringfence.backends._docker_facts import Facts
from ringfence.config import ContainerConfig
from ringfence.errors import BackendUnavailableError
from ringfence.models import new_sandbox_id

OPEN = replace(Facts(), no_guard="that takes root")


def answers(code: int) -> object:
    return lambda *words: subprocess.CompletedProcess(words, code, b"", b"")


def test_what_a_guard_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/sbin/{name}")
    monkeypatch.setattr(guard, "_iptables", answers(0))
    assert guard.why_no_guard(local=True) == ""
    assert "another machine" in guard.why_no_guard(local=False)
    monkeypatch.setattr(guard, "_iptables", answers(1))
    assert "packet filter" in guard.why_no_guard(local=True)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "iptables" in guard.why_no_guard(local=True)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in guard.why_no_guard(local=True)


def test_a_sandbox_s_id_is_a_bridge_s_name() -> None:
    """Of at most 15 characters, and one that the rules are for."""
    name = new_sandbox_id()
    assert len(name) <= 15
    assert name.startswith(guard.BRIDGE_PREFIX)


def test_where_there_is_no_guard_there_is_no_bridge() -> None:
    config = ContainerConfig()
    OPEN.check(config)
    assert OPEN.capabilities(config).network_modes == ("none",)
    assert Facts().capabilities(config).network_modes == ("none", "bridge")
    with pytest.raises(BackendUnavailableError, match="takes root") as caught:
        OPEN.check(ContainerConfig(network="bridge"))
    assert "preferred" in (caught.value.hint or "")
    Facts().check(ContainerConfig(network="bridge"))


def test_an_open_bridge_is_said() -> None:
    config = ContainerConfig(network="bridge", bridge_guard="preferred")
    OPEN.check(config)
    able = OPEN.capabilities(config)
    assert "bridge" in able.network_modes
    assert any("not guarded" in note for note in able.notes)
    assert not any("not guarded" in note for note in Facts().capabilities(config).notes)


def test_a_network_of_the_engine_s_own_is_the_user_s_choice() -> None:
    config = ContainerConfig(network="mine")
    OPEN.check(config)
    assert OPEN.capabilities(config).network_modes == ("mine", "none")
