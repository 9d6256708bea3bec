"""Settings from flags, `RINGFENCE_*` variables and a TOML file, in this order.

A setting has one name everywhere: `memory` in the file is `RINGFENCE_MEMORY` and `--memory`. The
file is the one that `RINGFENCE_CONFIG` names; else `./ringfence.toml`; else `ringfence/config.toml`
in `XDG_CONFIG_HOME` (`~/.config`). One file is read, not several. The one in the current
directory may have come with the very code that is to be jailed, so it can't choose what lies
outside of the jail: see `_OUTWARD`.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from .config import parse_backend
from .errors import CommandError, ConfigError, SandboxError
from .models import MAX_TIMEOUT, Limits, Mount, SandboxSpec

__all__ = (
    "BACKEND_SETTINGS",
    "PREFIX",
    "Settings",
    "load_settings",
    "parse_mount",
    "parse_seconds",
    "parse_size",
)

PREFIX = "RINGFENCE_"
PROJECT_FILE = "ringfence.toml"

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]?)(?:i?b)?\Z", re.IGNORECASE | re.ASCII)
_SECONDS = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*(ms|s|m|h|)\Z", re.IGNORECASE | re.ASCII)
_SECOND_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_MAX_SECONDS = 366 * 86400.0
_AGE_MARGIN = 60.0  # what a sandbox may live beyond its command, to be exported
_MAX_FILE_BYTES = 1 << 20

_CLUSTER = ("kubeconfig", "context", "namespace", "service_account", "runtime_class")
_OUTWARD = frozenset(
    {"bwrap_path", "host", "mounts", "network", "pull", "python", "root_dir", "runtime", *_CLUSTER}
)
"""What decides which of the host's files are used or shown, and what is reached outside."""

BACKEND_SETTINGS = (
    "root_dir",
    "bwrap_path",
    "image",
    "host",
    "network",
    "runtime",
    "pull",
    "workspace_storage",
    *_CLUSTER,
    "pull_policy",
)
"""The settings that are a backend's own, under the names that its config has for them."""


@dataclass(frozen=True)
class Settings:
    """Every setting of a run; None means: not set, take the backend's default.

    Attributes:
        backend: A backend's name, or `auto`.
        memory: Bytes of all processes together.
        cpus: CPU cores' worth of time.
        pids: Processes and threads together.
        open_files: Open descriptors of each process.
        workspace_size: Bytes of the workspace.
        workspace_files: Files and directories of the workspace.
        tmp_size: Bytes of `/tmp`.
        output_size: Bytes kept of each stream where output is collected.
        timeout: Seconds until the command's tree is killed.
        env: Variables of the command.
        mounts: Host paths shown read-only.
        python: The interpreter for scripts: a path on the host, or a name in the sandbox.
        root_dir: A root file system instead of the host's.
        bwrap_path: The `bwrap` program.
        image: The image of containers and pods.
        host: The container engine: `unix:///path` or `tcp://name:port`.
        network: What a sandbox may reach: `none`, `bridge`, or a network of the engine.
        runtime: The OCI runtime of containers.
        pull: When to fetch the image: `never`, `missing` or `always`.
        workspace_storage: What a container's workspace is made of: `tmpfs`, `volume` or `loop`.
        kubeconfig: The file that leads to a cluster.
        context: The name of a context in it, or of a docker context.
        namespace: Where pods are made.
        service_account: What they run as.
        runtime_class: Their `runtimeClassName`.
        pull_policy: When a cluster fetches the image: `Always`, `IfNotPresent` or `Never`.
        origins: Where each setting came from, by its name; without those that nobody set.
        file: The settings file that was read, or None.
    """

    backend: str = "auto"
    memory: int | None = None
    cpus: float | None = None
    pids: int | None = None
    open_files: int | None = None
    workspace_size: int | None = None
    workspace_files: int | None = None
    tmp_size: int | None = None
    output_size: int | None = None
    timeout: float | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    python: str | None = None
    root_dir: str | None = None
    bwrap_path: str | None = None
    image: str | None = None
    host: str | None = None
    network: str | None = None
    runtime: str | None = None
    pull: str | None = None
    workspace_storage: str | None = None
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    service_account: str | None = None
    runtime_class: str | None = None
    pull_policy: str | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    file: str | None = None

    @property
    def of_backend(self) -> dict[str, Any]:
        """Those of a backend's own that were set, under the names that its config has."""
        found = {name: getattr(self, name) for name in BACKEND_SETTINGS}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def limits(self) -> Limits:
        """The limits that were set. A timeout of more than five minutes raises its ceiling."""
        longest = self.timeout if self.timeout and self.timeout > MAX_TIMEOUT else None
        return Limits(
            memory_bytes=self.memory,
            cpus=self.cpus,
            pids=self.pids,
            open_files=self.open_files,
            workspace_bytes=self.workspace_size,
            workspace_files=self.workspace_files,
            tmp_bytes=self.tmp_size,
            output_bytes=self.output_size,
            timeout=self.timeout,
            max_timeout=longest,
            max_age=max(3600.0, longest + _AGE_MARGIN) if longest else None,
        )


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


