"""The conformance suite on the WASM backend, as far as its one program goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringfence.backends.wasm import WasmBackend
from ringfence.config import WasmConfig
from ringfence.testing import Check, Conformance

MODULE = Path(__file__).parent.parent / "wasm" / "data" / "words.wasm"


SUITE = Conformance("wasm", lambda: WasmBackend(WasmConfig(wasm_path=str(MODULE))))


@pytest.mark.parametrize("check", SUITE.params(hostile_mark="hostile"))
def test_wasm(check: Check) -> None:
    SUITE.verify(check)
