"""The program that a cluster is made of, built from Debian's source package of Kubernetes.

No package has the server's programs, but the source is complete: with Debian's Go compiler it
takes a minute or two, once. What is built is kept under the checksum of the source and of what
builds it here.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from . import debian
from .steps import CACHE, step

PROGRAM = "cluster"
SOURCE = Path(__file__).with_name("kubernetes_cluster.go")
KEPT = CACHE / "kubernetes-programs"
WORK = KEPT / "work"
PACKAGES = ("golang-go", "dpkg-dev")
PROGRAMS = ("go", "dpkg-source")
ROOT = "k8s.io/kubernetes"
FLAGS = ("-tags=providerless dockerless",)
"""Without clouds and the kubelet's own way to Docker: large, and not used here."""

SETTINGS = {
    "GO111MODULE": "off",  # all that it needs is in the source package
    "CGO_ENABLED": "0",
    "GOFLAGS": "",
}
HASTE = {"GOGC": "off", "GOMEMLIMIT": "1GiB"}
"""A compiler that lives for seconds need not collect its garbage: a third less work."""

BUILD_SECONDS = 3000
VERSIONS = ("component-base/version", "client-go/pkg/version")
"""Where a part keeps what it says of itself."""

NEVER = ("code-generator", "sample-apiserver", "_examples")


def program() -> Path:
    """Return the program, built if it has not been yet.

    Raises:
        ServiceError: The source can't be had, or it does not build here.
    """
    with _alone():
        if kept := kept_program():
            shutil.rmtree(WORK, ignore_errors=True)  # of a build that was stopped when it was done
            return kept
        description = _fetch()
        target = KEPT / f"{_builder()}-{_digest(description.read_bytes())}"  # it has all checksums
        with step("kubernetes: built its program"):
            _build(description, target)
        shutil.rmtree(WORK)
        return target / PROGRAM


def fetch() -> None:
    """Have what the build takes, which is then only work.

    Raises:
        ServiceError: It can't be had.
    """
    with _alone():
        _fetch()


def kept_program() -> Path | None:
    """Return the program if one that this builder has built is kept."""
    return next(KEPT.glob(f"{_builder()}-*/{PROGRAM}"), None)


def _builder() -> str:
    recipe = repr((FLAGS, VERSIONS, SETTINGS, NEVER)).encode()
    return _digest(SOURCE.read_bytes() + recipe)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _fetch() -> Path:
    debian.install(PACKAGES, programs=PROGRAMS)
    place = WORK / "source"
    if not place.is_dir():
        partial = place.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        debian.source("kubernetes", partial)
        partial.rename(place)
    (description,) = place.glob("*.dsc")
    return description


def _build(description: Path, target: Path) -> None:
    """Build in a place that stays until it is done, so that one that was stopped goes on there."""
    tree = WORK / "path" / "src" / ROOT
    if not tree.is_dir():
        with step("kubernetes: unpacked its source"):
            tree.parent.mkdir(parents=True, exist_ok=True)
            partial = tree.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            unpack = ("dpkg-source", "--no-check", "-x", str(description), str(partial))
            debian.checked(unpack)
            partial.rename(tree)
    with step("kubernetes: described its types"):
        _describe(tree)
    main = tree / "cmd" / "ringfence-cluster"
    main.mkdir(exist_ok=True)
    shutil.copyfile(SOURCE, main / "main.go")
    target.mkdir(parents=True, exist_ok=True)
    draft = target / f"{PROGRAM}.new"
    with step("kubernetes: compiled"):
        linker = f"-ldflags={' '.join(linked(description))}"
        _go(tree, "build", *FLAGS, linker, "-o", str(draft), "./cmd/ringfence-cluster")
    draft.rename(target / PROGRAM)


def linked(description: Path) -> list[str]:
    """Return the linker's flags: without symbols, and the version, which the source has not.

    Debian's may say that it is `1.20.5+really1.20.2`.
    """
    version = description.stem.partition("_")[2].rpartition("-")[0]
    upstream = re.findall(r"\d+\.\d+\.\d+", version)[-1]
    major, minor, _ = upstream.split(".")
    values = {
        "gitMajor": major,
        "gitMinor": minor,
        "gitVersion": f"v{upstream}",
        "gitTreeState": "archive",
    }
    packages = [f"{ROOT}/vendor/k8s.io/{name}" for name in VERSIONS]
    said = [f"-X={package}.{key}={value}" for package in packages for key, value in values.items()]
    return ["-s", "-w", *said]


def _describe(tree: Path) -> None:
    """Write the one file that the source is without: its types in the words of OpenAPI."""
    generator = WORK / "openapi-gen"
    _go(tree, "build", "-o", str(generator), "./vendor/k8s.io/code-generator/cmd/openapi-gen")
    words = {
        "--output-file-base": "zz_generated.openapi",
        "--go-header-file": "vendor/k8s.io/code-generator/hack/boilerplate.go.txt",
        "--input-dirs": ",".join(described(tree)),
        "--output-package": f"{ROOT}/pkg/generated/openapi",
        "--report-filename": str(WORK / "report"),
    }
    argv = [str(generator), *(f"{name}={value}" for name, value in words.items())]
    debian.checked(argv, cwd=str(tree), env=_env())


def _go(tree: Path, *words: str) -> None:
    debian.checked(("go", *words), cwd=str(tree), env=_env(), seconds=BUILD_SECONDS)


def _env() -> dict[str, str]:
    return {**SETTINGS, **HASTE, "GOPATH": str(WORK / "path"), "GOCACHE": str(WORK / "compiled")}


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    KEPT.mkdir(parents=True, exist_ok=True)
    with open(KEPT / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def described(tree: Path) -> list[str]:
    """Return the packages in a source tree whose types are to be described, by import path."""
    found = set()
    for part in ("cmd", "pkg", "plugin", "staging/src/k8s.io"):
        for path in (tree / part).rglob("*.go"):
            if b"+k8s:openapi-gen=" in path.read_bytes():
                found.add(path.parent.relative_to(tree))
    staged = Path("staging/src")
    return sorted(
        f"{ROOT}/vendor/{place.relative_to(staged)}"
        if place.is_relative_to(staged)
        else f"{ROOT}/{place}"
        for place in found
        if not any(word in place.parts for word in NEVER)
    )


if __name__ == "__main__":
    program()
