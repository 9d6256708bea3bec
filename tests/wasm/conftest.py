"""What the tests of the WASM backend run with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringfence.backends.wasm import WasmBackend
from ringfence.config import WasmConfig

Make = Callable[..., WasmBackend]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make a backend of a module's bytes, not yet opened."""

    def build(module: bytes, **settings: Any) -> WasmBackend:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.wasm"
        path.write_bytes(module)
        settings.setdefault("cache_dir", tmp_path / "cache")
        return WasmBackend(WasmConfig(wasm_path=str(path), **settings))

    return build
