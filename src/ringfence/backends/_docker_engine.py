"""The engine's API, with every wait bounded and every fault of our own kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import aiohttp
from aiodocker import Docker
from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError
from aiodocker.networks import DockerNetwork
from aiodocker.volumes import DockerVolume

from ..errors import BackendUnavailableError, BackendUnreachableError, BackendUntrustedError
from ._docker_attach import ContainerStream, HijackRefusedError, hijack
from ._docker_endpoint import Endpoint, connector
from ._docker_tls import find_fault, look_for_fault
from ._tasks import Tasks

__all__ = ("Engine", "RefusedError", "unreachable", "untrusted")

_T = TypeVar("_T")

_NAME = "container"
_CALL_SECONDS = 10.0
_CONNECT_SECONDS = 5.0
_TLS_SECONDS = 1.0  # for one that hung up to say why
_FIRST_SECONDS = 8.0  # for one that is asked whether it is there at all
_OLDEST, _NEWEST = (1, 40), (1, 47)  # of the API: what we need, and what we have looked at
_NOT_FOUND, _CONFLICT, _FAULT = 404, 409, 500
_UNREACHABLE = 900  # aiodocker's own number


class RefusedError(Exception):
    """The engine answered, and said no.

    Attributes:
        status: The HTTP status.
        message: What it said.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


def _meant(status: int, said: str) -> int:
    """Return the status that fits what was said: Podman calls some of it a fault of its own."""
    if status == _FAULT and "no such container" in said:
        return _NOT_FOUND
    if status == _FAULT and "name is already in use" in said:
        return _CONFLICT
    return status


def unreachable(endpoint: Endpoint, what: str) -> BackendUnreachableError:
    """Return the error for an engine that is not there or does not answer."""
    return BackendUnreachableError(
        f"the container engine at {endpoint.url} {what}",
        backend=_NAME,
        hint="is it running, and may this user use it?",
    )


def untrusted(endpoint: Endpoint, fault: str) -> BackendUntrustedError:
    """Return the error for an engine that we don't trust, or that does not trust us."""
    return BackendUntrustedError(
        f"there is no TLS with the container engine at {endpoint.url}: {fault}",
        backend=_NAME,
        hint="certificates are in tls_dir, in DOCKER_CERT_PATH or in the docker context",
    )


