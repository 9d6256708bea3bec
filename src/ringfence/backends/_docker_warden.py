"""How the warden gets into containers: by a volume that is filled once for each version of it.

The volume's name has the hash of the binary in it. A container that is never started is the door
through which it is filled and looked at; its name is fixed, so that of several processes one does
it and the others wait. Nothing in the volume is trusted before its hash has been found right.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tarfile
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import anyio
from aiodocker.containers import DockerContainer

from .. import inventory
from ..errors import BackendUnavailableError, BackendUnreachableError
from ..warden.binary import warden_for
from ._docker_aside import fill_body, warden_tar
from ._docker_body import LABEL, WARDEN_DIR
from ._docker_engine import Engine, RefusedError

__all__ = ("Door", "load_warden", "volume_name", "write_hosts")

_WAIT_SECONDS = 30.0
_STALE_SECONDS = 20.0  # a door that is older was left by a process that died
_POLL_SECONDS = 0.1
_NOT_FOUND, _CONFLICT = 404, 409
_HOSTS = "/etc/hosts"

HOSTS = b"127.0.0.1\tlocalhost\n::1\tlocalhost\n"
"""What a sandbox without a network has to know of names."""


def load_warden(architecture: str) -> bytes:
    """Return the warden's binary for an engine's machine.

    Raises:
        BackendUnavailableError: There is none.
    """
    path = warden_for(architecture)
    if path is None:
        raise BackendUnavailableError(
            f"there is no warden for the engine's machine ({architecture or 'unknown'})",
            backend="container",
            hint="it exists for x86-64 and arm64; a wheel made on Linux has it",
        )
    return path.read_bytes()


def write_hosts() -> str:
    """Write the file that says what `localhost` is, and return its path."""
    path = f"{inventory.state_dir()}/hosts"
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        if file.read() == HOSTS:
            return path
    new = f"{path}.{os.getpid()}"
    with open(new, "wb") as file:
        file.write(HOSTS)
    os.chmod(new, 0o644)
    os.replace(new, path)
    return path


def volume_name(binary: bytes) -> str:
    """Return the name of the volume for this binary."""
    return f"ringfence-warden-{hashlib.sha256(binary).hexdigest()[:16]}"


class Door:
    """A container through which the warden's volume is filled and looked at.

    Args:
        engine: The engine.
        image: Any image that is there; nothing of it runs.
        binary: The warden.
        hosts: A file of this machine that says what `localhost` is, or empty.

    Attributes:
        volume: The name of the volume.
        hosts: That file, if the engine can show it in containers; else empty.
    """

    def __init__(self, engine: Engine, image: str, binary: bytes, hosts: str = "") -> None:
        self._engine = engine
        self._image = image
        self._binary = binary
        self.volume = volume_name(binary)
        self.hosts = hosts

    async def prepare(self, owned: Mapping[str, str]) -> None:
        """See to it that the volume is there and right, and find out if the engine sees our files.

        Args:
            owned: The labels by which the container is found again if its owner dies meanwhile.

        Raises:
            BackendUnavailableError: The volume can't be filled.
            BackendUnreachableError: The engine does not answer.
        """
        labels = {f"{LABEL}warden": self.volume.rpartition("-")[2]}
        try:
            await self._engine.create_volume(self.volume, labels)
            container = await self._enter({**labels, **owned})
            try:
                await self._fill(container)
                if self.hosts and not await self._shows_hosts(container):
                    self.hosts = ""
            finally:
                await asyncio.shield(self._engine.tasks.task(self._leave(container)))
        except RefusedError as error:
            raise BackendUnavailableError(
                f"the warden can't be brought into a volume: {error.message}", backend="container"
            ) from error

    async def _enter(self, labels: Mapping[str, str]) -> DockerContainer:
        """Return the container, once nobody else has it."""
        name = f"{self.volume}-door"
        with anyio.move_on_after(_WAIT_SECONDS):
            while True:
                try:
                    body = fill_body(self._image, self.volume, labels, hosts=self.hosts)
                    return await self._create(body, name)
                except RefusedError as error:
                    if error.status != _CONFLICT and not self.hosts:
                        raise
                    if error.status != _CONFLICT:
                        self.hosts = ""  # there is no such path where the engine is
                        continue
                await self._remove_stale(name)
                await anyio.sleep(_POLL_SECONDS)
        raise BackendUnavailableError(
            f"another process has been bringing the warden into a volume for {_WAIT_SECONDS:g} s",
            backend="container",
            hint=f"`docker rm {name}` ends that",
        )

    async def _create(self, body: Mapping[str, Any], name: str) -> DockerContainer:
        """Create the container; for a caller that is cancelled it is removed behind its back."""
        create = self._engine.docker.containers.create(body, name=name)
        making = asyncio.ensure_future(self._engine.call("a container", create))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._engine.tasks.spawn(self._undo(making))
            raise

    async def _undo(self, making: asyncio.Future[DockerContainer]) -> None:
        with contextlib.suppress(RefusedError, BackendUnreachableError):
            await self._leave(await making)

    async def _remove_stale(self, name: str) -> None:
        container = self._engine.container(name)
        try:
            found = await self._engine.call("a container", container.show())
        except RefusedError as error:
            if error.status != _NOT_FOUND:
                raise
            return
        if _age(found) > _STALE_SECONDS:
            # By its id: in this moment another process may have made one of that name anew.
            await self._leave(self._engine.container(found["Id"]))

    async def _leave(self, container: DockerContainer) -> None:
        with anyio.CancelScope(shield=True):
            try:  # with the volumes that the image wanted; ours has a name, and stays
                await self._engine.call("a removal", container.delete(force=True, v=True))
            except RefusedError as error:
                if error.status not in (_NOT_FOUND, _CONFLICT):
                    raise

    async def _fill(self, container: DockerContainer) -> None:
        if await self._is_right(container):
            return
        await self._engine.upload(container, WARDEN_DIR, warden_tar(self._binary))
        if not await self._is_right(container):
            raise BackendUnavailableError(
                f"the volume {self.volume} does not hold what was put into it",
                backend="container",
                hint=f"`docker volume rm {self.volume}` makes room for a new one",
            )

    async def _is_right(self, container: DockerContainer) -> bool:
        found = await self._read(container, f"{WARDEN_DIR}/warden", len(self._binary))
        return found == self._binary

    async def _shows_hosts(self, container: DockerContainer) -> bool:
        """Whether our file is there, and not one of the same name on another machine."""
        try:
            return await self._read(container, _HOSTS, len(HOSTS)) == HOSTS
        except RefusedError:  # Podman does not look into a file that is mounted
            return False

    async def _read(self, container: DockerContainer, path: str, most: int) -> bytes | None:
        """Return a file's content, or None if it is none that is executable or short enough."""
        try:
            archive = await self._engine.call("a file", container.get_archive(path))
        except RefusedError as error:
            if error.status != _NOT_FOUND:
                raise
            return None
        with archive:
            item = archive.next()
            if item is None or not item.isreg() or item.size > most:
                return None
            file = archive.extractfile(item)
            return file.read() if file is not None and _is_open_to_all(item, path) else None


def _is_open_to_all(item: tarfile.TarInfo, path: str) -> bool:
    return not path.startswith(WARDEN_DIR) or item.mode & 0o777 == 0o555


def _age(container: Mapping[str, Any]) -> float:
    """Return how long ago a container was created, in seconds, by our clock."""
    try:
        text = str(container["Created"]).partition(".")[0].rstrip("Z")
        created = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except (KeyError, ValueError):
        return 0.0
    return (datetime.now(UTC) - created).total_seconds()
