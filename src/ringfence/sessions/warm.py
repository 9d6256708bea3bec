"""Sandboxes that are made ahead, for sessions that ask for nothing of their own."""

from __future__ import annotations

import logging

from ..backend import Sandbox
from ..errors import ConfigError, SandboxError
from ..policy import Policy
from ..pool import Pool, PoolConfig
from .home import Home

__all__ = ("checked_count", "pool_of", "warm_up")

_log = logging.getLogger(__name__)

_MOST_IN_USE = 100_000  # it is leases that bound them


def pool_of(home: Home, policy: Policy, count: int) -> Pool:
    """Return a pool of what a session gets that asks for nothing, and let the home take from it."""
    spec = policy.spec(policy.plan(None), policy.profile("session"), home.backend.capabilities)

    async def make() -> Sandbox:
        return await home.make_ahead(spec)

    made: Pool = Pool(PoolConfig(factory=make, max_size=count + _MOST_IN_USE))
    home.take_from(made, spec)
    return made


async def warm_up(pool: Pool, count: int) -> None:
    """Have so many ready, if they can be made."""
    try:
        await pool.warmup(count)
    except SandboxError as error:  # it goes on trying, and sessions do without it
        _log.warning("no sandbox could be made ahead: %s", error)


def checked_count(count: object) -> int:
    """Return how many to keep ready, or raise a `ConfigError`."""
    if type(count) is not int or count < 0:
        raise ConfigError(f"warm must be a whole number of at least 0, not {count!r:.80}")
    return count