class Engine:
    """One engine.

    Args:
        endpoint: Where it is.

    Attributes:
        endpoint: Where it is.
        docker: The client library's own object, open until `aclose`.
        info: What the engine says of itself.
        tasks: What goes on behind the callers' backs.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.info: Mapping[str, Any] = {}
        self.version: Mapping[str, Any] = {}
        url, self._connector = connector(endpoint)
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS)
        self.docker = Docker(url, connector=self._connector, timeout=timeout)
        self.tasks = Tasks("a container")

    @property
    def leaves_containers(self) -> bool:
        """Whether its containers run on while it is away, as Docker's `live-restore` has it."""
        return bool(self.info.get("LiveRestoreEnabled"))

    async def open(self) -> None:
        """Agree on a version of the API and learn what the engine can do.

        Raises:
            BackendUnreachableError: It does not answer.
            BackendUntrustedError: Its certificate or ours is not taken.
            BackendUnavailableError: It is too old.
        """
        try:
            await self._open()
        except BackendUntrustedError:
            raise
        except BackendUnreachableError as error:
            tls, address = self.endpoint.tls, self.endpoint.address
            if tls is not None and (fault := await look_for_fault(address, tls, _TLS_SECONDS)):
                raise untrusted(self.endpoint, fault) from error
            raise

    async def _open(self) -> None:
        try:
            self.version = await self.call("its version", self.docker.version(), _FIRST_SECONDS)
            newest = _api_version(self.version.get("ApiVersion"))
            if newest < _OLDEST:
                raise BackendUnavailableError(
                    f"the container engine at {self.endpoint.url} is too old: its API has version "
                    f"{self.version.get('ApiVersion')}, and 1.40 is the first that will do",
                    backend=_NAME,
                )
            agreed = max(min(newest, _NEWEST), _api_version(self.version.get("MinAPIVersion")))
            self.docker.api_version = "v{}.{}".format(*agreed)
            self.info = await self.call("what it is", self.docker.system.info(), _FIRST_SECONDS)
        except RefusedError as error:
            raise unreachable(self.endpoint, f"answers with an error: {error.message}") from error

    async def call(self, what: str, request: Awaitable[_T], seconds: float = _CALL_SECONDS) -> _T:
        """Await a request to the engine, for a bounded time.

        Raises:
            RefusedError: It answered with an error.
            BackendUnreachableError: It can't be reached, or did not answer in time.
        """
        try:
            async with asyncio.timeout(seconds):
                return await request
        except TimeoutError:
            raise unreachable(
                self.endpoint, f"did not answer within {seconds:g} s (asked for {what})"
            ) from None
        except DockerError as error:
            if error.status != _UNREACHABLE:
                said = str(error.message)
                raise RefusedError(_meant(error.status, said), said) from error
            raise self._not_reached(error, "can't be reached") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._not_reached(error, f"hung up ({type(error).__name__})") from error

    def _not_reached(self, error: Exception, what: str) -> BackendUnreachableError:
        if self.endpoint.tls is not None and (fault := find_fault(error, self.endpoint.tls)):
            return untrusted(self.endpoint, fault)
        return unreachable(self.endpoint, what)

    def container(self, name: str) -> DockerContainer:
        """Return a container by its id or name, without a look at it."""
        return self.docker.containers.container(name)

    async def attach(
        self, name: str, on_end: Callable[[], Awaitable[None]], seconds: float = _CALL_SECONDS
    ) -> ContainerStream:
        """Return the streams of a container that has not been started yet.

        Raises:
            RefusedError: The engine said no.
            BackendUnreachableError: It can't be reached.
        """
        query = "stream=1&stdin=1&stdout=1&stderr=1"
        path = f"/{self.docker.api_version}/containers/{name}/attach?{query}"
        return await self.call("a stream", self._hijack(path, on_end, b""), seconds)

    async def start_exec(
        self, exec_id: str, on_end: Callable[[], Awaitable[None]]
    ) -> ContainerStream:
        """Start an exec and return its streams.

        Raises:
            RefusedError: The engine said no.
            BackendUnreachableError: It can't be reached.
        """
        path = f"/{self.docker.api_version}/exec/{exec_id}/start"
        body = b'{"Detach":false,"Tty":false}'
        return await self.call("an exec", self._hijack(path, on_end, body))

    async def _hijack(
        self, path: str, on_end: Callable[[], Awaitable[None]], body: bytes
    ) -> ContainerStream:
        try:
            return await hijack(self.endpoint, path, on_end, body)
        except HijackRefusedError as error:
            raise DockerError(error.status, error.message) from None

    async def list_owned(self, kind: str, label: str) -> list[tuple[str, Mapping[str, str]]]:
        """Return id or name, and the labels, of everything of a kind that has a label.

        Args:
            kind: `containers`, `volumes` or `networks`.
            label: `name` or `name=value`.
        """
        filters = json.dumps({"label": [label]})
        if kind == "containers":
            found = await self.call(kind, self.docker.containers.list(all=True, filters=filters))
            return [(item["Id"], item["Labels"]) for item in found]
        if kind == "volumes":
            listing = self.docker.volumes.list  # the library has no types for these two
            volumes: Any = await self.call(kind, listing(filters={"label": [label]}))  # type: ignore[no-untyped-call]
            return [(item["Name"], item.get("Labels") or {}) for item in volumes["Volumes"] or ()]
        networks = await self.call(kind, self.docker.networks.list(filters={"label": [label]}))
        return [(item["Id"], item.get("Labels") or {}) for item in networks]

    async def running(self, label: str) -> frozenset[str]:
        """Return the names of the containers with a label that have not ended."""
        filters = json.dumps({"label": [label], "status": ["created", "running", "paused"]})
        request = self.docker.containers.list(all=True, filters=filters)
        found = await self.call("containers", request)
        return frozenset(name.lstrip("/") for item in found for name in item["Names"])

    async def create_volume(
        self, name: str, labels: Mapping[str, str], options: Mapping[str, str] | None = None
    ) -> None:
        """Make a volume, or find the one of that name.

        Args:
            name: Its name.
            labels: Its labels.
            options: What is mounted for it, as `type`, `device` and `o`. Default: a directory.
        """
        body = {
            "Name": name,
            "Driver": "local",
            "Labels": dict(labels),
            "DriverOpts": dict(options or {}),
        }
        await self.call("a volume", self.docker.volumes.create(body))  # type: ignore[no-untyped-call]

    async def upload(self, container: DockerContainer, path: str, archive: bytes) -> None:
        """Unpack a tar archive in a directory of a container."""
        await self.call("an upload", container.put_archive(path, archive))  # type: ignore[no-untyped-call]

    async def remove_volume(self, name: str) -> None:
        """Remove a volume; one that is not there is fine."""
        volume = DockerVolume(self.docker, name)  # type: ignore[no-untyped-call]
        await self._gone(self.call("a removal", volume.delete(force=True)))  # type: ignore[no-untyped-call]

    async def remove_network(self, name: str) -> None:
        """Remove a network; one that is not there is fine."""
        network = DockerNetwork(self.docker, name)  # type: ignore[no-untyped-call]
        await self._gone(self.call("a removal", network.delete()))

    @staticmethod
    async def _gone(removal: Awaitable[Any]) -> None:
        try:
            await removal
        except RefusedError as error:
            if error.status != _NOT_FOUND:
                raise

    async def events(self, label: str, since: float) -> AsyncIterator[dict[str, Any]]:
        """Yield what happens to containers with a label, from a moment on, until the stream ends.

        Args:
            label: `name=value`.
            since: By the engine's clock, in seconds since the epoch.
        """
        filters = {
            "type": ["container"],
            "label": [label],
            "event": ["die", "died", "destroy", "remove", "oom", "pause"],  # Podman's words too
        }
        params: dict[str, Any] = {"filters": json.dumps(filters), "since": f"{since:.9f}"}
        channel = self.docker.events.subscribe(create_task=False)  # type: ignore[no-untyped-call]
        reading = asyncio.create_task(self.docker.events.run(**params))
        try:
            while (event := await channel.get()) is not None:
                yield event
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def aclose(self) -> None:
        """Finish the background's work and close every connection. Safe to call again."""
        await self.tasks.drain()
        try:
            await self.docker.close()
        finally:
            await self._connector.close()


def _api_version(text: object) -> tuple[int, int]:
    major, _, minor = str(text or "0.0").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
