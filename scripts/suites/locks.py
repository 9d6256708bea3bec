"""What each environment has in it: exact versions of everything, with their hashes.

A lock is a file of requirements in `locks`, made by uv for every Python from the oldest that the
framework runs on. It begins with what was asked for, so that a lock that is older than
`pyproject.toml` or the framework's row is told from one that fits.

What is newest moves when locks are made anew, and at no other time: what is published tomorrow
can't change what a test says today.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from .frameworks import Framework
from .uv import SuiteError, uv

PROJECT = Path(__file__).resolve().parent.parent.parent
LOCKS = Path(__file__).resolve().parent / "locks"

PINNED, NEWEST = "pinned", "newest"

TOOLS = ("pytest>=8.2", "pytest-timeout>=2.3", "pytest-asyncio>=1.0")
EDITABLE = ("editables",)
"""What hatchling asks for beyond itself when it builds an editable install."""

_ASKED = "# asked for: "


def lock_path(framework: Framework, kind: str) -> Path:
    """Return where a lock is; there is no `newest` one where the pinned version is the newest."""
    return LOCKS / f"{framework.name}-{kind}.txt"


def lock(framework: Framework) -> dict[str, str]:
    """Make a framework's locks anew, and return its versions by kind.

    Raises:
        SuiteError: Nothing that can be installed is what was asked for.
    """
    made = {kind: _compiled(framework, kind) for kind in (PINNED, NEWEST)}
    versions = {kind: _version(framework, text) for kind, text in made.items()}
    if versions[NEWEST] == versions[PINNED]:
        del made[NEWEST]
        lock_path(framework, NEWEST).unlink(missing_ok=True)
    for kind, text in made.items():
        lock_path(framework, kind).write_text(text, "utf-8")
    return versions


def locked(framework: Framework, kind: str) -> str:
    """Return the version of a framework that a lock has.

    Raises:
        SuiteError: There is no lock, or one that something else was asked for.
    """
    path = lock_path(framework, kind)
    text = path.read_text("utf-8") if path.is_file() else ""
    asked = [line.removeprefix(_ASKED) for line in text.splitlines() if line.startswith(_ASKED)]
    if asked != requirements(framework, kind):
        raise SuiteError(
            f"{path} is not what pyproject.toml and scripts/suites/frameworks.py ask for: "
            f"python -m scripts.suites lock {framework.name}"
        )
    return _version(framework, text)


def requirements(framework: Framework, kind: str) -> list[str]:
    """Return what an environment needs, ringfence itself aside."""
    project, build = _project()
    extras = (framework.extra, *framework.extras)
    wanted = [*project["dependencies"]]
    wanted += [line for extra in extras for line in project["optional-dependencies"][extra]]
    if kind == PINNED:
        wanted += [f"{name}=={version}" for name, version in framework.pins.items()]
        wanted += framework.also_pinned
    else:
        for name, version in list(framework.pins.items())[1:]:
            wanted.append(f"{name}>={version},<{int(version.split('.')[0]) + 1}")
    return [*wanted, *build["requires"], *EDITABLE, *TOOLS, *framework.also]


def _compiled(framework: Framework, kind: str) -> str:
    asked = requirements(framework, kind)
    done = uv(
        *("pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-emit-index-url"),
        *("--generate-hashes", "--only-binary", ":all:"),
        *("--universal", "--python-version", framework.python, "-"),
        text="\n".join(asked),
    )
    told = (
        "# Every version of this environment; `python -m scripts.suites lock` makes it anew.",
        *(f"{_ASKED}{line}" for line in asked),
    )
    return "\n".join((*told, done.stdout))


def _version(framework: Framework, text: str) -> str:
    found = re.search(rf"^{re.escape(framework.distribution)}==([^ ;]+)", text, re.MULTILINE)
    if found is None:
        raise SuiteError(
            f"the extra {framework.extra!r} does not install {framework.distribution}: see the "
            "framework's row in scripts/suites/frameworks.py"
        )
    return found[1]


def _project() -> tuple[dict[str, Any], dict[str, Any]]:
    with open(PROJECT / "pyproject.toml", "rb") as file:
        found = tomllib.load(file)
    return found["project"], found["build-system"]
