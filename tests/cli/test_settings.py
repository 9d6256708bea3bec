"""Flags over variables over the file over the defaults, and nothing unknown."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence import ConfigError, Mount
from ringfence.settings import Settings, load_settings, parse_seconds, parse_size

from .conftest import Cli


def load(directory: Path, flags: Mapping[str, Any] | None = None, /, **environ: str) -> Settings:
    return load_settings(flags or {}, {"HOME": str(directory), **environ}, str(directory))


def write(directory: Path, text: str, name: str = "ringfence.toml") -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_anything_every_setting_is_left_to_the_backend(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings == Settings()
    assert (settings.backend, settings.file) == ("auto", None)
    assert settings.limits.asked() == frozenset()


def test_the_order_of_precedence(tmp_path: Path) -> None:
    path = write(tmp_path, 'memory = "1m"\npids = 1\ncpus = 1\n')
    environ = {"RINGFENCE_MEMORY": "2m", "RINGFENCE_PIDS": "2"}
    settings = load(tmp_path, {"memory": "3m", "pids": None}, **environ)
    assert (settings.memory, settings.pids, settings.cpus) == (3 << 20, 2, 1.0)
    assert settings.origins == {
        "memory": "--memory",
        "pids": "RINGFENCE_PIDS",
        "cpus": f"{path}: cpus",
    }


def test_the_command_keeps_the_order_too(cli: Cli) -> None:
    cli.write("ringfence.toml", 'timeout = "9s"\nmemory = "100m"\n[env]\nFROM = "file"\n')
    done = cli("run", "--timeout", "7", "--json", "--", "env", RINGFENCE_TIMEOUT="8")
    assert (done.json["timeout"], done.json["limits"]["memory_bytes"]) == (7.0, 100 << 20)
    assert "FROM=file\n" in done.json["stdout"]
    assert cli("run", "--json", "true", RINGFENCE_TIMEOUT="8").json["timeout"] == 8.0
    assert cli("run", "--json", "true").json["timeout"] == 9.0
    assert cli("doctor", "--json").json["settings_file"] == str(cli.directory / "ringfence.toml")


def test_every_setting_can_be_in_a_file_that_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = write(
        tmp_path,
        f"""
        backend = "bwrap"
        memory = "512m"
        cpus = 0.5
        pids = 32
        open_files = "64"
        workspace_size = 1048576
        workspace_files = 100
        tmp_size = "1.5g"
        output_size = "2 KiB"
        timeout = 400
        python = "python3.12"
        root_dir = "/srv/root"
        bwrap_path = "/opt/bwrap"
        mounts = ["{tmp_path}/data", "{tmp_path}/data:/in"]
        [env]
        A = "1"
        """,
        "my.toml",
    )
    settings = load(tmp_path, RINGFENCE_CONFIG=str(path))
    assert settings == Settings(
        backend="bubblewrap",
        memory=512 << 20,
        cpus=0.5,
        pids=32,
        open_files=64,
        workspace_size=1 << 20,
        workspace_files=100,
        tmp_size=3 << 29,
        output_size=2048,
        timeout=400.0,
        env={"A": "1"},
        mounts=(Mount(f"{tmp_path}/data"), Mount(f"{tmp_path}/data", "/in")),
        python="python3.12",
        root_dir="/srv/root",
        bwrap_path="/opt/bwrap",
        origins=settings.origins,
        file=str(path),
    )
    assert settings.limits.max_timeout == 400.0


def test_flags_add_to_the_files_variables_and_mounts(tmp_path: Path) -> None:
    write(tmp_path, f'mounts = ["{tmp_path}"]\n[env]\nA = "file"\nB = "file"\n', "c.toml")
    flags = {"env": {"B": "flag"}, "mounts": [f"{tmp_path}:/x"]}
    settings = load(tmp_path, flags, RINGFENCE_CONFIG="c.toml")
    assert settings.env == {"A": "file", "B": "flag"}
    assert [mount.target for mount in settings.mounts] == [str(tmp_path), "/x"]


def test_the_project_file_comes_before_the_users_and_is_the_only_one_read(tmp_path: Path) -> None:
    own = write(tmp_path, "pids = 5\ncpus = 5", ".config/ringfence/config.toml")
    other = write(tmp_path, "pids = 6", "xdg/ringfence/config.toml")
    assert load(tmp_path).file == str(own)
    assert load(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "xdg")).file == str(other)
    write(tmp_path, "pids = 7")
    settings = load(tmp_path)
    assert (settings.pids, settings.cpus) == (7, None)


@pytest.mark.parametrize(
    "line",
    [
        'backend = "process"',
        'backend = "LOCAL"',
        'backend = "fake"',
        'mounts = ["/root"]',
        'root_dir = "/"',
        'bwrap_path = "./evil"',
        'python = "./evil"',
    ],
)
def test_a_file_that_may_have_come_with_the_code_can_not_loosen_the_jail(
    tmp_path: Path, line: str
) -> None:
    path = write(tmp_path, line)
    with pytest.raises(ConfigError, match="can't be set by a file in the current directory"):
        load(tmp_path)
    if "root" not in line:
        assert load(tmp_path, RINGFENCE_CONFIG=str(path)).file == str(path)


def test_a_weak_backend_that_no_flag_chose_is_told(cli: Cli) -> None:
    done = cli("run", "echo", "x", RINGFENCE_BACKEND="process")
    assert (done.code, done.out) == (0, b"x\n")
    assert "running without isolation: process was chosen by RINGFENCE_BACKEND" in done.err
    assert cli("run", "--backend", "process", "echo", "x").err == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memroy = 1", "unknown setting 'memroy' (did you mean 'memory'?)"),
        ("whatever = 1", "unknown setting 'whatever' (known are backend, memory"),
        ('memory = "lots"', "memory: 'lots' is not a size"),
        ("memory = true", "memory: True is not a size"),
        ("cpus = nan", "cpus: nan is not a number"),
        ("pids = 1.5", "pids: 1.5 is not a whole number"),
        ("timeout = -1", "timeout: -1 is not a time"),
        ('backend = "dokcer"', "unknown backend 'dokcer'"),
        ("backend = 1", "backend: 1 is not a text"),
        ('env = ["A"]', "env: it must be a table"),
        ("[env]\nA = 1", "env: it must be a table of texts"),
        ('[env]\n"A=B" = "1"', "may not be empty or contain '='"),
        ("memory = ", "is not TOML"),
        ("a = 1\na = 2", "is not TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_name_and_key(
    tmp_path: Path, text: str, said: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        load(tmp_path)
    assert str(path) in str(caught.value)


def test_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "ringfence.toml").mkdir()
    with pytest.raises(ConfigError, match="is not a file"):
        load(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    for name in ("nope.toml", "binary.toml"):
        with pytest.raises(ConfigError, match=re.escape(name)):
            load(tmp_path, RINGFENCE_CONFIG=name)


def test_a_mistyped_variable_is_refused_and_a_strangers_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MEMROY \(did you mean RINGFENCE_MEMORY\?\)"):
        load(tmp_path, RINGFENCE_MEMROY="1g")
    strangers: dict[str, str] = {
        "RINGFENCE_SERVICE_HOST": "10.0.0.1",
        "RINGFENCE_PORT": "tcp://10.0.0.1:80",
        "RINGFENCE_PORT_80_TCP_ADDR": "10.0.0.1",
        "RINGFENCE_REQUIRE_BACKENDS": "process",
        "RINGFENCE_DEBUG": "1",
        "RINGFENCE_MEMORY": "",
    }
    assert load(tmp_path, **strangers) == Settings()


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("512m", 512 << 20), ("1.5G", 3 << 29), ("64 KiB", 65536), ("2tb", 2 << 40), (7, 7)],
)
def test_sizes(text: object, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "m", "1e3", "1x", "1mm", "0.1", 1.5, None, "9" * 99]
)
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("1.5", 1.5), ("200ms", 0.2), ("5m", 300), ("1H", 3600)]
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "0", "-1", "inf", "nan", "1d", "9000h", True, None])
def test_what_is_no_time(text: object) -> None:
    with pytest.raises(ConfigError, match="is not a time"):
        parse_seconds(text)


@given(st.one_of(st.text(max_size=20), st.integers(), st.floats(), st.none(), st.booleans()))
def test_a_size_or_time_is_sound_or_refused(value: object) -> None:
    for parse in (parse_size, parse_seconds):
        with contextlib.suppress(ConfigError):
            assert 0 < parse(value) < 2**63


NO_FLAG = (
    *("workspace_files", "workspace_storage", "bwrap_path", "host"),
    *("kubeconfig", "context", "namespace", "service_account", "runtime_class", "pull_policy"),
)


def test_the_page_names_every_setting() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    names = {item.name for item in fields(Settings)} - {"origins", "file"}
    assert set(re.findall(r"^\| `([a-z_]+)` \|", page, re.MULTILINE)) == names
    flags = set(re.findall(r"\| `(--[a-z-]+)` \|", page))
    assert flags == {
        f"--{name.replace('_', '-').replace('mounts', 'mount')}" for name in names - {*NO_FLAG}
    }
