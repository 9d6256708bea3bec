"""What a pool is made from."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..errors import ConfigError

__all__ = ("Made", "PoolConfig", "check_seconds")

Made = TypeVar("Made", covariant=True)
"""What a factory returns: a sandbox, or something that can be awaited for one."""


@dataclass(frozen=True, kw_only=True)
class PoolConfig(Generic[Made]):
    """What a pool holds, and for how long.

    Attributes:
        factory: Makes one live sandbox; `backend.create`, or a `functools.partial` of it with a
            spec. Called by tasks of the pool, several at once.
        max_size: The most sandboxes that live at any time: ready, in use, being made and being
            removed together.
        max_idle_time: Seconds that a ready sandbox is kept while nobody needs it.
        acquire_timeout: Seconds that a caller waits for a sandbox unless it says otherwise.
        create_timeout: Seconds that the factory gets for one sandbox.
        max_creating: The most sandboxes that are made at the same time.

    Raises:
        ConfigError: A setting that can't be right.
    """

    factory: Callable[[], Made]
    max_size: int = 5
    max_idle_time: float = 300.0
    acquire_timeout: float = 30.0
    create_timeout: float = 60.0
    max_creating: int = 4

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise ConfigError(
                f"a pool's factory is a function that makes a sandbox, not {self.factory!r:.80}",
                hint="give `backend.create`, without calling it",
            )
        for name in ("max_size", "max_creating"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r:.80}")
        for name in ("max_idle_time", "acquire_timeout", "create_timeout"):
            check_seconds(name, getattr(self, name))


def check_seconds(name: str, value: object) -> None:
    """Raise a `ConfigError` unless the value is a positive, finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ConfigError(f"{name} must be a positive number of seconds, not {value!r:.80}")
