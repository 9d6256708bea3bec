"""A change to a module before it is compiled: one more of its globals is exported.

Linkers keep a program's stack pointer to themselves. The host has to move it where a build gave
its program too small a stack.
"""

from __future__ import annotations

from ..errors import ConfigError

__all__ = ("export_global",)

_EXPORTS = 7
_GLOBAL = 3


def export_global(module: bytes, index: int, name: str) -> bytes:
    """Return the module with one of its globals exported under a name.

    Args:
        module: Binary; it must be valid and export something already.
        index: The global's.
        name: What to call it.

    Raises:
        ConfigError: It has no exports.
    """
    at = 8
    while at < len(module):
        size, body = _read(module, at + 1)
        if module[at] == _EXPORTS:
            count, first = _read(module, body)
            text = name.encode()
            entry = _number(len(text)) + text + bytes([_GLOBAL]) + _number(index)
            content = _number(count + 1) + module[first : body + size] + entry
            section = bytes([_EXPORTS]) + _number(len(content)) + content
            return module[:at] + section + module[body + size :]
        at = body + size
    raise ConfigError("the module exports nothing", backend="wasm")


def _read(data: bytes, at: int) -> tuple[int, int]:
    """Read a number as WebAssembly writes it; returns it and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _number(value: int) -> bytes:
    found = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        found.append(byte | (0x80 if value else 0))
        if not value:
            return bytes(found)
