"""What the text or the value of each setting means."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from ..config import parse_backend
from ..errors import CommandError, ConfigError
from ..models import Mount, SandboxSpec
from .values import CLUSTER, Settings

__all__ = ("PARSERS", "parse_mount", "parse_seconds", "parse_size")

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]?)(?:i?b)?\Z", re.IGNORECASE | re.ASCII)
_SECONDS = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*(ms|s|m|h|)\Z", re.IGNORECASE | re.ASCII)
_SECOND_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

_MAX_SECONDS = 366 * 86400.0


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


PARSERS: dict[str, Callable[[object], Any]] = {
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
    **dict.fromkeys(CLUSTER[1:], _text),
    "pull_policy": _text,
}
"""Makes the value of each setting of what was given; raises `ConfigError` for what is none."""

assert PARSERS.keys() == {item.name for item in fields(Settings)} - {"origins", "file"}
