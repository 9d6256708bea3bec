"""What is shown of the host for an interpreter: all that it needs, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence import ConfigError, Mount
from ringfence.interpreter import find_interpreter, find_virtual_environment


def installation(prefix: Path, version: str = "3.12") -> Path:
    """Make what looks like a Python installation and return its interpreter."""
    library = prefix / "lib" / f"python{version}"
    library.mkdir(parents=True)
    (library / "os.py").touch()
    program = prefix / "bin" / f"python{version}"
    program.parent.mkdir()
    program.write_text("#!/bin/false\n")
    program.chmod(0o755)
    (prefix / "bin" / "python3").symlink_to(program.name)
    return program


def environment(prefix: Path, base: Path, link: Path | None = None) -> Path:
    """Make what looks like a virtual environment of a base and return its interpreter."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text(f"home = {base / 'bin'}\nversion = 3.12\n")
    (prefix / "bin" / "python3").symlink_to(link or base / "bin" / "python3")
    (prefix / "bin" / "python").symlink_to("python3")
    return prefix / "bin" / "python"


def test_a_program_of_the_system_needs_nothing() -> None:
    found = find_interpreter("/usr/bin/env")
    assert (found.path, found.mounts, found.is_virtual) == ("/usr/bin/env", (), False)
    assert found.env("/usr/bin:/bin") == {}


def test_an_installation_is_shown_whole(tmp_path: Path) -> None:
    program = installation(tmp_path / "py")
    found = find_interpreter(str(program))
    assert found.mounts == (Mount(f"{tmp_path}/py"),)
    assert not found.is_virtual
    assert found.env("/bin") == {"PATH": f"{tmp_path}/py/bin:/bin"}


def test_an_environment_is_shown_with_what_it_was_made_from(tmp_path: Path) -> None:
    installation(tmp_path / "py")
    found = find_interpreter(str(environment(tmp_path / "env", tmp_path / "py")))
    assert found.path == f"{tmp_path}/env/bin/python"
    assert found.mounts == (Mount(f"{tmp_path}/env"), Mount(f"{tmp_path}/py"))
    assert found.env("/bin") == {
        "PATH": f"{tmp_path}/env/bin:/bin",
        "VIRTUAL_ENV": f"{tmp_path}/env",
    }


def test_links_on_the_way_are_shown_under_the_names_that_they_have(tmp_path: Path) -> None:
    installation(tmp_path / "store" / "cpython-3.12.5")
    alias = tmp_path / "cpython-3.12"
    alias.symlink_to(tmp_path / "store" / "cpython-3.12.5")
    found = find_interpreter(str(environment(tmp_path / "env", alias)))
    assert set(found.mounts) == {
        Mount(f"{tmp_path}/env"),
        Mount(f"{tmp_path}/store/cpython-3.12.5", str(alias)),
        Mount(f"{tmp_path}/store/cpython-3.12.5"),
    }


def test_a_directory_of_links_is_not_shown(tmp_path: Path) -> None:
    program = installation(tmp_path / "py")
    local = tmp_path / "home" / "bin"
    local.mkdir(parents=True)
    (local / "python3").symlink_to(program)
    found = find_interpreter(str(local / "python3"))
    assert (found.path, found.mounts) == (str(program), (Mount(f"{tmp_path}/py"),))


def test_an_environment_below_its_base_is_shown_once(tmp_path: Path) -> None:
    installation(tmp_path / "py")
    found = find_interpreter(str(environment(tmp_path / "py" / "envs" / "x", tmp_path / "py")))
    assert found.mounts == (Mount(f"{tmp_path}/py"),)


def test_an_environment_can_not_have_other_directories_shown(tmp_path: Path) -> None:
    (tmp_path / "secrets" / "bin").mkdir(parents=True)
    installation(tmp_path / "py")
    program = environment(tmp_path / "env", tmp_path / "secrets", tmp_path / "py/bin/python3")
    with pytest.raises(ConfigError, match="no Python installation"):
        find_interpreter(str(program))


def test_a_loop_of_links_and_a_directory_are_no_interpreter(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for path in (tmp_path / "a", tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="no Python interpreter"):
            find_interpreter(str(path))


def test_the_active_environment() -> None:
    assert find_virtual_environment({}) is None
    assert find_virtual_environment({}, "/own") == "/own/bin/python"
    conda = {"CONDA_PREFIX": "/conda"}
    assert find_virtual_environment(conda, "/own") == "/conda/bin/python"
    assert find_virtual_environment({**conda, "VIRTUAL_ENV": "/v"}, "/own") == "/v/bin/python"
