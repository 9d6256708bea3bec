"""Which backends there are, and how a config becomes one.

A backend's module, and with it whatever heavy package it needs, is imported when the backend is
asked for and not before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias, cast

import anyio

from .backend import Backend
from .backends.auto import AutoBackend
from .config import CONFIGS, AnyConfig, BackendConfig, parse_backend
from .errors import (
    BackendUnavailableError,
    ConfigError,
    IsolationWarning,
    MissingDependencyError,
)

__all__ = ("BACKENDS", "Config", "Entry", "load_backend", "open_backend", "select_backend")

PROBE_TIMEOUT = 10.0
"""Seconds that a backend gets to say whether it can run here."""

Config: TypeAlias = AnyConfig | BackendConfig | Mapping[str, Any] | str


@dataclass(frozen=True)
class Entry:
    """Where a backend is, and what it needs.

    Attributes:
        path: `module:class`, or empty for a backend that this version does not have.
        extra: The extra of this package that brings what it needs; empty if it needs nothing.
        hint: What it takes to run it, in a few words.
    """

    path: str
    extra: str
    hint: str


BACKENDS: dict[str, Entry] = {
    "bubblewrap": Entry(
        "ringfence.backends.bubblewrap:BubblewrapBackend", "", "Linux with user namespaces, or root"
    ),
    "container": Entry(
        "ringfence.backends.docker:ContainerBackend", "container", "a container engine"
    ),
    "fake": Entry("ringfence.backends.fake:FakeBackend", "", "nothing; it runs nothing"),
    "kubernetes": Entry(
        "ringfence.backends.kubernetes:KubernetesBackend", "kubernetes", "a Kubernetes cluster"
    ),
    "process": Entry("ringfence.backends.process:ProcessBackend", "", "nothing; isolates nothing"),
    "wasm": Entry(
        "ringfence.backends.wasm:WasmBackend", "wasm", "a program compiled to WASI, or a script"
    ),
}
"""Every backend by its name."""


def load_backend(name: str) -> type[Backend]:
    """Import a backend's module and return its class.

    Args:
        name: A name or alias.

    Raises:
        ConfigError: There is no backend of this name.
        BackendUnavailableError: This version does not have it.
        MissingDependencyError: A package that it needs is not installed.
    """
    name = parse_backend(name)
    if name not in BACKENDS:
        raise ConfigError(f"{name!r} stands for no single backend", hint="use open_backend()")
    entry = BACKENDS[name]
    if not entry.path:
        raise BackendUnavailableError(
            f"the {name} backend is not part of this version",
            backend=name,
            hint="it has " + ", ".join(other for other, row in BACKENDS.items() if row.path),
        )
    module_name, _, class_name = entry.path.partition(":")
    try:
        module = import_module(module_name)
    except ImportError as error:
        missing = error.name or ""
        if not entry.extra or missing.partition(".")[0] == __package__:
            raise  # a fault of this package, not of what is installed beside it
        raise MissingDependencyError(
            f"the {name} backend needs the package {missing or str(error)!r}",
            backend=name,
            hint=f"pip install 'ringfence[{entry.extra}]'",
        ) from error
    return cast("type[Backend]", getattr(module, class_name))


def open_backend(config: Config = "auto") -> Backend:
    """Return the backend that a config describes, to be entered with `async with`.

    Nothing is started before it is entered. With `auto`, the choice is made then too: the
    strongest that can run here, never one that isolates nothing. `select_backend` makes the
    choice without opening anything.

    Args:
        config: A backend's name or alias (with its own defaults), a config, or a mapping with the
            keys of `BackendConfig`. Empty, as a name and in `BackendConfig`, means `process`.

    Raises:
        ConfigError: The config contradicts itself, or there is no such backend.
        BackendUnavailableError: This version does not have the backend.
        MissingDependencyError: A package that it needs is not installed.

    Warns:
        IsolationWarning: No backend was named, and `process` isolates nothing.
    """
    settings = _settings(config)
    if isinstance(settings, BackendConfig):
        if settings.backend == "auto":
            return AutoBackend(partial(select_backend, settings))
        if not settings.backend:
            warnings.warn(
                "no backend was named, so code runs on `process`, which isolates nothing; "
                "name one, or `auto`",
                IsolationWarning,
                stacklevel=2,
            )
        settings = settings.narrowed()
    make = cast("Callable[[AnyConfig], Backend]", load_backend(settings.backend))
    return make(settings)


async def select_backend(config: Config = "auto") -> Backend:
    """Choose the backend that `open_backend` would open, and return it unopened.

    For `auto` that is the first of container and bubblewrap that has every setting given and that
    says it can run on this machine now.

    Raises:
        BackendUnavailableError: None can; the message says why for each.
    """
    settings = _settings(config)
    if not isinstance(settings, BackendConfig) or settings.backend != "auto":
        return open_backend(settings)
    refusals = []
    for name in settings.AUTO_ORDER:
        try:
            backend = open_backend(settings.narrowed(name))
        except (ConfigError, BackendUnavailableError) as error:
            refusals.append(f"{name}: {error.message}")
            continue
        reason = f"no answer within {PROBE_TIMEOUT:g} s"
        with anyio.move_on_after(PROBE_TIMEOUT):
            probe = await backend.probe()
            if probe.ok:
                return backend
            reason = probe.reason
        refusals.append(f"{name}: {reason}")
    raise BackendUnavailableError(
        "no backend that isolates can run here; " + "; ".join(refusals),
        hint="`ringfence doctor` says more; `process` has to be named, for it isolates nothing",
    )


def _settings(config: Config) -> AnyConfig | BackendConfig:
    if isinstance(config, str):
        name = parse_backend(config) if config.strip() else ""
        # A name alone leaves the rest to the backend, so process gets a temporary directory.
        return CONFIGS[name]() if name in CONFIGS else BackendConfig(backend=name)
    if isinstance(config, Mapping):
        return BackendConfig.parse(config)
    if isinstance(config, (BackendConfig, *CONFIGS.values())):
        return config
    raise ConfigError(f"a backend's config is a name, a mapping or a config, not {config!r:.80}")
