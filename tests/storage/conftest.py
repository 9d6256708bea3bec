"""What the tests of stores run in."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from ringfence.storage import ArtifactStore, LocalStore, S3StoreConfig, open_store

from ..own_places import own_places
from ..second_net import second_net

__all__ = ("own_places", "second_net")

PROJECT = Path(__file__).parent.parent.parent
SERVICES = [sys.executable, "-m", "scripts.services"]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    return open_store("memory:") if request.param == "memory" else LocalStore(tmp_path / "store")


@pytest.fixture(scope="session")
def s3_service() -> Iterator[dict[str, str]]:
    """The variables of a real service; what was started for these tests is stopped after them."""
    already = not subprocess.run([*SERVICES, "ready", "s3"], cwd=PROJECT).returncode
    subprocess.run([*SERVICES, "up", "s3"], cwd=PROJECT, check=True, timeout=300)
    words = subprocess.run(
        [*SERVICES, "env", "s3"], cwd=PROJECT, check=True, capture_output=True, text=True
    ).stdout
    yield dict(word.split("=", 1) for word in shlex.split(words) if "=" in word)
    if not already:
        subprocess.run([*SERVICES, "down", "s3"], cwd=PROJECT, check=True)


@pytest.fixture
def s3_config(s3_service: dict[str, str]) -> S3StoreConfig:
    """A prefix of its own in the service's bucket."""
    endpoint, bucket, key, secret = (
        s3_service[f"RINGFENCE_TEST_S3_{word}"]
        for word in ("ENDPOINT", "BUCKET", "ACCESS_KEY", "SECRET_KEY")
    )
    return S3StoreConfig(
        bucket,
        prefix=f"test-{os.getpid()}-{token_hex(4)}",
        endpoint=endpoint,
        access_key_id=key,
        secret_access_key=secret,
        timeout=30,
    )


@pytest.fixture
async def s3_store(s3_config: S3StoreConfig) -> AsyncIterator[ArtifactStore]:
    """A store that is empty again afterwards: the service has not much room."""
    store = open_store(s3_config)
    yield store
    for key in [item.key async for item in store.list()]:
        await store.delete(key)


@pytest.fixture
def stranger(s3_config: S3StoreConfig) -> ArtifactStore:
    """A store of the same bucket, with a secret that is wrong."""
    return open_store(replace(s3_config, secret_access_key="wrong" + s3_config.secret_access_key))
