"""Checks of what a program can reach that is not its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from . import _expect as expect
from . import _syscalls
from ._context import Context
from ._host import processes_with
from ._model import HOST_KERNEL, ISOLATED, LIVE, PROGRAMS, Check, check

_SECRETS = {
    "AWS_SECRET_ACCESS_KEY": "leaked-aws",
    "JWT_SECRET": "leaked-jwt",
    "DATABASE_URL": "postgres://leaked-database",
    "LD_PRELOAD": "/no/such/leaked-preload.so",
    "BASH_ENV": "/no/such/leaked-bash-env",
    "PYTHONPATH": "/no/such/leaked-pythonpath",
    "http_proxy": "http://leaked-proxy",
}
_ALLOWED = {
    "PATH", "HOME", "LANG", "LC_ALL", "TERM", "TMPDIR", "XDG_CACHE_HOME", "MPLCONFIGDIR", "USER",
    "LOGNAME", "SHELL", "PWD", "HOSTNAME",
}  # fmt: skip


async def the_host_s_environment_stays_outside(ctx: Context) -> None:
    """Programs get the service's environment, with its keys."""
    with _environment(_SECRETS):
        backend = await ctx.another()
        result = await backend.execute("env", ["-0"])
        everywhere = await backend.execute(ctx.script("cat /proc/self/environ /proc/$PPID/environ"))
    names = {entry.partition(b"=")[0].decode() for entry in result.stdout.split(b"\0")[:-1]}
    expect.equal(names - _ALLOWED, set(), "variables that are on no list")
    expect.true({"PATH", "HOME", "LANG", "TMPDIR"} <= names, f"the variables are {sorted(names)}")
    expect.true(b"leaked" not in result.stdout + everywhere.stdout, "a value of the host is there")


async def no_process_inside_has_the_host_s_environment(ctx: Context) -> None:
    """The sandbox's own processes keep the service's environment, for anybody to read."""
    with _environment(_SECRETS):
        backend = await ctx.another()
        script = "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; true"
        result = await backend.execute(ctx.script(script))
    expect.true(b"leaked" not in result.stdout, "a value of the host is in some process inside")


async def home_and_its_kin_can_be_written(ctx: Context) -> None:
    """HOME or TMPDIR is not there, or nobody may write it: half of all programs fail."""
    script = """
        for d in "$HOME" "$TMPDIR" "$XDG_CACHE_HOME" "$MPLCONFIGDIR"; do
            case "$d" in /*) ;; *) echo "no path: $d"; continue ;; esac
            mkdir -p "$d" && echo x >"$d/probe" && cat "$d/probe" >/dev/null || echo "$d"
        done
    """
    expect.equal(await ctx.sh_ok(script), "", "what can't be written")


async def only_three_descriptors_are_open(ctx: Context) -> None:
    """A descriptor of the service, or of another command, is open in a program."""
    path = os.path.join(ctx.host_dir(), "secret")
    file = os.open(path, os.O_CREAT | os.O_RDWR)
    directory = os.open("/", os.O_RDONLY)
    try:
        for fd in (file, directory):
            os.set_inheritable(fd, True)
        backend = await ctx.another()
        async with await backend.create() as sandbox:
            for _ in range(3):
                await sandbox.start(ctx.script("cat", timeout=20), stdin_open=True)
            result = await sandbox.exec("ls", ["-l", "/proc/self/fd"])
    finally:
        os.close(file)
        os.close(directory)
    lines = [line.split()[-3:] for line in result.stdout_text.splitlines() if "->" in line]
    # A fourth may be the one that ls itself opens to look.
    own = [line[0] for line in lines if not line[2].endswith("/fd")]
    expect.equal(own, ["0", "1", "2"], f"descriptors in {lines}")
    expect.true(b"secret" not in result.stdout, "the service's file is open")
    for number, _, target in lines[:3]:
        known = target.startswith(("pipe:", "socket:")) or target == "/dev/null"
        expect.true(known, f"descriptor {number} is {target}")


