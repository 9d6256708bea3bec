"""A Python interpreter of the host, and what has to be shown for it to work inside a sandbox.

An interpreter is more than a file: a chain of links, the installation at its end, and, for a
virtual environment, both that and the installation that it was made from. All of it is found by
reading links and `pyvenv.cfg`. Nothing is executed, since who asks to run untrusted code may name
an environment that came with it.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ConfigError
from .models import Mount

__all__ = ("Interpreter", "find_interpreter", "find_virtual_environment")

SYSTEM_DIRS = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
"""What a jail shows of the host anyway."""

_MAX_LINKS = 40  # as the kernel
_MAX_CFG_BYTES = 64 * 1024


@dataclass(frozen=True)
class Interpreter:
    """A Python as a sandbox sees it.

    Attributes:
        path: What to run: absolute, or a name that the sandbox's own `PATH` has.
        prefix: The directory of its installation or virtual environment, if that is known.
        mounts: What to show read-only for it.
        is_virtual: Whether it is a virtual environment's.
    """

    path: str
    prefix: str = ""
    mounts: tuple[Mount, ...] = ()
    is_virtual: bool = False

    def env(self, search_path: str) -> Mapping[str, str]:
        """Return the variables that make it the `python` of a sandbox.

        Args:
            search_path: The sandbox's own `PATH`.
        """
        directory = os.path.dirname(self.path)
        if not directory or directory in search_path.split(":"):
            return {}
        variables = {"PATH": f"{directory}:{search_path}"}
        return variables | {"VIRTUAL_ENV": self.prefix} if self.is_virtual else variables


def find_interpreter(path: str, shown: tuple[str, ...] = SYSTEM_DIRS) -> Interpreter:
    """Return what a sandbox needs to run an interpreter of the host.

    Args:
        path: The interpreter: of an installation, of a virtual environment, or a link to either.
        shown: Directories that the sandbox shows anyway.

    Raises:
        ConfigError: There is no program at the path, or it belongs to no Python installation.
    """
    path = os.path.abspath(path)
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise ConfigError(f"there is no Python interpreter at {path!r}")
    hops = [hop for hop in _links(path) if _is_shown(hop, shown) or _is_prefix(_prefix(hop))]
    if not hops:
        raise ConfigError(
            f"{path!r} is in no Python installation",
            hint='a shim? name what `python -c "import sys; print(sys.executable)"` prints',
        )
    prefixes = [_prefix(hop) for hop in hops if not _is_shown(hop, shown)]
    prefix = _prefix(hops[0])
    for home in _home(prefix):
        if not _is_shown(home, shown) and not _has_library(os.path.dirname(home)):
            raise ConfigError(
                f"the virtual environment {prefix!r} was made from {home!r}, "
                "where there is no Python installation",
                hint="make it anew",
            )
        prefixes += [
            os.path.dirname(place)
            for place in (home, os.path.realpath(home))
            if not _is_shown(place, shown)
        ]
    mounts = tuple(Mount(os.path.realpath(one), one) for one in _outermost(prefixes))
    return Interpreter(hops[0], prefix, mounts, is_virtual=bool(_home(prefix)))


def find_virtual_environment(environ: Mapping[str, str], own_prefix: str = "") -> str | None:
    """Return the interpreter of the environment that is active, or None.

    Args:
        environ: Variables, of which `VIRTUAL_ENV` and `CONDA_PREFIX` name it.
        own_prefix: An environment to take if neither is set.
    """
    for prefix in (environ.get("VIRTUAL_ENV"), environ.get("CONDA_PREFIX"), own_prefix):
        if prefix:
            return os.path.join(prefix, "bin", "python")
    return None


def _links(path: str) -> list[str]:
    """Return a path, and each that a link in the place of the one before leads to."""
    chain = [path]
    while os.path.islink(chain[-1]) and len(chain) < _MAX_LINKS:
        where = os.path.dirname(chain[-1])
        chain.append(os.path.normpath(os.path.join(where, os.readlink(chain[-1]))))
    return chain


def _prefix(interpreter: str) -> str:
    return os.path.dirname(os.path.dirname(interpreter))


def _is_prefix(directory: str) -> bool:
    """Whether it holds a Python: nothing else may be shown because a file or link says so."""
    return os.path.isfile(f"{directory}/pyvenv.cfg") or _has_library(directory)


def _has_library(directory: str) -> bool:
    patterns = (f"{glob.escape(directory)}/lib*/{name}3*/os.py" for name in ("python", "pypy"))
    return directory != "/" and any(glob.glob(pattern) for pattern in patterns)


def _is_shown(path: str, shown: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in shown)


def _home(prefix: str) -> list[str]:
    """Return where the interpreter of a virtual environment is; nothing if it is none."""
    try:
        with open(f"{prefix}/pyvenv.cfg", "rb") as file:
            text = file.read(_MAX_CFG_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        home = value.strip()
        if key.strip().lower() == "home" and os.path.isabs(home) and "\0" not in home:
            return [os.path.normpath(home)]
    return []


def _outermost(directories: list[str]) -> list[str]:
    """Return each once, without those that lie in another."""
    every = sorted(set(directories))
    return [one for one in every if not any(one.startswith(f"{other}/") for other in every)]
