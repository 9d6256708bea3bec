"""Debian packages: installed, unpacked, or taken from a suite that the machine has not set up.

Whatever mirror the machine uses is taken from its own apt sources; no host is named here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ringfence.image.apt_sources import read_sources

from .steps import CACHE, ServiceError, need_root, step

QUIET = ("-qq", "-o=Dpkg::Use-Pty=0")


def install(packages: Sequence[str], *, programs: Sequence[str]) -> None:
    """Install packages, unless the programs that they are wanted for are there.

    Raises:
        ServiceError: Not root, no apt, or apt failed.
    """
    if all(map(find_program, programs)):
        return
    words = " ".join(packages)
    if not shutil.which("apt-get"):
        raise ServiceError(f"there is no apt-get here: install {words} in this system's own way")
    need_root(f"installing {words}", "install them yourself")
    with step(f"installed {words}"):
        argv = ("apt-get", *QUIET, "install", "-y", "--no-install-recommends", *packages)
        if _run(argv).returncode:  # the lists may be missing, or older than the mirror
            _run(("apt-get", *QUIET, "update"))
            checked(argv)


def find_program(name: str) -> str | None:
    """Return where a program is, also where only root's PATH leads."""
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def unpack(package: str) -> Path:
    """Download a package and return the directory that it is unpacked in; nothing is installed.

    Raises:
        ServiceError: There is no apt here, or it failed.
    """
    directory = CACHE / "packages" / package
    if directory.is_dir():
        return directory
    if not shutil.which("apt-get"):
        raise ServiceError(f"there is no apt-get here, which {package} comes by")
    with step(f"unpacked {package}"), tempfile.TemporaryDirectory() as scratch:
        _apt_can_write(scratch)
        argv = ("apt-get", *QUIET, "download", package)
        if _run(argv, cwd=scratch).returncode:
            need_root("apt-get update", f"run it, for {package}")
            _run(("apt-get", *QUIET, "update"))
            checked(argv, cwd=scratch)
        (archive,) = Path(scratch).glob("*.deb")
        directory.parent.mkdir(parents=True, exist_ok=True)
        partial = directory.with_suffix(f".{os.getpid()}")
        checked(("dpkg-deb", "-x", str(archive), str(partial)))
        partial.rename(directory)
    return directory


def source(package: str, directory: Path) -> None:
    """Download a source package into a directory: its description (`.dsc`) and what that names.

    Raises:
        ServiceError: There is no apt here, no source of this release, or apt failed.
    """
    if not shutil.which("apt-get"):
        raise ServiceError(f"there is no apt-get here, which the source of {package} comes by")
    with step(f"downloaded the source of {package}"), tempfile.TemporaryDirectory() as scratch:
        release = _release()
        stanzas = [stanza for _, stanza in read_sources()]
        private = _apart(scratch, sources_of(stanzas, release))
        checked(("apt-get", *QUIET, *private, "update"))
        fetch = ("source", "--download-only", "-o=APT::Sandbox::User=root", package)
        checked(("apt-get", *QUIET, *private, *fetch), cwd=str(directory))


def install_backport(package: str) -> None:
    """Install a package from the backports of the release that runs here.

    apt is given sources and lists of its own, so that the machine's stay as they are.

    Raises:
        ServiceError: Not root, not Debian, no mirror set up, or apt failed.
    """
    need_root(f"installing {package}", "install it yourself")
    suite = f"{_release()}-backports"
    with step(f"installed {package} from {suite}"), tempfile.TemporaryDirectory() as scratch:
        stanzas = [stanza for _, stanza in read_sources()]
        private = _apart(scratch, backports_of(stanzas, suite))
        checked(("apt-get", *QUIET, *private, "update"))
        checked(("apt-get", *QUIET, *private, "install", "-y", "--no-install-recommends", package))


def backports_of(stanzas: Sequence[dict[str, str]], suite: str) -> str:
    """Return the source of a backports suite, on the mirror that serves its release here.

    Raises:
        ServiceError: No source of that release is set up.
    """
    release = suite.partition("-")[0]
    for stanza in _of_release(stanzas, release):
        return _stanza({**stanza, "Types": "deb", "Suites": suite, "Components": "main"})
    raise ServiceError(f"no apt source of {release} is set up here, so none of {suite} is known")


def sources_of(stanzas: Sequence[dict[str, str]], release: str) -> str:
    """Return where a release's source packages are: on the mirrors that serve it here.

    Raises:
        ServiceError: No source of that release is set up.
    """
    found = [
        _stanza({**stanza, "Types": "deb-src", "Components": "main"})
        for suite in (release, f"{release}-updates", f"{release}-security")
        for stanza in _of_release(stanzas, suite)
    ]
    if not found:
        raise ServiceError(f"no apt source of {release} is set up here, so none of its source is")
    return "\n".join(dict.fromkeys(found))


def _of_release(stanzas: Sequence[dict[str, str]], suite: str) -> Iterator[dict[str, str]]:
    return (stanza for stanza in stanzas if suite in stanza.get("Suites", "").split())


def _stanza(values: dict[str, str]) -> str:
    return "".join(f"{name}: {value}\n" for name, value in values.items())


def _apart(scratch: str, sources: str) -> tuple[str, ...]:
    """Return options that give apt these sources and lists of its own, in a scratch directory."""
    _apt_can_write(scratch)
    path = Path(scratch, "apart.sources")
    path.write_text(sources, "utf-8")
    lists = Path(scratch, "lists")
    lists.mkdir()
    return (
        f"-o=Dir::Etc::SourceList={path}",
        "-o=Dir::Etc::SourceParts=-",
        f"-o=Dir::State::Lists={lists}",
        "-o=Dir::Cache::pkgcache=",
        "-o=Dir::Cache::srcpkgcache=",
    )


def _release() -> str:
    try:
        lines = Path("/etc/os-release").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    values = dict(line.partition("=")[::2] for line in lines)
    if values.get("ID") != "debian":
        raise ServiceError("this is no Debian, whose backports are wanted")
    return values.get("VERSION_CODENAME", "")


def _apt_can_write(directory: str) -> None:
    # apt downloads as a user of its own.
    os.chmod(directory, 0o777)


def _run(
    argv: Sequence[str],
    *,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    seconds: float = 600,
) -> subprocess.CompletedProcess[str]:
    usual = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    return subprocess.run(
        argv,
        env={**os.environ, **usual, **(env or {})},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
    )


def checked(
    argv: Sequence[str],
    *,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    seconds: float = 600,
) -> None:
    """Run a program to its end.

    Raises:
        ServiceError: It failed; with the end of what it said.
    """
    done = _run(argv, cwd=cwd, env=env, seconds=seconds)
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
        raise ServiceError(f"{argv[0]} failed:\n{end}")