async def programs_have_no_rights(ctx: Context) -> None:
    """Programs are root, hold capabilities, can gain rights, or have no system call filter."""
    text = await ctx.sh_ok("cat /proc/self/status")
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        expect.equal(int(status[name], 16), 0, name)
    expect.equal(status["NoNewPrivs"], "1", "NoNewPrivs")
    expect.equal(status["Seccomp"], "2", "Seccomp")
    for name in ("Uid", "Gid"):
        expect.true("0" not in status[name].split(), f"{name} is {status[name]!r}")
    expect.true("0" not in status["Groups"].split(), f"Groups is {status['Groups']!r}")


async def programs_are_not_root_on_the_host(ctx: Context) -> None:
    """A user id inside that is none of root's is root's outside."""
    marker = ctx.marker()
    await ctx.sandbox.start(ctx.script(f"sleep {marker} & wait"))
    await ctx.appears(marker)
    for pid in processes_with(marker):
        owner = os.stat(f"/proc/{pid}").st_uid
        expect.true(owner != 0, f"process {pid} belongs to uid 0 of the host")
        for kind in ("pid", "mnt", "net", "ipc", "uts", *ctx.user_namespace):
            theirs, ours = (os.readlink(f"/proc/{who}/ns/{kind}") for who in (pid, "self"))
            expect.true(theirs != ours, f"process {pid} is in the host's {kind} namespace")


async def dangerous_system_calls_are_refused(ctx: Context) -> None:
    """A call that has opened sandboxes before gets through to the kernel."""
    await ctx.require_own_namespaces()
    result = await ctx.py(_syscalls.PROGRAM)
    expect.true(result.ok, f"the program failed: {result.stderr_text}")
    expect.equal(result.stdout_text.splitlines()[:-1], [], "what was not refused")
    expect.equal(result.stdout_text.splitlines()[-1:], ["end"], "the last line")


async def namespaces_mounts_and_devices_can_t_be_made(ctx: Context) -> None:
    """A program mounts something, makes a device, or gets namespaces of its own."""
    attempts: tuple[str, ...] = (
        "unshare -U true", "unshare -r true", "unshare -m true", "unshare -n true",
        "mount -t tmpfs none /mnt", "mount --bind / /mnt", "mount -o remount,rw /usr",
        "umount -l /proc", "mknod null c 1 3", "mknod disk b 8 0", "chroot / true",
        "nsenter -t 1 -m true", "hostname other", "swapoff -a",
        "date -s 2000-01-01; [ $(date +%Y) = 2000 ]",  # one that fails may exit with 0
    )  # fmt: skip
    await ctx.require_own_namespaces()
    if not HOST_KERNEL.met(ctx.capabilities):  # whose devices are its own
        attempts = tuple(attempt for attempt in attempts if not attempt.startswith("mknod"))
    for attempt in attempts:
        result = await ctx.sh(f"command -v {attempt.split()[0]} >/dev/null || exit 1; {attempt}")
        expect.true(not result.ok, f"{attempt!r} succeeded")


async def there_are_no_host_devices(ctx: Context) -> None:
    """A disk, the memory, the log or a hypervisor of the host can be opened."""
    script = """
        find /dev -type b
        for d in mem kmem kmsg port kvm fuse net/tun vsock vhost-vsock loop-control sda nvme0; do
            if [ -r /dev/$d ] || [ -w /dev/$d ]; then echo /dev/$d; fi
        done
    """
    expect.equal((await ctx.sh(script)).stdout, b"", "the devices that are there")


async def there_is_no_network_but_its_own(ctx: Context) -> None:
    """A program reaches the host's services, its neighbours, or the cloud's metadata."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        program = """
import socket, sys
for address in (("127.0.0.1", int(sys.argv[1])), ("169.254.169.254", 80), ("1.1.1.1", 53)):
    try:
        socket.create_connection(address, 2)
        print("connected to", address)
    except OSError:
        pass
for family in (40, 17):  # the hypervisor's sockets, and raw packets
    try:
        socket.socket(family, socket.SOCK_STREAM if family == 40 else socket.SOCK_RAW)
        print("made a socket of family", family)
    except OSError:
        pass
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname(), 5)
print([name for _, name in socket.if_nameindex()])
"""
        result = await ctx.py(program, str(port))
    expect.equal((result.stdout, result.stderr), (b"['lo']\n", b""), "what the program reports")


async def sockets_without_a_name_are_its_own(ctx: Context) -> None:
    """Sockets of the host's abstract namespace, as desktops and agents use, can be reached."""
    name = f"ringfence-{ctx.marker()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        code = "import socket, sys; socket.socket(socket.AF_UNIX).connect('\\0' + sys.argv[1])"
        result = await ctx.py(code, name)
    expect.true(not result.ok, "the host's socket can be reached")


