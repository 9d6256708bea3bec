"""An environment for each framework and version, made by uv."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .frameworks import Framework

PROJECT = Path(__file__).resolve().parent.parent.parent
CACHE = PROJECT / ".cache" / "suites"
"""Where the environments are; ignored by git, and safe to remove."""

TOOLS = ("pytest>=8.2", "pytest-timeout>=2.3", "pytest-asyncio>=1.0")
NEWEST_SECONDS = 12 * 3600
"""How long the newest version that was found counts as the newest one."""

INSTALL_SECONDS = 600


class SuiteError(Exception):
    """A suite can't be run here; the message says what to do about it."""


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
    def home(self) -> Path:
        """Its directory."""
        pinned = self.framework.pins[self.framework.distribution]
        kind = "pinned" if self.version == pinned else "newest"
        return CACHE / f"{self.framework.name}-{kind}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.home / "bin" / "python"


def environments(framework: Framework, kinds: Sequence[str]) -> list[Environment]:
    """Return the environments for the kinds that are wanted; one, if it is the same version."""
    pinned = framework.pins[framework.distribution]
    versions = {kind: pinned if kind == "pinned" else _newest(framework) for kind in kinds}
    if len(set(versions.values())) == 1:
        return [Environment(framework, versions[kinds[0]], tuple(kinds))]
    return [Environment(framework, version, (kind,)) for kind, version in versions.items()]


def has_python(framework: Framework) -> bool:
    """Whether there is a Python here on which the framework runs."""
    done = _uv("python", "find", "--no-project", f">={framework.python}", check=False)
    return done.returncode == 0


def make(environment: Environment) -> None:
    """Have the environment, as pyproject.toml and the framework's row say; safe to call again.

    Raises:
        SuiteError: Something that it needs can't be installed.
    """
    stamp = environment.home / "made"
    recipe = _recipe(environment)
    if stamp.is_file() and stamp.read_text("utf-8") == recipe:
        return
    framework = environment.framework
    python = sys.executable if framework.python == "3.11" else f">={framework.python}"
    _uv("venv", "--quiet", "--clear", "--no-project", "--python", python, str(environment.home))
    _uv(
        *("pip", "install", "--quiet", "--python", str(environment.python)),
        *("--editable", f"{PROJECT}[{','.join((framework.extra, *framework.extras))}]"),
        *_requirements(environment),
    )
    stamp.write_text(recipe, "utf-8")


def _requirements(environment: Environment) -> list[str]:
    framework = environment.framework
    if environment.version == framework.pins[framework.distribution]:
        wanted = [f"{name}=={version}" for name, version in framework.pins.items()]
        wanted += framework.also_pinned
    else:
        wanted = [f"{framework.distribution}=={environment.version}"]
        for name, version in list(framework.pins.items())[1:]:
            wanted.append(f"{name}>={version},<{int(version.split('.')[0]) + 1}")
    return [*wanted, *TOOLS, *framework.also]


def _recipe(environment: Environment) -> str:
    """Return a text that changes when the environment has to be made anew."""
    parts = [*_requirements(environment), environment.framework.python, sys.version]
    project = _project()
    extras = (environment.framework.extra, *environment.framework.extras)
    parts += [repr(project["optional-dependencies"][extra]) for extra in extras]
    parts += [repr(project["dependencies"]), repr(project.get("entry-points"))]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _project() -> dict[str, Any]:
    with open(PROJECT / "pyproject.toml", "rb") as file:
        project: dict[str, Any] = tomllib.load(file)["project"]
    return project


def _newest(framework: Framework) -> str:
    """Return the newest version that the extra's range allows, asked for at most twice a day."""
    known = CACHE / f"{framework.name}.newest"
    if known.is_file() and time.time() - known.stat().st_mtime < NEWEST_SECONDS:
        return known.read_text("utf-8")
    ranges = _project()["optional-dependencies"][framework.extra]
    done = _uv(
        *("pip", "compile", "--quiet", "--no-header", "--no-annotate"),
        *("--python-version", framework.python, "-"),
        text="\n".join(ranges),
    )
    found = dict(line.split("==") for line in done.stdout.splitlines() if "==" in line)
    version = found.get(framework.distribution)
    if version is None:
        raise SuiteError(
            f"the extra {framework.extra!r} does not install {framework.distribution}: see the "
            "framework's row in scripts/suites/frameworks.py"
        )
    CACHE.mkdir(parents=True, exist_ok=True)
    known.write_text(version, "utf-8")
    return version


def _uv(*words: str, text: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "uv", *words],
            input=text,
            capture_output=True,
            text=True,
            env=_surroundings(),
            timeout=INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise SuiteError(f"uv {' '.join(words[:2])}: not done in {INSTALL_SECONDS} s") from None
    if check and done.returncode != 0:
        raise SuiteError(f"uv {' '.join(words)}\n{done.stderr.strip()}")
    return done


def _surroundings() -> dict[str, str]:
    """Return the environment for uv: the system's certificates and pip's index are its own too."""
    found = {"UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1", **os.environ}
    # A shim of pyenv's answers for a version that is not chosen with an error; the versions don't.
    places = [place for place in found.get("PATH", "").split(os.pathsep) if "/shims" not in place]
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found["PATH"] = os.pathsep.join([*places, *map(str, sorted(root.glob("versions/3.*/bin")))])
    for name, setting in (("UV_DEFAULT_INDEX", "index-url"), ("SSL_CERT_FILE", "cert")):
        if name not in found and (value := _pip_setting(setting)):
            found[name] = value
    return found


def _pip_setting(name: str) -> str:
    for section in (":env:", "global", "install"):
        done = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", f"{section}.{name}"],
            capture_output=True,
            text=True,
        )
        if done.returncode == 0:
            return done.stdout.strip()
    return ""
