"""Damage to rows of frames, as a hostile or broken other side could do it."""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable

Frames = list[bytes]

_KINDS = (*range(1, 8), 9, *range(0x81, 0x89))  # 8 would let another stream take ours over
INTERESTING = (0, 1, 2, 7, 9, 63, 64, 65, 255, 256, 4095, 65535, 65536, 1 << 20, 1 << 31, 2**32 - 1)


def seeded() -> tuple[random.Random, int]:
    """Return a source of damage and its seed, which RINGFENCE_TEST_SEED sets."""
    seed = int(os.environ.get("RINGFENCE_TEST_SEED", time.time_ns() % 10**9))
    return random.Random(seed), seed


def _flip(frames: Frames, rng: random.Random) -> None:
    index = rng.randrange(len(frames))
    damaged = bytearray(frames[index])
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    frames[index] = bytes(damaged)


def _truncate(frames: Frames, rng: random.Random) -> None:
    index = rng.randrange(len(frames))
    frames[index] = frames[index][: rng.randrange(len(frames[index]))]


def _stop(frames: Frames, rng: random.Random) -> None:
    del frames[rng.randrange(len(frames)) + 1 :]


def _drop(frames: Frames, rng: random.Random) -> None:
    if len(frames) > 1:
        del frames[rng.randrange(len(frames))]


def _repeat(frames: Frames, rng: random.Random) -> None:
    index = rng.randrange(len(frames))
    frames[index:index] = [frames[index]] * rng.choice((1, 2, 50))


def _reorder(frames: Frames, rng: random.Random) -> None:
    rng.shuffle(frames)


def _field(frames: Frames, rng: random.Random) -> None:
    """Put a number that is likely to matter into some place that holds one."""
    index = rng.randrange(len(frames))
    damaged = bytearray(frames[index])
    offset = rng.choice((0, 4, 12, 16, 20, 24, 28, 36, 44, 60, 64, 68, 72))
    if offset + 4 <= len(damaged):
        struct.pack_into("<I", damaged, offset, rng.choice(INTERESTING))
    frames[index] = bytes(damaged)


def _kind(frames: Frames, rng: random.Random) -> None:
    index = rng.randrange(len(frames))
    damaged = bytearray(frames[index])
    if len(damaged) > 8:
        damaged[8] = rng.choice((*_KINDS, rng.randrange(256)))
    frames[index] = bytes(damaged)


def _forge(frames: Frames, rng: random.Random) -> None:
    """Add a frame that is well-formed on the outside."""
    kind = rng.choice(_KINDS)
    sizes = {1: 64, 4: 8, 5: 4, 7: 8, 9: 8, 0x81: 32, 0x82: 4, 0x85: 4, 0x86: 48, 0x88: 8}
    size = sizes.get(kind, rng.choice((0, 1, 100, 5000, 65536, 131072)))
    payload = bytes(size) if rng.random() < 0.3 else rng.randbytes(size)
    channel = rng.choice((0, 1, 1, 2, 3, 99, 2**32 - 1))
    forged = struct.pack("<IIBBH", size, channel, kind, 0, 0) + payload
    frames.insert(rng.randrange(len(frames) + 1), forged)


def _noise(frames: Frames, rng: random.Random) -> None:
    frames.insert(rng.randrange(len(frames) + 1), rng.randbytes(rng.choice((1, 12, 13, 300))))


DAMAGE: tuple[Callable[[Frames, random.Random], None], ...] = (
    _flip,
    _flip,
    _truncate,
    _stop,
    _drop,
    _repeat,
    _reorder,
    _field,
    _field,
    _kind,
    _forge,
    _forge,
    _noise,
)


def damaged(frames: Frames, rng: random.Random) -> Frames:
    """Return a copy with some damage done."""
    frames = list(frames)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        rng.choice(DAMAGE)(frames, rng)
        frames = [frame for frame in frames if frame] or [rng.randbytes(12)]
    return frames


def cut_anew(data: bytes, rng: random.Random) -> list[bytes]:
    """Cut a stream into the pieces in which it might arrive."""
    pieces = []
    while data:
        size = rng.choice((1, 3, 12, 100, 5000, 1 << 18))
        pieces.append(data[:size])
        data = data[size:]
    return pieces