async def the_host_s_files_are_not_there(ctx: Context) -> None:
    """Passwords, homes, temporary files or the daemon's socket of the host can be read."""
    with open(os.path.join(ctx.host_dir(), "secret"), "w") as file:
        file.write("leaked")
    script = """
        cat "$1" 2>/dev/null
        for s in /var/run/docker.sock /run/docker.sock /run/containerd/containerd.sock \
                 /run/systemd/private /run/dbus/system_bus_socket; do
            if [ -e $s ]; then echo $s; fi
        done
    """
    result = await ctx.sh(script, file.name)
    expect.equal(result.stdout, b"", "what can be seen of a file and the services")
    # An image has such files of its own; the host's would be the same ones, not just like them.
    result = await ctx.sh(
        """
        for f in /etc/shadow /etc/gshadow /etc/sudoers; do cat "$f" >/dev/null && echo "$f"; done
        for d in /root /home /var/lib /run/user /srv /mnt /media /boot "$1"; do
            find "$d" -maxdepth 1 -exec stat -c '%d %i %n' {} ';' | head -n 200
        done
        """,
        os.path.expanduser("~"),
    )
    for line in result.stdout.decode("utf-8", "surrogateescape").splitlines():
        expect.true(not line.startswith("/"), f"{line} can be read")
        device, inode, name = line.split(" ", 2)
        try:
            own = os.lstat(name)
        except OSError:
            continue
        same = (own.st_dev, own.st_ino) == (int(device), int(inode))
        expect.true(not same, f"{name} is the host's own")


async def the_system_is_read_only(ctx: Context) -> None:
    """A program changes the system's files, or what the kernel offers as files."""
    script = """
        for f in / /usr /usr/bin /etc /lib /bin /sbin /var /dev; do
            if (: >"$f/.probe") 2>/dev/null; then echo "$f"; fi
        done
        for f in /etc/passwd /etc/ld.so.preload /proc/sys/kernel/core_pattern \
                 /proc/sys/kernel/hostname /proc/sys/vm/drop_caches /proc/sysrq-trigger \
                 /proc/sys/kernel/modprobe /proc/sys/fs/binfmt_misc/register /proc/1/oom_score_adj \
                 /sys/kernel/uevent_helper /sys/fs/cgroup/release_agent \
                 /sys/fs/cgroup/cgroup.procs; do
            if (: >>"$f") 2>/dev/null; then echo "$f"; fi
        done
        for f in /proc/kcore /proc/kmsg /proc/1/mem /dev/mem; do
            if head -c 1 "$f" >/dev/null 2>&1; then echo "$f"; fi
        done; true
    """
    await ctx.require_own_namespaces()
    expect.equal(await ctx.sh_ok(script), "", "what can be written, or read against the rules")


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set some variables of this process for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


CHECKS: tuple[Check, ...] = (
    check(the_host_s_environment_stays_outside, PROGRAMS),
    check(no_process_inside_has_the_host_s_environment, PROGRAMS, ISOLATED),
    check(home_and_its_kin_can_be_written, PROGRAMS),
    check(only_three_descriptors_are_open, PROGRAMS, LIVE),
    check(programs_have_no_rights, ISOLATED, HOST_KERNEL),
    check(programs_are_not_root_on_the_host, ISOLATED, LIVE, HOST_KERNEL),
    check(dangerous_system_calls_are_refused, ISOLATED, hostile=True),
    check(namespaces_mounts_and_devices_can_t_be_made, ISOLATED, hostile=True),
    check(there_are_no_host_devices, ISOLATED, HOST_KERNEL),
    check(there_is_no_network_but_its_own, ISOLATED),
    check(sockets_without_a_name_are_its_own, ISOLATED),
    check(the_host_s_files_are_not_there, ISOLATED),
    check(the_system_is_read_only, ISOLATED),
)
