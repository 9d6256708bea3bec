"""Runs inside a sandbox and tries what it can against the processes that hold it.

Prints, as JSON, what came through of all that must be refused.
"""

import contextlib
import ctypes
import itertools
import json
import os
import platform
import resource
import signal
import struct
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"
PTRACE, PRLIMIT = (101, 302) if X86 else (117, 261)
VM_READ, VM_WRITE = (310, 311) if X86 else (270, 271)
IOPRIO_SET, KCMP = (251, 312) if X86 else (30, 272)
SETPRIORITY, SCHED_SETATTR = (141, 314) if X86 else (140, 274)
TGSIGQUEUE = 297 if X86 else 240
PIDFD_GETFD = 438
ATTACH, SEIZE = 16, 0x4206


def call(number: int, *arguments: object) -> bool:
    """Make a system call and return whether it came through."""
    result: int = LIBC.syscall(ctypes.c_long(number), *arguments)
    return result >= 0


def wardens() -> list[int]:
    """Return PID 1 and the keepers: all processes but ours whose command line is the warden's."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            pid = int(name)
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if b"serve" in file.read():
                    found.append(pid)
    return found


def reads(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def writes(path: str) -> bool:
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(b"1\n")
    except OSError:
        return False
    return True


SECRET_FILES = (
    *("mem", "environ", "maps", "smaps", "pagemap", "auxv", "stack", "syscall", "io"),
    *("personality", "wchan_", "fd/0", "fd/1", "fd/3", "root/etc/passwd", "cwd/x", "exe"),
)
KNOBS = ("oom_score_adj", "coredump_filter", "clear_refs", "timerslack_ns", "comm", "uid_map")


def touch() -> list[str]:
    """Try to look into the wardens, to take what they hold, and to turn their knobs."""
    through = []
    for pid in wardens():
        attempts = {
            "ptrace attach": call(PTRACE, ATTACH, pid, 0, 0),
            "ptrace seize": call(PTRACE, SEIZE, pid, 0, 0),
            "prlimit cpu": limits_cpu(pid),
            "take its priority": call(SETPRIORITY, os.PRIO_PROCESS, pid, 19),
            "make it idle": makes_idle(pid),
            "make it idle, the new way": makes_idle_by_attributes(pid),
            "take its input and output": call(IOPRIO_SET, 1, pid, 3 << 13),
            "read its memory": moves_memory(VM_READ, pid),
            "write its memory": moves_memory(VM_WRITE, pid),
            "compare descriptors": call(KCMP, pid, os.getpid(), 0, 0, 0),
            "list its descriptors": lists(f"/proc/{pid}/fd"),
            "list its files": lists(f"/proc/{pid}/map_files"),
        }
        attempts |= {f"read {name}": reads(f"/proc/{pid}/{name}") for name in SECRET_FILES}
        attempts |= {f"write {name}": writes(f"/proc/{pid}/{name}") for name in KNOBS}
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(pid)
            for number in range(32):
                attempts[f"take descriptor {number}"] = call(PIDFD_GETFD, handle, number, 0)
        through += [f"{name} of {pid}" for name, came in attempts.items() if came]
    return through


def limits_cpu(pid: int) -> bool:
    limit = ctypes.create_string_buffer(struct.pack("<QQ", 1, 1))
    return call(PRLIMIT, pid, resource.RLIMIT_CPU, limit, 0)


def makes_idle(pid: int) -> bool:
    try:
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    except OSError:
        return False
    return True


def makes_idle_by_attributes(pid: int) -> bool:
    attributes = struct.pack("<IIQiIQQQ", 48, os.SCHED_IDLE, 0, 0, 0, 0, 0, 0)
    return call(SCHED_SETATTR, pid, ctypes.create_string_buffer(attributes), 0)


def moves_memory(number: int, pid: int) -> bool:
    buffer = ctypes.create_string_buffer(8)
    vector = ctypes.create_string_buffer(struct.pack("<QQ", ctypes.addressof(buffer), 8))
    other = ctypes.create_string_buffer(struct.pack("<QQ", 0x400000, 8))
    return call(number, pid, vector, 1, other, 1, 0)


def lists(path: str) -> bool:
    try:
        return bool(os.listdir(path))
    except OSError:
        return False


def signals() -> list[str]:
    """Send PID 1 every signal, in every way, and many of those that queue."""
    handle = os.pidfd_open(1)
    info = ctypes.create_string_buffer(struct.pack("<iii", 0, 0, -1) + bytes(116))
    for number in range(1, 65):
        for send in (
            lambda number=number: os.kill(1, number),
            lambda number=number: signal.pidfd_send_signal(handle, number),
            lambda number=number: call(TGSIGQUEUE, 1, 1, number, info),
        ):
            with contextlib.suppress(OSError):
                send()
    for _ in range(20_000):
        call(TGSIGQUEUE, 1, 1, signal.SIGCHLD, info)
        call(TGSIGQUEUE, 1, 1, signal.SIGRTMIN, info)
    return []


def slow_down() -> list[str]:
    """Take the processor from PID 1 as far as anybody of its uid is let, and use it."""
    through = []
    for which, who in ((os.PRIO_USER, 0), (os.PRIO_PGRP, 1), (os.PRIO_PGRP, 0)):
        if call(SETPRIORITY, which, who, 19):
            through.append(f"take the priority of all of {which} {who}")
    if call(IOPRIO_SET, 3, os.getuid(), 3 << 13):
        through.append("take input and output of the user")
    for pid in wardens():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
    for _ in range(20):
        if os.fork() == 0:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                pass
    return through


def forge() -> list[str]:
    """Write frames to every descriptor that can be reached, ours and others'."""
    frames = b"".join(
        struct.pack("<IIBBH", len(payload), channel, kind, 0, 0) + payload
        for channel, (kind, payload) in itertools.product(
            range(6),
            (
                (0x81, struct.pack("<IIII16s", 1, 1, 7, 65534, b"x" * 16)),
                (0x86, struct.pack("<BBBBiQQQQ", 0, 0, 0, 0, 77, 0, 0, 0, 0)),
                (0x88, struct.pack("<I", 1) + b"forged"),
                (0x83, b"forged output"),
            ),
        )
    )
    reports = struct.pack("<IiIIiiQQ", 0, 2, 3, 0, 77 << 8, 1, 0, 0) * 8
    for pid in (name for name in os.listdir("/proc") if name.isdecimal()):
        for number in range(16):
            with contextlib.suppress(OSError):
                target = os.open(f"/proc/{pid}/fd/{number}", os.O_WRONLY | os.O_NONBLOCK)
                os.write(target, frames + reports)
                os.close(target)
    for number in range(64):
        with contextlib.suppress(OSError):
            os.write(number, frames + reports)
    return []


def kill_all() -> list[str]:
    os.kill(-1, signal.SIGKILL)
    return ["we live on"]


def stop_all() -> list[str]:
    os.kill(-1, signal.SIGSTOP)
    return []


def orphans() -> list[str]:
    """Give PID 1's keepers thousands of children to bury."""
    for _ in range(3000):
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                os._exit(0)
            os._exit(0)
        os.waitpid(child, 0)
    return []


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()), flush=True)
