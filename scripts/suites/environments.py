"""An environment for each framework and version, made by uv from its lock."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .frameworks import Framework
from .locks import NEWEST, PINNED, PROJECT, lock_path, locked
from .uv import uv

CACHE = PROJECT / ".cache" / "suites"
"""Where the environments are; ignored by git, and safe to remove."""


@dataclass(frozen=True)
class Environment:
    """One framework at one version.

    Attributes:
        framework: The framework.
        version: Of its distribution.
        kinds: What the version is: `pinned`, `newest`, or both.
    """

    framework: Framework
    version: str
    kinds: tuple[str, ...]

    @property
    def lock(self) -> Path:
        """What is installed in it."""
        return lock_path(self.framework, PINNED if PINNED in self.kinds else NEWEST)

    @property
    def home(self) -> Path:
        """Its directory."""
        return CACHE / self.lock.stem

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.home / "bin" / "python"


def environments(framework: Framework, kinds: Sequence[str]) -> list[Environment]:
    """Return the environments for the kinds that are wanted; one, if it is the same version.

    Raises:
        SuiteError: A lock is not what the framework's row asks for.
    """
    if not lock_path(framework, NEWEST).is_file():
        return [Environment(framework, locked(framework, PINNED), (PINNED, NEWEST))]
    return [Environment(framework, locked(framework, kind), (kind,)) for kind in kinds]


def has_python(framework: Framework) -> bool:
    """Whether there is a Python here on which the framework runs."""
    done = uv("python", "find", "--no-project", f">={framework.python}", check=False)
    return done.returncode == 0


def make(environment: Environment) -> None:
    """Have the environment, as its lock says; safe to call again.

    Raises:
        SuiteError: Something that it needs can't be installed.
    """
    stamp = environment.home / "made"
    recipe = _recipe(environment)
    if stamp.is_file() and stamp.read_text("utf-8") == recipe:
        return
    wanted = environment.framework.python
    python = sys.executable if wanted == "3.11" else f">={wanted}"
    uv("venv", "--quiet", "--clear", "--no-project", "--python", python, str(environment.home))
    into = ("--quiet", "--python", str(environment.python))
    lock = str(environment.lock)
    # A package that is built would bring what is in no lock. Ours is, by what the lock has for it.
    uv("pip", "sync", *into, "--require-hashes", "--no-build", lock)
    ours = ("--no-deps", "--build-constraints", lock, "--editable", str(PROJECT))
    uv("pip", "install", *into, *ours)
    stamp.write_text(recipe, "utf-8")


def _recipe(environment: Environment) -> str:
    """Return a text that changes when the environment has to be made anew."""
    parts = [environment.lock.read_bytes(), (PROJECT / "pyproject.toml").read_bytes(), sys.version]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
