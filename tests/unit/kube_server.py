"""An API server for tests: it answers as a real one was seen to, and does what a test tells it.

Pods don't run. What is in their place for `pods/exec` is a peer that says hello as a warden does
and ends every command at once, in the version of the WebSocket protocol that the test wants.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from .kube_peer import Peer

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]
RUNNING = {
    "phase": "Running",
    "containerStatuses": [{"name": "sandbox", "state": {"running": {}}}],
}


def waiting(reason: str, message: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "sandbox", "state": state}]}


def terminated(code: int, reason: str, message: str = "") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return {"phase": "Failed", "containerStatuses": [{"name": "sandbox", "state": state}]}


def refusal(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code)


class KubeServer:
    """What it has, and what it is told to do.

    Attributes:
        token: Whom it knows by.
        denied: Verbs and resources that are not permitted, as `create pods/exec`.
        version: What it says of itself.
        status: What becomes of the next pod, or None for a Job without one.
        event: What is told of the next Job, or empty.
        refused: What is answered to the creation of a Job: status, reason and message; or None.
        protocols: What `pods/exec` speaks.
        objects: All that was made, by its path.
        deleted: The paths of what was deleted.
        requests: All that was asked, as method and path.
        pause: Seconds that the creation of a Job takes.
        gone: How often a watch is told that its version is too old.
        not_yet: How an exec fails that comes too early: `refused` or `ended`, the last first.
        logs: What each request for a log is answered with.
        spoken: The version of each stream that there was.
        told_to_end: How many wardens were.
    """

    def __init__(self) -> None:
        self.token = "t"
        self.denied: set[str] = set()
        self.version = {"major": "1", "minor": "36+", "gitVersion": "v1.36.1"}
        self.status: dict[str, Any] | None = RUNNING
        self.event = ""
        self.refused: tuple[int, str, str] | None = None
        self.protocols: tuple[str, ...] = ("v5.channel.k8s.io", "v4.channel.k8s.io")
        self.objects: dict[str, dict[str, Any]] = {}
        self.deleted: list[str] = []
        self.requests: list[tuple[str, str]] = []
        self.pause = 0.0
        self.gone = 0
        self.not_yet: list[str] = []
        self.logs: list[bytes] = []
        self.spoken: list[str] = []
        self.told_to_end = 0
        self.url = ""
        self._happened: dict[str, list[dict[str, Any]]] = {"pods": [], "events": []}
        self._watchers: dict[str, list[asyncio.Queue[dict[str, Any] | None]]] = {}
        self._sockets: set[web.WebSocketResponse] = set()
        self._number = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[KubeServer]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self.end_watches()
            await runner.cleanup()

    def kubeconfig(self, path: Path, url: str = "") -> Path:
        """Write a kubeconfig that leads here, or elsewhere."""
        cluster = {"name": "c", "cluster": {"server": url or self.url}}
        user = {"name": "u", "user": {"token": self.token}}
        context = {"name": "k", "context": {"cluster": "c", "user": "u"}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "k",
            "clusters": [cluster],
            "users": [user],
            "contexts": [context],
        }
        path.write_text(json.dumps(config))
        return path

    # What a test does to it.

    def change(self, status: dict[str, Any], **metadata: Any) -> None:
        """Let the pod that there is change."""
        pod = self.pods[-1]
        pod["status"] = status
        pod["metadata"] |= metadata
        self._tell("pods", "MODIFIED", pod)

    def remove_pod(self) -> None:
        pod = self.pods[-1]
        del self.objects[self._pod_path(pod)]
        self._tell("pods", "DELETED", pod)

    def replace_pod(self) -> None:
        """Make another pod of the same Job, as a server does where one was deleted."""
        old = self.pods[-1]
        self._add_pod(old["metadata"]["labels"], RUNNING)

    def end_watches(self) -> None:
        for queues in self._watchers.values():
            for queue in queues:
                queue.put_nowait(None)

    async def break_streams(self) -> None:
        for socket in list(self._sockets):
            transport = socket._req and socket._req.transport
            if transport:
                transport.abort()

    @property
    def pods(self) -> list[dict[str, Any]]:
        return [item for path, item in self.objects.items() if "/pods/" in path]

    def names(self, kind: str) -> list[str]:
        return [path.rpartition("/")[2] for path in self.objects if f"/{kind}/" in path]

    # What it does.

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.requests.append((request.method, path))
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return refusal(401, "Unauthorized", "Unauthorized")
        if path == "/version":
            return web.json_response(self.version)
        if path.endswith("/selfsubjectaccessreviews"):
            return await self._review(request)
        if path.endswith("/exec"):
            return await self._exec(request)
        if path.endswith("/log"):
            return await self._log(request)
        if request.query.get("watch"):
            return await self._watch(request)
        if request.method == "POST":
            return await self._create(request)
        if request.method == "DELETE":
            return self._delete(path)
        if request.method == "PATCH":
            return web.json_response(self.objects.get(path, {}))
        if path in self.objects:
            return web.json_response(self.objects[path])
        kind = path.rpartition("/")[2]
        if kind in ("jobs", "pods", "leases", "events"):
            items = [item for name, item in self.objects.items() if name.startswith(f"{path}/")]
            version = str(len(self._happened.get(kind, ())))
            return web.json_response({"metadata": {"resourceVersion": version}, "items": items})
        return refusal(404, "NotFound", f"{kind} not found")

    async def _review(self, request: web.Request) -> web.Response:
        asked = (await request.json())["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        allowed = f"{asked['verb']} {resource}" not in self.denied
        return web.json_response({"status": {"allowed": allowed}}, status=201)

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = body["metadata"]["name"]
        path = f"{request.path}/{name}"
        is_job = request.path.endswith("/jobs")
        if is_job:
            await asyncio.sleep(self.pause)
            if self.refused is not None:
                return refusal(*self.refused)
        if path in self.objects:
            return refusal(409, "AlreadyExists", f"{name} already exists")
        self.objects[path] = body
        if is_job and self.event:
            event = {"reason": "FailedCreate", "message": self.event, "metadata": {}}
            event["involvedObject"] = {"kind": "Job", "name": name}
            self._tell("events", "ADDED", event)
        elif is_job and self.status is not None:
            self._add_pod(body["spec"]["template"]["metadata"]["labels"], self.status)
        return web.json_response(body, status=201)

    def _add_pod(self, labels: dict[str, str], status: dict[str, Any]) -> None:
        self._number += 1
        name = f"{labels['ringfence.sandbox']}-{self._number}"
        metadata = {"name": name, "uid": f"uid-{self._number}", "labels": labels}
        pod = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": status}
        if status.get("conditions"):
            pod["spec"] = {}
        self.objects[self._pod_path(pod)] = pod
        self._tell("pods", "ADDED", pod)

    @staticmethod
    def _pod_path(pod: dict[str, Any]) -> str:
        return f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}"

    def _delete(self, path: str) -> web.Response:
        self.deleted.append(path)
        if self.objects.pop(path, None) is None:
            return refusal(404, "NotFound", "not found")
        sandbox = path.rpartition("/")[2]
        for pod in self.pods:
            if pod["metadata"]["labels"]["ringfence.sandbox"] == sandbox:
                del self.objects[self._pod_path(pod)]
                self._tell("pods", "DELETED", pod)
        return web.json_response({"status": "Success"})

    def _tell(self, kind: str, what: str, item: dict[str, Any]) -> None:
        happened = self._happened[kind]
        metadata = {**item["metadata"], "resourceVersion": str(len(happened) + 1)}
        event = {"type": what, "object": {**item, "metadata": metadata}}
        happened.append(event)
        for queue in self._watchers.get(kind, ()):
            queue.put_nowait(event)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        kind = request.path.rpartition("/")[2]
        answer = web.StreamResponse()
        await answer.prepare(request)
        if self.gone:
            self.gone -= 1
            status = {"code": 410, "reason": "Expired", "message": "too old resource version"}
            await answer.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
            return answer
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        for event in self._happened[kind][int(request.query["resourceVersion"]) :]:
            queue.put_nowait(event)
        self._watchers.setdefault(kind, []).append(queue)
        try:
            while (found := await queue.get()) is not None:
                await answer.write(json.dumps(found).encode() + b"\n")
        finally:
            self._watchers[kind].remove(queue)
        return answer

    async def _log(self, request: web.Request) -> web.StreamResponse:
        """Answer with the next of the logs that there are; all but the last break off."""
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(self.logs.pop(0))
        if self.logs and request.transport is not None:
            request.transport.abort()
        else:
            self.change(terminated(3, "Error"))
        return answer

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        kind = self.not_yet.pop() if self.not_yet else ""
        if kind == "refused":
            return refusal(404, "NotFound", "container not found")
        socket = web.WebSocketResponse(protocols=self.protocols)
        await socket.prepare(request)
        if kind == "ended":  # as servers do that speak to the kubelet in another way
            said = {"status": "Failure", "message": "container not found"}
            await socket.send_bytes(b"\x03" + json.dumps(said).encode())
            await socket.close()
            return socket
        self._sockets.add(socket)
        self.spoken.append(socket.ws_protocol or "")
        peer = Peer(socket)
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY and not await peer.take(message.data):
                    self.told_to_end += 1
                    break
        finally:
            self._sockets.discard(socket)
        return socket
