"""Images that a program wrote: what they are, and whether they may be shown.

They come from a sandbox, and a client's decoder will read them. So a file counts as an image by
its first bytes and not by its name, and is bound by the size that it claims to decode to. SVG is
not among them: it is a document with links and scripts, and is read as the text that it is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = ("IMAGE_HEAD", "Image", "recognize")

IMAGE_HEAD = 64
"""Bytes of a file that tell whether it is an image at all."""

_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length
_MOST_SEGMENTS = 1000


@dataclass(frozen=True)
class Image:
    """What a file says of itself.

    Attributes:
        media_type: `image/png`, `image/jpeg`, `image/gif` or `image/webp`.
        width: Pixels; 0 if it can't be told.
        height: Pixels; 0 if it can't be told.
    """

    media_type: str
    width: int
    height: int


def recognize(data: bytes) -> Image | None:
    """Return what image a file is, or None if it is none.

    Args:
        data: The file, or its first `IMAGE_HEAD` bytes: then a JPEG's size is not known.
    """
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        is_whole = len(data) >= 24 and data[12:16] == b"IHDR"
        width, height = struct.unpack(">II", data[16:24]) if is_whole else (0, 0)
        return Image("image/png", width, height)
    if data[:6] in (b"GIF87a", b"GIF89a"):
        width, height = struct.unpack("<HH", data[6:10]) if len(data) >= 10 else (0, 0)
        return Image("image/gif", width, height)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return Image("image/webp", *_webp_size(data))
    if data.startswith(b"\xff\xd8\xff"):
        return Image("image/jpeg", *_jpeg_size(data))
    return None


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if len(data) < 30:
        return 0, 0
    if kind == b"VP8X":
        return (
            1 + int.from_bytes(data[24:27], "little"),
            1 + int.from_bytes(data[27:30], "little"),
        )
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return 0, 0


def _jpeg_size(data: bytes) -> tuple[int, int]:
    """Walk the segments to the frame's header; a JPEG has its size nowhere else."""
    where = 2
    for _ in range(_MOST_SEGMENTS):
        if where + 9 > len(data) or data[where] != 0xFF:
            break
        marker = data[where + 1]
        if marker == 0xFF:  # fill
            where += 1
        elif marker in _JPEG_BARE:
            where += 2
        elif marker in _JPEG_SIZES:
            height, width = struct.unpack(">HH", data[where + 5 : where + 9])
            return width, height
        else:
            where += 2 + int.from_bytes(data[where + 2 : where + 4], "big")
    return 0, 0
