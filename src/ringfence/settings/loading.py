"""Where settings come from, and which of them goes before another."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from ..errors import ConfigError, SandboxError
from .parsers import PARSERS
from .values import CLUSTER, Settings

__all__ = ("PREFIX", "load_settings")

PREFIX = "RINGFENCE_"
PROJECT_FILE = "ringfence.toml"

_MAX_FILE_BYTES = 1 << 20

_OUTWARD = frozenset(
    {"bwrap_path", "host", "mounts", "network", "pull", "python", "root_dir", "runtime", *CLUSTER}
)
"""What decides which of the host's files are used or shown, and what is reached outside."""

_NO_SETTINGS = {PREFIX + name for name in ("CONFIG", "DEBUG", "STATE_DIR")}


def load_settings(
    flags: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    directory: str | None = None,
) -> Settings:
    """Put the settings together: flags over variables over the file over the defaults.

    `env` and `mounts` of the flags are added to the file's.

    Args:
        flags: By name, as text or as values; those that are None were not given.
        environ: Variables; default: this process's.
        directory: Where a project's file is looked for; default: the current directory.

    Raises:
        ConfigError: A setting is unknown or wrong; the message names where it was made.
    """
    environ = os.environ if environ is None else environ
    path, is_project = _find_file(environ, directory or os.getcwd())
    layers = [
        (path, _read_file(path, is_project) if path else {}),
        (None, _from_environment(environ)),
        (None, {f"--{name.replace('_', '-')}": value for name, value in flags.items()}),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for file, layer in layers:
        for key, raw in layer.items():
            if raw is None:
                continue
            name = key.removeprefix("--").removeprefix(PREFIX).lower().replace("-", "_")
            origin = f"{file}: {key}" if file else key
            value = _parsed(name, raw, origin)
            if name == "env":
                value = {**values.get("env", {}), **value}
            elif name == "mounts":
                value = (*values.get("mounts", ()), *value)
            values[name] = value
            origins[name] = origin
    return Settings(**values, origins=origins, file=path)


def _find_file(environ: Mapping[str, str], directory: str) -> tuple[str | None, bool]:
    """Return the file to read, and whether it is one that a project brought along."""
    if named := environ.get(f"{PREFIX}CONFIG"):
        return os.path.join(directory, named), False
    project = os.path.join(directory, PROJECT_FILE)
    if os.path.lexists(project):
        return project, True
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or "/", ".config")
    own = os.path.join(base, "ringfence", "config.toml")
    return (own, False) if os.path.isabs(base) and os.path.exists(own) else (None, False)


def _read_file(path: str, is_project: bool) -> dict[str, Any]:
    if not os.path.isfile(path):
        raise ConfigError(f"{path} is not a file")
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigError(f"{path} is too large for a settings file")
        found = tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"{path} is not TOML: {error}") from error
    for key, value in found.items():
        if key not in PARSERS:
            raise ConfigError(f"{path}: unknown setting {key!r}", hint=_nearest(key))
        if is_project and (key in _OUTWARD or (key == "backend" and not _isolates(value))):
            raise ConfigError(
                f"{path}: {key} can't be set by a file in the current directory, which may have "
                "come with the code to be run",
                hint=f"set it by flag or variable, or trust the file: {PREFIX}CONFIG={path}",
            )
    return found


def _isolates(backend: object) -> bool:
    try:
        return PARSERS["backend"](backend) not in ("process", "fake")
    except ConfigError:
        return True  # it is refused when it is parsed, with the key


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are settings, and refuse one that was meant to be.

    Not every unknown variable is refused: others have this prefix too, such as those that
    Kubernetes makes for a service of this name.
    """
    found = {}
    scalars = [name for name in PARSERS if name not in ("env", "mounts")]
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable in _NO_SETTINGS:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name in scalars:
            if value:  # a variable that is set but empty says nothing
                found[variable] = value
        elif close := get_close_matches(name, scalars, 1, 0.75):
            raise ConfigError(
                f"unknown setting {variable}", hint=f"did you mean {PREFIX}{close[0].upper()}?"
            )
    return found


def _nearest(key: str) -> str:
    close = get_close_matches(key, PARSERS, 1)
    return f"did you mean {close[0]!r}?" if close else "known are " + ", ".join(PARSERS)


def _parsed(name: str, raw: object, origin: str) -> Any:
    try:
        return PARSERS[name](raw)
    except SandboxError as error:
        raise ConfigError(f"{origin}: {error.message}", hint=error.hint) from None
