"""Opens and runs mutations of a module, in a process of its own; prints what became of them.

python -m tests.wasm.fuzz_worker MODULE COUNT SEED
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import anyio

from ringfence.backends.wasm import WasmBackend
from ringfence.config import WasmConfig
from ringfence.errors import SandboxError
from ringfence.models import Command, Result

# Instructions that can stand for one another, and stay valid.
LIKE = (range(0x46, 0x50), range(0x51, 0x5B), range(0x6A, 0x79), range(0x7C, 0x8B))


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Change some bytes: half of the time so that the module stays valid, else anyhow."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 16))):
        if chance.random() < 0.7:
            _swap_alike(data, chance)
        else:
            _damage(data, chance)
    return bytes(data[: chance.randrange(len(data))] if chance.random() < 0.03 else data)


def _swap_alike(data: bytearray, chance: random.Random) -> None:
    """Put another instruction of the same type, or another constant, in some place."""
    start = chance.randrange(len(data) - 2)
    for at in range(start, len(data) - 2):
        if data[at] == 0x41 and data[at + 1] < 0x80:  # i32.const, in one byte
            data[at + 1] = chance.randrange(0x80)
            return
        for kind in LIKE:
            if data[at] in kind:
                data[at] = chance.choice(kind)
                return


def _damage(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data))
    kind = chance.randrange(6)
    if kind < 3:
        data[at] = chance.randrange(256)
    elif kind == 3:
        data[at] ^= 1 << chance.randrange(8)
    elif kind == 4:
        size = chance.randrange(1, 64)
        data[at : at + size] = data[at : at + size] * 2
    else:
        del data[at : at + chance.randrange(1, 64)]


async def outcome(path: Path, timeout: float = 0.05) -> str:
    try:
        async with WasmBackend(WasmConfig(wasm_path=str(path), memory_limit_pages=1024)) as backend:
            command = Command(["x", "a", "b"], stdin="text", timeout=timeout, output_bytes=4096)
            result = await backend.execute(command)
            assert isinstance(result, Result)
            return f"{result.exit_reason.value}"
    except SandboxError as error:
        return type(error).__name__


async def main(module: str, count: int, seed: int) -> None:
    content = Path(module).read_bytes()
    chance = random.Random(seed)
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutated.wasm"
        for _ in range(count):
            path.write_bytes(mutated(content, chance))
            found[await outcome(path)] += 1
        path.write_bytes(content)
        found["unmutated: " + await outcome(path, timeout=10)] += 1
    print(dict(found))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
