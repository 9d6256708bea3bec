"""The filter refuses what a container engine's default profile refuses."""

from __future__ import annotations

import json
import platform

import pytest

from ringfence.backends.bubblewrap import BubblewrapBackend

pytestmark = pytest.mark.anyio

# By number on x86-64, with the arguments that would be harmless were they let through.
REFUSED = {
    "acct": 163, "add_key": 248, "bpf": 321, "chroot": 161, "clock_settime": 227,
    "create_module": 174, "delete_module": 176, "fanotify_init": 300, "finit_module": 313,
    "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433, "get_kernel_syms": 177,
    "get_mempolicy": 239, "init_module": 175, "io_uring_enter": 426, "io_uring_register": 427,
    "io_uring_setup": 425, "ioperm": 173, "iopl": 172, "kexec_file_load": 320, "kexec_load": 246,
    "keyctl": 250, "listmount": 458, "lookup_dcookie": 212, "mbind": 237, "migrate_pages": 256,
    "mount": 165, "mount_setattr": 442, "move_mount": 429, "move_pages": 279, "nfsservctl": 180,
    "open_by_handle_at": 304, "open_tree": 428, "perf_event_open": 298, "pivot_root": 155,
    "query_module": 178, "quotactl": 179, "quotactl_fd": 443, "reboot": 169, "request_key": 249,
    "set_mempolicy": 238, "set_mempolicy_home_node": 450, "setdomainname": 171,
    "sethostname": 170, "setns": 308, "settimeofday": 164, "statmount": 457, "swapoff": 168,
    "swapon": 167, "_sysctl": 156, "sysfs": 139, "syslog": 103, "umount2": 166, "unshare": 272,
    "uselib": 134, "userfaultfd": 323, "ustat": 136, "vhangup": 153,
}  # fmt: skip

# A call that is let through fails with another errno (these arguments are wrong on purpose), so
# EPERM is the filter's own. `clone` with a namespace flag, and what a flag decides, come after.
PROGRAM = """
import ctypes, json, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    padded = [ctypes.c_long(a) for a in (*arguments, *[-1] * 6)[:6]]
    result = libc.syscall(ctypes.c_long(number), *padded)
    return ctypes.get_errno() if result == -1 else 0
usual = ctypes.create_string_buffer(4)
found = {name: call(number) for name, number in json.loads(sys.argv[1]).items()}
NAMESPACES = {"ns": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000,
              "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000, "time": 0x80}
for name, flag in NAMESPACES.items():
    found["clone " + name] = call(56, flag, 0, 0, 0, 0)
found["clone3"] = call(435, 0, 0)
found["a call from the future"] = call(600)
found["a 32-bit mode's call"] = call(0x40000000 + 39)
found["vsock"] = call(41, 40, 1, 0)
found["personality of another"] = call(135, 0x0040000)
found["limits of PID 1"] = call(302, 1, 0, 0, 0)
found["idle priority for PID 1"] = call(144, 1, 5, ctypes.addressof(usual))
found["the usual priority for a thread by its number"] = call(
    144, threading.get_native_id(), 0, ctypes.addressof(usual)
)
found["own limits"] = call(302, 0, 0, 0, 0)
found["own personality"] = call(135, 0xffffffff)
found["getpid"] = call(39)
print(json.dumps(found))
"""

EPERM, ENOSYS = 1, 38


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64")
async def test_the_filter_refuses_what_a_container_s_default_profile_refuses() -> None:
    async with BubblewrapBackend() as backend:
        arguments = ["-I", "-c", PROGRAM, json.dumps(REFUSED)]
        result = (await backend.execute("/usr/bin/python3", arguments)).check()
    found = json.loads(result.stdout_text)
    refused = dict.fromkeys(REFUSED, EPERM)
    refused |= {f"clone {name}": EPERM for name in
                ("ns", "cgroup", "uts", "ipc", "user", "pid", "net", "time")}  # fmt: skip
    refused |= dict.fromkeys(("clone3", "a call from the future", "a 32-bit mode's call"), ENOSYS)
    others = ("vsock", "personality of another", "limits of PID 1", "idle priority for PID 1")
    refused |= dict.fromkeys(others, EPERM)
    own = ("own limits", "own personality", "the usual priority for a thread by its number")
    allowed = dict.fromkeys((*own, "getpid"), 0)
    assert found == refused | allowed
