"""A program that makes the system calls which have opened sandboxes, and reports any success."""

from __future__ import annotations

__all__ = ("PROGRAM",)

PROGRAM = r"""
import ctypes, errno, os, platform

NUMBERS = {
    "x86_64": dict(
        unshare=272, setns=308, mount=165, umount2=166, pivot_root=155, keyctl=250, add_key=248,
        request_key=249, bpf=321, userfaultfd=323, perf_event_open=298, kexec_load=246,
        init_module=175, finit_module=313, delete_module=176, open_by_handle_at=304, swapon=167,
        reboot=169, settimeofday=164, sethostname=170, acct=163, quotactl=179, iopl=172,
        ioperm=173, clone=56, clone3=435, io_uring_setup=425, fsopen=430, move_mount=429,
        mount_setattr=442, open_tree=428, syslog=103, vhangup=153, kcmp=312,
    ),
    "aarch64": dict(
        unshare=97, setns=268, mount=40, umount2=39, pivot_root=41, keyctl=219, add_key=217,
        request_key=218, bpf=280, userfaultfd=282, perf_event_open=241, kexec_load=104,
        init_module=105, finit_module=273, delete_module=106, open_by_handle_at=265, swapon=224,
        reboot=142, settimeofday=170, sethostname=161, acct=89, quotactl=60, clone=220,
        clone3=435, io_uring_setup=425, fsopen=430, move_mount=429, mount_setattr=442,
        open_tree=428, syslog=116, vhangup=58, kcmp=272,
    ),
}
NEW_USER = 0x10000000
ARGUMENTS = {
    "unshare": (NEW_USER,),
    "clone": (NEW_USER | 17,),  # with the signal of a plain child
    "setns": (0, NEW_USER),
    "perf_event_open": (0, 0, -1, -1, 0),
    "kcmp": (1, 1, 0, 0, 0),
}
REFUSED = (errno.EPERM, errno.ENOSYS, errno.EACCES)

libc = ctypes.CDLL(None, use_errno=True)
for name, number in NUMBERS[platform.machine()].items():
    arguments = [ctypes.c_long(value) for value in ARGUMENTS.get(name, ())]
    arguments += [ctypes.c_long(0)] * (6 - len(arguments))
    ctypes.set_errno(0)
    found = libc.syscall(ctypes.c_long(number), *arguments)
    if name.startswith("clone") and found == 0:
        os._exit(0)
    code = ctypes.get_errno()
    if found != -1 or code not in REFUSED:
        print(name, found, errno.errorcode.get(code, code))
print("end")
"""
"""Prints each call that was not refused, and at last `end`."""
