"""What a session gets, and what it may ask for: profiles and plans.

A *profile* is what a sandbox gets if nobody says otherwise. A *plan* is what its tenant may have at
most. Times that are asked above the plan are clamped to it; any other limit is refused with a
`LimitError` that names the limit and the plan.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any, Self

from .errors import ConfigError, LimitError
from .models import Capabilities, Isolation, Limits, Network, SandboxSpec

__all__ = ("DEFAULT_PLAN", "ONESHOT", "SESSION", "Plan", "Policy", "Profile", "read_plans")

_MIB = 1 << 20

DEFAULT_PLAN = "free"

_TIMES = frozenset({"timeout", "max_timeout", "max_age", "kill_grace", "start_timeout"})
_CEILINGS = tuple(item.name for item in fields(Limits) if item.name not in _TIMES)


@dataclass(frozen=True)
class Profile:
    """What a sandbox gets by default.

    Attributes:
        name: What it is called.
        limits: Its limits, as far as the backend can hold them. One that it leaves open is the
            plan's ceiling, and the backend's own default where the plan has none.
        network: What it may reach.
    """

    name: str
    limits: Limits
    network: Network = field(default_factory=Network)


SESSION = Profile(
    "session",
    Limits(
        memory_bytes=512 * _MIB,
        cpus=1.0,
        pids=256,
        open_files=1024,
        workspace_bytes=256 * _MIB,
        workspace_files=100_000,
        tmp_bytes=64 * _MIB,
        output_bytes=_MIB,
        timeout=30.0,
        max_timeout=300.0,
        max_age=3600.0,
    ),
)
"""For one execution of a workflow or an agent: a workspace that all its calls share."""

ONESHOT = Profile(
    "oneshot",
    Limits(
        memory_bytes=256 * _MIB,
        cpus=0.5,
        pids=64,
        open_files=256,
        workspace_bytes=64 * _MIB,
        workspace_files=10_000,
        tmp_bytes=64 * _MIB,
        output_bytes=_MIB,
        timeout=30.0,
        max_timeout=300.0,
        max_age=600.0,
    ),
)
"""For a single piece of code that needs little."""


@dataclass(frozen=True)
class Plan:
    """What a tenant may have.

    Attributes:
        name: What it is called.
        limits: Ceilings of one sandbox; None bounds nothing.
        idle_timeout: Seconds until a sandbox that nobody uses is ended; None for the manager's.
        max_sandboxes: How many the tenant may have at once; None for no bound.
        storage_bytes: How much the tenant may have in artifact storage; None for no bound.
        networks: The network modes that it may ask for.
    """

    name: str
    limits: Limits = field(default_factory=Limits)
    idle_timeout: float | None = None
    max_sandboxes: int | None = None
    storage_bytes: int | None = None
    networks: tuple[str, ...] = ("none",)

    def __post_init__(self) -> None:
        for name, kinds in (
            ("idle_timeout", (int, float)),
            ("max_sandboxes", (int,)),
            ("storage_bytes", (int,)),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 2**63:
                raise LimitError(
                    name, f"plan {self.name!r}: {name} must be above zero, not {value!r:.80}"
                )
        modes: tuple[object, ...] = self.networks
        if not all(isinstance(mode, str) and mode for mode in modes):
            raise ConfigError(f"plan {self.name!r}: networks are names, not {self.networks!r:.80}")

    @classmethod
    def parse(cls, name: str, settings: object) -> Self:
        """Make a plan of a table, such as TOML and JSON have.

        Raises:
            ConfigError: A key is unknown or a value is of a wrong type.
            LimitError: A ceiling is not a number above zero.
        """
        if not isinstance(settings, Mapping):
            raise ConfigError(f"plan {name!r} must be a table, not {settings!r:.80}")
        own = {item.name for item in fields(cls)} - {"name", "limits"}
        known = {item.name for item in fields(Limits)} | own
        if unknown := sorted(set(map(str, settings)) - known):
            raise ConfigError(
                f"plan {name!r} has no {unknown[0]!r}", hint="it has " + ", ".join(sorted(known))
            )
        given: dict[str, Any] = {key: settings[key] for key in own if key in settings}
        if "networks" in given:
            if not isinstance(given["networks"], (list, tuple)):
                raise ConfigError(f"plan {name!r}: networks is a list")
            given["networks"] = tuple(given["networks"])
        ceilings = Limits(**{key: settings[key] for key in settings if key not in own})
        return cls(name, ceilings, **given)


def read_plans(path: str | PathLike[str] | None = None) -> dict[str, Plan]:
    """Read plans from a TOML file.

    Args:
        path: The file; default: the one in this package, with `free`, `pro` and `enterprise`.

    Raises:
        ConfigError: It can't be read, or says something that no plan has.
    """
    try:
        if path is None:
            text = resources.files(__package__).joinpath("plans.toml").read_text("utf-8")
        else:
            text = Path(path).read_text("utf-8")
        tables = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"plans can't be read from {path}: {error}") from error
    return {name: Plan.parse(name, table) for name, table in tables.items()}


class Policy:
    """Makes of a profile, a plan and what was asked for the spec of a sandbox.

    Args:
        plans: The plans by name; default: those in this package.
        profiles: The profiles; default: `session` and `oneshot`.
        default_plan: The plan of a tenant of whom nothing is known.
    """

    def __init__(
        self,
        plans: Mapping[str, Plan] | None = None,
        *,
        profiles: tuple[Profile, ...] = (SESSION, ONESHOT),
        default_plan: str = DEFAULT_PLAN,
    ) -> None:
        self.plans = dict(read_plans() if plans is None else plans)
        self.profiles = {profile.name: profile for profile in profiles}
        self.default_plan = default_plan
        self.plan(None)

    def plan(self, name: str | None) -> Plan:
        """Return a plan by its name; None is the default one.

        Raises:
            ConfigError: There is no such plan.
        """
        wanted = self.default_plan if name is None else name
        if wanted not in self.plans:
            raise ConfigError(
                f"there is no plan {wanted!r}", hint="there are " + ", ".join(self.plans)
            )
        return self.plans[wanted]

    def profile(self, name: str) -> Profile:
        """Return a profile by its name.

        Raises:
            ConfigError: There is no such profile.
        """
        if name not in self.profiles:
            raise ConfigError(
                f"there is no profile {name!r}", hint="there are " + ", ".join(self.profiles)
            )
        return self.profiles[name]

    def spec(
        self, plan: Plan, profile: Profile, able: Capabilities, asked: SandboxSpec | None = None
    ) -> SandboxSpec:
        """Return what to make.

        Args:
            plan: What the tenant may have.
            profile: What it gets where nothing is asked for.
            able: What the backend can promise. What the profile alone wants and nobody could hold
                is left out; what was asked for stays, for the backend to refuse.
            asked: What is asked for.

        Raises:
            LimitError: More was asked for than the plan allows.
        """
        asked = asked or SandboxSpec()
        network = asked.network or profile.network
        free = asked.network is None and able.isolation <= Isolation.PROCESS
        if not free and network.mode not in plan.networks:
            raise LimitError(
                "networks",
                f"network {network.mode!r} is not in plan {plan.name!r}, which has "
                + " and ".join(map(repr, plan.networks)),
                plan=plan.name,
                hint="ask for another, or choose another plan",
            )
        for name in _CEILINGS:
            value, ceiling = getattr(asked.limits, name), getattr(plan.limits, name)
            if value is not None and ceiling is not None and value > ceiling:
                raise LimitError(
                    name,
                    f"{name} of {value} is above the {ceiling} of plan {plan.name!r}",
                    plan=plan.name,
                    hint="ask for less, or choose another plan",
                )
        held = _clamped(asked.limits.over(profile.limits), plan.limits)
        unheld = able.limits.missing(held.asked() - asked.limits.asked())
        return replace(
            asked,
            limits=replace(held, **dict.fromkeys(unheld)),
            # What isolates nothing has no other network, and was named by someone who knows that.
            network=None if free else network,
        )


def _clamped(limits: Limits, ceilings: Limits) -> Limits:
    """Return the limits with no number above its ceiling, and with a ceiling where none is set."""
    values = {}
    for item in fields(Limits):
        value, ceiling = getattr(limits, item.name), getattr(ceilings, item.name)
        if ceiling is None:
            continue
        values[item.name] = ceiling if value is None else min(value, ceiling)
    if limits.timeout is not None and ceilings.max_timeout is not None:
        values["timeout"] = min(limits.timeout, ceilings.max_timeout)
    return replace(limits, **values)
