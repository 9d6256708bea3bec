"""Warm sandboxes: booted before they are asked for, handed out once, replaced in the background.

A pool knows a factory and what it returns, never a backend::

    config = PoolConfig(max_size=5, max_idle_time=300, factory=backend.create)
    async with Pool(config) as pool:
        await pool.warmup(3)
        async with pool.lease() as sandbox:
            await sandbox.exec("echo", ["warm"])
        result = await pool.execute("echo", ["the same in one call"])
"""

from .config import PoolConfig
from .pool import Pool

__all__ = ("Pool", "PoolConfig")
