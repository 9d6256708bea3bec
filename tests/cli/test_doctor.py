"""`ringfence doctor` tells the truth, and can be read."""

from __future__ import annotations

import sys

import pytest

from ringfence import Capabilities, ConfigError, CreateError, FakeBackend, Isolation, Probe
from ringfence.cli.doctor import Finding, doctor, examine
from ringfence.models import Enforced
from ringfence.registry import BACKENDS
from ringfence.settings import Settings

from .conftest import Cli

pytestmark = [pytest.mark.slow, pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_every_backend_is_there_with_what_it_can_do(cli: Cli) -> None:
    done = cli("doctor", "--json")
    told = done.json
    assert [backend["name"] for backend in told["backends"]] == list(BACKENDS)
    for backend in told["backends"]:
        if backend["can_run"]:
            assert set(backend["capabilities"]["limits"]) == set(vars(Enforced()))
        else:
            assert backend["reason"]
            assert "capabilities" not in backend


@pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap needs Linux")
def test_it_ends_with_0_where_a_jail_can_be_had(cli: Cli) -> None:
    done = cli("doctor", "--json")
    jail = next(item for item in done.json["backends"] if item["name"] == "bubblewrap")
    assert (done.code, done.json["auto"]) == (0, "bubblewrap")
    assert jail["can_run"]
    assert jail["capabilities"]["isolation"] == "namespace"
    assert jail["capabilities"]["limits"]["pids"] == "enforced"


def test_what_blocks_a_backend_is_told(cli: Cli) -> None:
    done = cli("doctor", "--json", RINGFENCE_BWRAP_PATH="/no/bwrap")
    jail = next(item for item in done.json["backends"] if item["name"] == "bubblewrap")
    assert (jail["can_run"], done.json["auto"]) == (False, None)
    assert "/no/bwrap" in jail["reason"]
    shown = cli("doctor", RINGFENCE_BWRAP_PATH="/no/bwrap").out.decode()
    assert "bwrap_path '/no/bwrap' is not a program" in shown


@pytest.mark.parametrize("isolation", list(Isolation))
async def test_it_ends_with_1_unless_something_that_isolates_runs(
    isolation: Isolation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def examine(name: str, settings: Settings) -> Finding:
        runs = name == "container"
        return Finding(name, Probe(runs, "" if runs else "not here"), Capabilities(isolation))

    monkeypatch.setattr("ringfence.cli.doctor.examine", examine)
    able = isolation > Isolation.PROCESS
    assert await doctor(Settings(), as_json=False) == (0 if able else 1)
    assert ("No backend that isolates can run here." in capsys.readouterr().out) is not able


async def test_a_backend_that_lacks_a_setting_can_run_and_one_that_fails_can_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = FakeBackend()
    monkeypatch.setattr("ringfence.cli.doctor.open_backend", lambda config: backend)
    backend.open_error = ConfigError("it needs a module", hint="set wasm_path")
    found = await examine("fake", Settings())
    assert found.probe.ok
    assert found.probe.details == {"needs": "it needs a module (set wasm_path)"}
    assert found.capabilities is not None
    backend.open_error = CreateError("no more processes")
    assert (await examine("fake", Settings())).probe == Probe(False, "no more processes")


@pytest.mark.parametrize("width", [80, 120])
def test_it_fits_the_terminal(cli: Cli, width: int) -> None:
    shown = cli("doctor", COLUMNS=str(width)).out.decode()
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    header = next(line for line in lines if line.startswith("Backend"))
    assert header.split() == [
        *("Backend", "Runs", "Isolation", "Memory", "CPU", "Pids"),
        *("files", "Workspace", "in", "it", "Tmp"),
    ]
    row = next(line for line in lines if line.startswith("process "))
    assert row.split()[1:6] == ["yes", "process", "each", "no", "no"]
    assert "It isolates nothing" in shown
    assert "\x1b" not in shown  # no colours into a pipe


def test_the_version_and_the_help(cli: Cli) -> None:
    assert cli("--version").out.startswith(b"ringfence ")
    for command in ("run", "doctor", "ps", "reap"):
        done = cli(command, "--help")
        assert done.code == 0
        assert f"ringfence {command}".encode() in done.out
