"""Programs of a few instructions for images that have nothing else: neither a libc nor a shell."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from .steps import ServiceError

BASE = 0x400000
HEADERS = 64 + 56

Code = tuple[int, tuple[str, ...]]


def hello(machine: str) -> bytes:
    """Return a static program that writes "hello" and a line end.

    Raises:
        ServiceError: A machine that it is not written for.
    """
    programs = {
        "x86_64": (
            62,
            (
                "b801000000",  # mov eax, 1 (write)
                "bf01000000",  # mov edi, 1
                "488d3510000000",  # lea rsi, [rip + 16]
                "ba06000000",  # mov edx, 6
                "0f05",  # syscall
                "b83c000000",  # mov eax, 60 (exit)
                "31ff",  # xor edi, edi
                "0f05",  # syscall
            ),
        ),
        "aarch64": (
            183,
            (
                "200080d2",  # mov x0, 1
                "e1000010",  # adr x1, 28 on
                "c20080d2",  # mov x2, 6
                "080880d2",  # mov x8, 64 (write)
                "010000d4",  # svc 0
                "000080d2",  # mov x0, 0
                "a80b80d2",  # mov x8, 93 (exit)
                "010000d4",  # svc 0
            ),
        ),
    }
    return _program("hello", programs, machine, b"hello\n")


def pause(machine: str) -> bytes:
    """Return a static program that waits until it is killed.

    Raises:
        ServiceError: A machine that it is not written for.
    """
    programs = {
        "x86_64": (
            62,
            (
                "b822000000",  # mov eax, 34 (pause)
                "0f05",  # syscall
                "ebf7",  # jmp to the first
            ),
        ),
        "aarch64": (
            183,
            (
                "000080d2",  # mov x0, 0
                "010080d2",  # mov x1, 0
                "020080d2",  # mov x2, 0
                "030080d2",  # mov x3, 0
                "040080d2",  # mov x4, 0
                "280980d2",  # mov x8, 73 (ppoll)
                "010000d4",  # svc 0
                "f9ffff17",  # b to the first
            ),
        ),
    }
    return _program("pause", programs, machine)


def _program(name: str, programs: Mapping[str, Code], machine: str, data: bytes = b"") -> bytes:
    if machine not in programs:
        raise ServiceError(f"the program {name} is not written for {machine}")
    number, code = programs[machine]
    body = bytes.fromhex("".join(code)) + data
    size = HEADERS + len(body)
    elf = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    elf += struct.pack("<HHIQQQIHHHHHH", 2, number, 1, BASE + HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    elf += struct.pack("<IIQQQQQQ", 1, 5, 0, BASE, BASE, size, size, 0x10000)
    return elf + body