# Where settings come from.


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
        if key not in _PARSERS:
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
        return _backend(backend) not in ("process", "fake")
    except ConfigError:
        return True  # it is refused when it is parsed, with the key


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are settings, and refuse one that was meant to be.

    Not every unknown variable is refused: others have this prefix too, such as those that
    Kubernetes makes for a service of this name.
    """
    found = {}
    scalars = [name for name in _PARSERS if name not in ("env", "mounts")]
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


_NO_SETTINGS = {PREFIX + name for name in ("CONFIG", "DEBUG", "STATE_DIR")}


def _nearest(key: str) -> str:
    close = get_close_matches(key, _PARSERS, 1)
    return f"did you mean {close[0]!r}?" if close else "known are " + ", ".join(_PARSERS)


# What settings mean.


def _parsed(name: str, raw: object, origin: str) -> Any:
    try:
        return _PARSERS[name](raw)
    except SandboxError as error:
        raise ConfigError(f"{origin}: {error.message}", hint=error.hint) from None


def parse_size(value: object) -> int:
    """Return a number of bytes: `512m`, `1.5g`, `64KiB` or a bare number; k is 1024.

    Raises:
        ConfigError: It is none, or not above zero.
    """
    match = _SIZE.match(str(value).strip()) if type(value) in (str, int) else None
    size = int(_number(match[1]) * _UNITS[match[2].lower()]) if match else 0
    if not 0 < size < 1 << 63:
        raise ConfigError(f"{value!r:.80} is not a size", hint="give bytes, or 512m, 1.5g")
    return size


def parse_seconds(value: object) -> float:
    """Return a number of seconds: `30`, `1.5`, `200ms`, `5m`, `1h`.

    Raises:
        ConfigError: It is none, or not above zero.
    """
    match = _SECONDS.match(str(value).strip()) if type(value) in (str, int, float) else None
    seconds = float(match[1]) * _SECOND_UNITS[match[2].lower()] if match else 0.0
    if not 0 < seconds <= _MAX_SECONDS:
        raise ConfigError(f"{value!r:.80} is not a time", hint="give seconds, or 200ms, 5m, 1h")
    return seconds


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)


def parse_mount(text: str) -> Mount:
    """Return the mount that `SOURCE` or `SOURCE:TARGET` stands for; the source may be relative.

    Raises:
        ConfigError: The source does not exist, or the target is not absolute.
    """
    source, target = text, ""
    if not os.path.exists(text) and ":" in text:
        source, _, target = text.rpartition(":")
    if not source or not os.path.exists(source):
        raise ConfigError(f"{source or text!r} does not exist", hint="give SOURCE or SOURCE:TARGET")
    return Mount(os.path.abspath(source), target)


def _whole(value: object) -> int:
    text = str(value).strip() if type(value) in (str, int) else ""
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 19 and int(text)):
        raise ConfigError(f"{value!r:.80} is not a whole number above zero")
    return int(text)


def _cores(value: object) -> float:
    try:
        cores = float(value) if type(value) in (str, int, float) else math.nan  # type: ignore[arg-type]
    except ValueError:
        cores = math.nan
    if not 0 < cores < math.inf:
        raise ConfigError(f"{value!r:.80} is not a number of CPU cores above zero")
    return cores


def _text(value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{value!r:.80} is not a text")
    return value


def _path(value: object) -> str:
    return os.path.abspath(os.path.expanduser(_text(value)))


def _python(value: object) -> str:
    text = _text(value)
    return _path(text) if "/" in text else text  # a bare name is looked up in the sandbox


def _backend(value: object) -> str:
    return parse_backend(_text(value))


def _env(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(item, str) for item in value.values()):
        raise ConfigError("it must be a table of texts", hint='[env] with NAME = "value" below it')
    try:
        SandboxSpec(env=value)  # which checks the names
    except CommandError as error:
        raise ConfigError(error.message) from None
    return dict(value)


def _mounts(value: object) -> tuple[Mount, ...]:
    if not isinstance(value, (list, tuple)):
        raise ConfigError("it must be a list", hint='mounts = ["/srv/data", "/srv/x:/data"]')
    return tuple(item if isinstance(item, Mount) else parse_mount(_text(item)) for item in value)


_PARSERS: dict[str, Callable[[object], Any]] = {
    "backend": _backend,
    "memory": parse_size,
    "cpus": _cores,
    "pids": _whole,
    "open_files": _whole,
    "workspace_size": parse_size,
    "workspace_files": _whole,
    "tmp_size": parse_size,
    "output_size": parse_size,
    "timeout": parse_seconds,
    "env": _env,
    "mounts": _mounts,
    "python": _python,
    "root_dir": _path,
    "bwrap_path": _path,
    "image": _text,
    "host": _text,
    "network": _text,
    "runtime": _text,
    "pull": _text,
    "workspace_storage": _text,
    "kubeconfig": _path,
    **dict.fromkeys(_CLUSTER[1:], _text),
    "pull_policy": _text,
}

assert _PARSERS.keys() == {item.name for item in fields(Settings)} - {"origins", "file"}
