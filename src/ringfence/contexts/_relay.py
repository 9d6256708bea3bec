"""Runs inside the sandbox: starts one Jupyter kernel and relays its messages over stdio.

The host sends the text of this file along, and of those that it imports. Here it speaks Jupyter's
protocol to an ipykernel, over sockets in a directory that only this user can enter; to the host it
speaks over stdin and stdout. What goes out is bounded, so that a flood or a figure of any size
costs the host nothing; the host counts again. The host sends lines of JSON::

    {"do": "run", "id": "1", "code": "...", "item": 1000, "total": 5000}
    {"do": "interrupt"}

The relay answers in messages, each a line of JSON and after it the bytes of its parts, whose sizes
the line tells. A `msg` is what a message of the kernel has, or what of it there is room for::

    {"is": "ready", "python": "3.11.2", "ipykernel": "7.0.0"}
    {"is": "missing", "why": "there is no module ipykernel"}
    {"is": "msg", "id": "1", "type": "stream", "parts": [["stdout", 3]], "cut": {}}
    {"is": "done", "id": "1", "count": 1, "cut": 0}
    {"is": "dead", "status": -9, "said": "..."}

It ends as its kernel ends, by the same signal or with the same code, so that whoever waits for it
learns that as of any command. Any Python from 3.9 on runs it.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from typing import Any

from ._bounds import Run
from ._outbox import Outbox

_PASSED_ON = ("stream", "display_data", "update_display_data", "execute_result", "error")
_READ_BYTES = 1 << 16
_AT_ONCE = 200  # messages of the kernel before the host is looked after again
_IDLE_SECONDS = 1.0  # that a kernel may take from its answer to its last output
_QUIET_SECONDS = 0.2  # after which nothing more comes from a kernel that has died
_ASK_SECONDS = 0.25
_SAID_BYTES = 4096
_LOOK_BYTES = 1 << 20  # of a message that is looked into in any case
_MISSING = 3

# What `python -m ipykernel_launcher` does, without a look at the modules of the workspace.
_LAUNCH = (
    "import sys; sys.path[:] = [p for p in sys.path if p]\n"
    "from ipykernel import kernelapp\n"
    "kernelapp.launch_new_instance()"
)
_SETTINGS = ("--HistoryManager.enabled=False", "--InteractiveShell.colors=nocolor")
_INLINE = "module://matplotlib_inline.backend_inline"


def main() -> None:
    """Relay until the kernel or the host is gone."""
    try:
        version("ipykernel")
        importlib.import_module("jupyter_client.session")
    except ImportError as error:  # that a package is not there is one too
        os.write(1, json.dumps({"is": "missing", "why": str(error)[:1000]}).encode() + b"\n")
        sys.exit(_MISSING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    place = tempfile.mkdtemp(prefix="kernel-")
    try:
        status = Relay(place).serve()
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


class Relay:
    """One kernel, and the messages in both directions."""

    def __init__(self, place: str) -> None:
        import zmq
        from jupyter_client.connect import write_connection_file
        from jupyter_client.session import Session

        key = os.urandom(32).hex().encode()
        path, about = write_connection_file(
            f"{place}/connection.json", transport="ipc", ip=f"{place}/k", key=key
        )
        self.kernel = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, "-f", path, *_SETTINGS],
            env=_environment(place),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # its own words; what programs write it takes itself
            start_new_session=True,
        )
        assert self.kernel.stderr is not None
        self.stderr = self.kernel.stderr.fileno()
        self.session = Session(key=key, username="host")
        context = zmq.Context()
        self.shell, self.iopub = context.socket(zmq.DEALER), context.socket(zmq.SUB)
        self.iopub.rcvhwm = 0  # beyond it messages are dropped without a word; memory has a limit
        self.iopub.subscribe(b"")
        ports = {self.shell: about["shell_port"], self.iopub: about["iopub_port"]}
        for socket, port in ports.items():
            socket.linger = 0
            socket.connect(f"ipc://{about['ip']}-{port}")
        self.poller = zmq.Poller()
        self.input, self.output, self.again = zmq.POLLIN, zmq.POLLOUT, zmq.Again
        for source in (self.shell, self.iopub, self.stderr, 0):
            self.poller.register(source, zmq.POLLIN)
        self.has_death = self.watch_death()
        self.heard = bytearray()  # of the host's next line
        self.said = b""  # the kernel's own last words
        self.outbox = Outbox(self.watch_output)
        self.run: Run | None = None
        self.ready = False
        self.asked, self.asked_at = "", 0.0
        self.greetings: set[str] = set()

    def watch_death(self) -> bool:
        """Let the kernel's death wake the poller, where the machine can do that."""
        try:
            self.poller.register(os.pidfd_open(self.kernel.pid), self.input)
        except (AttributeError, OSError):
            return False
        return True

    def serve(self) -> int:
        """Relay to the end and return how the kernel has ended."""
        while True:
            if not self.ready and time.monotonic() - self.asked_at > _ASK_SECONDS:
                self.asked_at = time.monotonic()  # until both its sockets answer
                self.asked = self.request("kernel_info_request", {})
            hurry = not self.ready or (self.run is not None and self.run.replied_at)
            events = dict(self.poller.poll(50 if hurry else 10_000 if self.has_death else 200))
            if self.stderr in events:
                self.hear_kernel()
            if self.shell in events:
                self.take(self.shell)
            if self.iopub in events:
                self.take(self.iopub)
            if 0 in events and not self.listen():
                os.killpg(self.kernel.pid, signal.SIGKILL)
                return 0
            self.outbox.write()
            self.settle()
            if self.kernel.poll() is not None:
                return self.dead(int(self.kernel.returncode))

    def request(self, kind: str, content: dict[str, Any]) -> str:
        """Send a request to the kernel and return its id."""
        message = self.session.msg(kind, content)
        self.shell.send_multipart(self.session.serialize(message))
        return str(message["header"]["msg_id"])

    # From the host.

    def listen(self) -> bool:
        """Take what the host says; return whether it is still there."""
        data = os.read(0, _READ_BYTES)
        self.heard += data
        if b"\n" in data:
            *lines, rest = self.heard.split(b"\n")
            self.heard = bytearray(rest)
            for line in lines:
                self.do(json.loads(line))
        return bool(data)

    def do(self, wanted: dict[str, Any]) -> None:
        """Do what one line of the host says."""
        if wanted["do"] == "interrupt":
            if self.run is not None:
                os.killpg(self.kernel.pid, signal.SIGINT)
            return
        content = {
            "code": wanted["code"],
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        sent = self.request("execute_request", content)
        self.run = Run(wanted["id"], sent, wanted["item"], wanted["total"])

    # From the kernel.

    def hear_kernel(self) -> None:
        """Keep the last of what it writes past its own streams: why it ended, if it knew."""
        data = os.read(self.stderr, _READ_BYTES)
        if not data:
            self.poller.unregister(self.stderr)
        self.said = (self.said + data)[-_SAID_BYTES:]

    def take(self, socket: Any) -> None:
        """Take the messages that are there, but not too many at once."""
        for _ in range(_AT_ONCE):
            try:
                frames = socket.recv_multipart(1, copy=False)  # 1: without waiting
            except self.again:
                return
            parts: Any = self.session.feed_identities(frames, False)[1]
            _, header, parent, _, content, *_ = parts
            self.consider(json.loads(header.bytes), json.loads(parent.bytes), content)

    def consider(self, header: dict[str, Any], parent: dict[str, Any], content: Any) -> None:
        """Pass a message on, if it belongs to what runs."""
        kind, request, run = header["msg_type"], parent.get("msg_id"), self.run
        if not self.ready:
            if request == self.asked:
                self.welcome(kind)
        elif run is None or request != run.request:
            return
        elif kind == "status":
            run.is_idle = json.loads(content.bytes)["execution_state"] == "idle"
        elif kind == "execute_reply":
            run.replied_at = time.monotonic()
            run.count = json.loads(content.bytes).get("execution_count") or 0
        elif kind in _PASSED_ON:
            size = len(content)
            if size > max(2 * run.item, _LOOK_BYTES):  # that would take as much memory again
                sent = run.omitted(kind, size)
            else:
                sent = run.fitted(kind, json.loads(content.bytes))
            if sent is not None:
                self.outbox.say(*sent)

    def welcome(self, kind: str) -> None:
        """Note that one of the kernel's two sockets has answered."""
        self.greetings.add(kind)
        if {"kernel_info_reply", "status"} <= self.greetings:
            self.ready = True
            about = {"python": platform.python_version(), "ipykernel": version("ipykernel")}
            self.outbox.say({"is": "ready", **about})

    def settle(self) -> None:
        """Say that a run is over, when all of its output has come."""
        run = self.run
        if run is None or not run.replied_at:
            return
        if run.is_idle or time.monotonic() - run.replied_at > _IDLE_SECONDS:
            self.run = None
            self.outbox.say({"is": "done", "id": run.name, "count": run.count, "cut": run.cut})

    # To the host.

    def watch_output(self, wanted: bool) -> None:
        """Look out, or no more, for stdout to take something."""
        if wanted:
            self.poller.register(1, self.output)
        else:
            self.poller.unregister(1)

    def dead(self, status: int) -> int:
        """Pass on what the kernel still had said, and tell how it ended."""
        until = time.monotonic() + _QUIET_SECONDS
        while time.monotonic() < until:
            if self.iopub.poll(int(_QUIET_SECONDS * 500)):
                self.take(self.iopub)
        os.set_blocking(self.stderr, False)
        if not self.stderr_is_empty():
            self.hear_kernel()
        os.set_blocking(1, True)
        said = self.said.decode("utf-8", "replace")
        self.outbox.say({"is": "dead", "status": status, "said": said})
        return status

    def stderr_is_empty(self) -> bool:
        """Whether the kernel's stderr has nothing to read; a child of it may hold it open."""
        return not dict(self.poller.poll(0)).get(self.stderr)


def _environment(place: str) -> dict[str, str]:
    found = dict(os.environ, IPYTHONDIR=f"{place}/ipython", JPY_PARENT_PID=str(os.getpid()))
    found["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # else a debugger that nobody uses warns of it
    if found.get("MPLBACKEND", "agg").lower() == "agg":
        found["MPLBACKEND"] = _INLINE  # else a figure is drawn and never shown
    return found
