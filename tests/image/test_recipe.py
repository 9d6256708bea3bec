"""The recipe says the same in both ways, and nothing of the machine that it is carried out on."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

import pytest

import ringfence.image
from ringfence.image import recipe
from ringfence.image.debian import bootstrap_argv, sandbox_argv

PROJECT = Path(__file__).parent.parent.parent
SHIPPED = Path(ringfence.image.__file__).parent / "context"


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_repository_shows_the_recipe_that_the_package_ships() -> None:
    shown = PROJECT / "deploy" / "image"
    if (PROJECT / ".git").exists():  # a source distribution would have the files twice
        assert files(shown) == files(SHIPPED)


def test_the_context_of_a_build_is_the_whole_recipe() -> None:
    with tarfile.open(fileobj=io.BytesIO(recipe.context())) as tar:
        members = {item.name: item for item in tar.getmembers()}
        sent = {name: tar.extractfile(name).read() for name in members}  # type: ignore[union-attr]
    assert sent == files(SHIPPED)
    assert members["setup"].mode & 0o111


def test_settings_are_read_from_the_dockerfile() -> None:
    told = recipe.settings()
    assert "USER 65534:65534" in told
    assert "WORKDIR /workspace" in told
    assert {line.split()[0] for line in told} == {"CMD", "ENV", "USER", "WORKDIR"}
    # A line that goes on would be cut, and two variables on one line would be one.
    assert not [line for line in told if line.endswith("\\") or line.count("=") > 1]


def test_a_digest_is_of_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    before = recipe.digest()
    contents = files(SHIPPED)
    for name in contents:
        changed = {**contents, name: contents[name] + b"\n"}
        monkeypatch.setattr(recipe, "_read", changed.__getitem__)
        assert recipe.digest() != before, name


def test_data_packages_are_an_option() -> None:
    few, many = recipe.packages(with_data=False), recipe.packages(with_data=True)
    data = {"python3-matplotlib", "python3-numpy", "python3-pandas"}
    assert set(many) - set(few) == data | {"python3-ipykernel"}
    assert recipe.labels(with_data=False) != recipe.labels(with_data=True)


def test_no_file_of_the_recipe_names_a_host() -> None:
    for name, content in files(SHIPPED).items():
        assert not re.search(rb"https?://|\.(org|com|io|net)\b", content), name


def test_the_command_that_makes_it_of_packages() -> None:
    argv = bootstrap_argv(
        variant="essential",
        packages=["a", "b"],
        hooks=["true"],
        sources=[Path("/s/one.sources")],
        target=Path("/t/out.tar"),
    )
    assert argv[:3] == ["mmdebstrap", "--mode=root", "--variant=essential"]
    assert "--include=a,b" in argv
    assert argv[-3:] == ["bookworm", "/t/out.tar", "/s/one.sources"]
    hooks = [word.partition("=")[2] for word in argv if word.startswith("--customize-hook=")]
    assert hooks[0] == "true"
    # After all other hooks, which may still need it: how this machine gets its packages.
    assert '"$1"/etc/apt' in hooks[-2]
    assert '"$1"/etc/resolv.conf' in hooks[-1]


def test_where_packages_are_only_unpacked_hooks_run_when_they_are() -> None:
    """mmdebstrap then runs no other hooks, and leaves all that apt had downloaded."""
    argv = bootstrap_argv(
        variant="extract", packages=["a"], hooks=["true"], sources=[], target=Path("/t/out.tar")
    )
    assert "--extract-hook=true" in argv
    assert not [word for word in argv if "customize" in word]


def test_the_setup_is_run_without_this_machines_variables(tmp_path: Path) -> None:
    """HTTP_PROXY, PIP_CERT and the like would otherwise be in what `venv` leaves."""
    argv = sandbox_argv(tmp_path / "setup", tmp_path / "out.tar", with_data=False)
    (hook,) = (word for word in argv if "chroot" in word)
    assert 'chroot "$1" env -i ' in hook
