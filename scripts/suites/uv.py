"""uv, as the suites use it: with this machine's certificates and index, and patient."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SECONDS = 600
"""How long one call may take."""

PATIENCE = {"UV_HTTP_TIMEOUT": "60", "UV_HTTP_RETRIES": "8"}
"""A registry that does not answer at once is asked again."""


class SuiteError(Exception):
    """A suite can't be run here; the message says what to do about it."""


def uv(*words: str, text: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command of uv, with the text on its stdin.

    Raises:
        SuiteError: It failed, or took too long.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-m", "uv", *words],
            input=text,
            capture_output=True,
            text=True,
            env=_surroundings(),
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise SuiteError(f"uv {' '.join(words[:2])}: not done in {SECONDS} s") from None
    if check and done.returncode != 0:
        raise SuiteError(f"uv {' '.join(words)}\n{done.stderr.strip()}")
    return done


def _surroundings() -> dict[str, str]:
    """Return the environment for uv: the system's certificates and pip's index are its own too."""
    own = {"UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1", **PATIENCE}
    found = {**own, **os.environ}
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
