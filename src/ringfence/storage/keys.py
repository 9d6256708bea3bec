"""Names of a workspace as keys of a store, and back.

A key is text, parts between slashes, that every store takes and that is safe in a URL path, a
header and a file system. An ordinary name is its own part. Everything else is written as the bytes
`%HH` of its UTF-8 form, or of whatever bytes it has: what is not printable, not UTF-8, means
something to a store, a shell or a browser, or looks equal to another name on some file system. Two
names never get one key, and each key leads back to its name.
"""

from __future__ import annotations

import os
import re
import unicodedata

from ..errors import ObjectKeyError

__all__ = (
    "DRAFT_PREFIX",
    "MAX_KEY_BYTES",
    "MAX_PART_BYTES",
    "check_key",
    "escape_name",
    "escape_path",
    "key_prefix",
    "unescape_name",
    "unescape_path",
)

MAX_KEY_BYTES = 1024
"""Of a whole key in UTF-8, as S3 has it."""

MAX_PART_BYTES = 255
"""Of one part in UTF-8, as file systems have it."""

DRAFT_PREFIX = ".ringfence-"
"""What the names of unfinished files begin with; no key has such a part."""

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-=@,")
_ORDINARY = re.compile(r"[A-Za-z0-9_=@,-][A-Za-z0-9._=@,-]{0,254}")
_ORDINARY_KEY = re.compile(
    r"[A-Za-z0-9_=@,%-][A-Za-z0-9._=@,%-]*(/[A-Za-z0-9_=@,%-][A-Za-z0-9._=@,%-]*)*"
)
_HEX = re.compile(rb"%([0-9A-F]{2})")


def escape_name(name: str | bytes, *, plain: str = "") -> str:
    """Return one name, without slashes, as a part of a key.

    Args:
        name: Bytes, or text in which bytes that are not UTF-8 are surrogate escapes.
        plain: More ASCII characters to leave as they are; never `%`.

    Raises:
        ObjectKeyError: It is empty, or has a slash or a NUL in it.
    """
    text = os.fsdecode(name)
    if _ORDINARY.fullmatch(text):
        return text
    if not text or "/" in text or "\0" in text:
        raise ObjectKeyError(f"{text!r} is not the name of a file")
    # A name that some file systems take for equal to another one is not left as it is.
    keeps_letters = unicodedata.is_normalized("NFC", text)
    allowed = _PLAIN | set(plain) - {"%"}
    out = [
        character
        if character in allowed
        or (keeps_letters and not character.isascii() and character.isprintable())
        else "".join(f"%{byte:02X}" for byte in os.fsencode(character))
        for character in text
    ]
    if text in (".", "..") or text.startswith(DRAFT_PREFIX):
        out[0] = "%2E"
    return "".join(out)


def unescape_name(part: str, *, plain: str = "") -> bytes:
    """Return the name that `escape_name` has made a part of.

    Raises:
        ObjectKeyError: It has made none such.
    """
    name = _HEX.sub(lambda found: bytes([int(found[1], 16)]), part.encode("utf-8", "replace"))
    if not name or b"/" in name or b"\0" in name or escape_name(name, plain=plain) != part:
        raise ObjectKeyError("no name is written so", key=part)
    return name


def escape_path(path: str | bytes) -> str:
    """Return a path below a workspace as the parts of a key."""
    return "/".join(escape_name(name) for name in os.fsencode(path).split(b"/"))


def unescape_path(parts: str) -> bytes:
    """Return the path that `escape_path` has made parts of."""
    return b"/".join(unescape_name(part) for part in parts.split("/"))


def key_prefix(*names: str) -> str:
    """Return names, such as a tenant's and an execution's, as what its keys begin with."""
    if not names:
        raise ObjectKeyError("a prefix needs a name")
    return check_key("/".join(escape_name(name) for name in names))


def check_key(key: str) -> str:
    """Return a key that a store can use.

    Raises:
        ObjectKeyError: It is empty, too long, absolute, or has a part that is empty, `.`, `..` or
            not printable.
    """
    if not isinstance(key, str):
        raise ObjectKeyError(f"a key is text, not {type(key).__name__}")
    if len(key) <= MAX_PART_BYTES and _ORDINARY_KEY.fullmatch(key):
        return key
    if "\\" in key or not key.isprintable() or (not key.isascii() and not _is_utf8(key)):
        raise ObjectKeyError("has a character that no key has", key=key)
    if len(key.encode()) > MAX_KEY_BYTES:
        raise ObjectKeyError(f"is longer than {MAX_KEY_BYTES} bytes", key=f"{key[:40]}...")
    for part in key.split("/"):
        if part in ("", ".", "..") or part.startswith(DRAFT_PREFIX):
            raise ObjectKeyError(f"has a part that no key has: {part!r}", key=key)
        if len(part.encode()) > MAX_PART_BYTES:
            raise ObjectKeyError(
                f"has a part that is longer than {MAX_PART_BYTES} bytes", key=f"{part[:40]}..."
            )
    return key


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)
