"""What kind of sandbox is asked for, and what a backend can promise."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from ..errors import ConfigError
from .commands import env_name, text_bytes
from .limits import Enforced, Limits

__all__ = (
    "Capabilities",
    "Isolation",
    "Mount",
    "Network",
    "Probe",
    "SandboxSpec",
    "new_sandbox_id",
)

_LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?\Z")


@dataclass(frozen=True)
class Network:
    """What a sandbox may reach.

    Attributes:
        mode: `none`: only its own loopback. `bridge`: outbound connections. Anything else is the
            name of a network that the backend knows.
    """

    mode: str = "none"


@dataclass(frozen=True)
class Mount:
    """A host file or directory shown read-only inside the sandbox.

    Attributes:
        source: Absolute path on the host. It must exist when the sandbox is made.
        target: Absolute path inside; default: the same as `source`.
    """

    source: str
    target: str = ""

    def __post_init__(self) -> None:
        if not self.target:
            object.__setattr__(self, "target", self.source)
        for what, path in (("source", self.source), ("target", self.target)):
            if not os.path.isabs(path) or "\0" in path or os.path.normpath(path) != path:
                raise ConfigError(
                    f"a mount's {what} must be an absolute path without '..', not {path!r}"
                )


@dataclass(frozen=True)
class SandboxSpec:
    """What kind of sandbox to make.

    Attributes:
        limits: Ceilings; what is left open comes from the backend's config and defaults.
        network: What it may reach; None takes the backend's own first choice.
        env: Variables that every command in it gets.
        mounts: Host paths shown read-only.
        labels: Names and values put on the real resource, to find it again.
    """

    limits: Limits = field(default_factory=Limits)
    network: Network | None = None
    env: Mapping[str, str | bytes] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.env.items():
            env_name(name)
            text_bytes(value, f"the value of variable {name!r}")
        for key, value in self.labels.items():
            if not _LABEL_KEY.match(key):
                raise ConfigError(f"not a label's name: {key!r}")
            if not _is_label(value):
                raise ConfigError(f"label {key!r} needs a text of at most 256 characters")


def _is_label(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 256 and "\0" not in value


class Isolation(IntEnum):
    """How strong a boundary a backend is; higher is stronger within the ordered levels.

    `WASM` isolates by construction and stands beside the others rather than above them.
    """

    NONE = 0
    PROCESS = 1
    NAMESPACE = 2
    CONTAINER = 3
    GVISOR = 4
    KATA = 5
    POD = 6
    WASM = 10


@dataclass(frozen=True)
class Capabilities:
    """What a backend can promise, and what it can't.

    Attributes:
        isolation: Its level.
        live: Whether a sandbox can serve several commands.
        files: Whether file operations work.
        streaming: Whether output arrives while the program runs.
        separate_streams: Whether stdout and stderr are told apart.
        kill_tree: Whether every process of a command can be killed for certain.
        network_modes: The values of `Network.mode` that it takes.
        mounts: Whether host paths can be shown read-only.
        arbitrary_programs: Whether any program of the system can be run, a shell too.
        terminal: Whether a command can have a terminal.
        limits: Who would hold each limit.
        notes: What is lost or special here, one sentence each.
    """

    isolation: Isolation
    live: bool = True
    files: bool = True
    streaming: bool = True
    separate_streams: bool = True
    kill_tree: bool = True
    network_modes: tuple[str, ...] = ("none",)
    mounts: bool = False
    arbitrary_programs: bool = True
    terminal: bool = False
    limits: Enforced = field(default_factory=Enforced)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Probe:
    """Whether a backend can run on this machine now.

    Attributes:
        ok: Whether it can.
        reason: What blocks it, in one sentence; empty if nothing does.
        hint: How to mend it; empty if there is nothing to mend.
        details: Versions and facts found on the way.
    """

    ok: bool
    reason: str = ""
    hint: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


def new_sandbox_id() -> str:
    """Return a name for a new sandbox: `rf-` and 12 random hexadecimal digits."""
    return f"rf-{secrets.token_hex(6)}"
