"""What a workspace is made of, and how that is made and removed.

A tmpfs is part of the container, or a volume in memory where the engine can't give the container
one with an owner and an inode limit. A volume is the engine's. A loop file system is this
machine's: a sparse file with ext4 in it, mounted here and shown inside; see `_docker_loop`.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Mapping
from functools import partial
from typing import Any

import anyio.to_thread

from ..config import ContainerConfig
from ..errors import BackendUnavailableError, CreateError
from ..models import Limits
from ._docker_aside import fill_body
from ._docker_body import WORKSPACE
from ._docker_engine import Engine, RefusedError
from ._docker_loop import check_loops, make_loop, remove_loop

__all__ = ("Storage", "memory_volume", "own_directory_tar", "volume_of")


def volume_of(sandbox_id: str) -> str:
    """Return the name of a sandbox's workspace volume."""
    return f"{sandbox_id}-workspace"


class Storage:
    """Makes and removes workspaces.

    Args:
        engine: The engine.
        config: Says what workspaces are made of.
        image: An image for the container through which a volume gets its owner.
        tmpfs: Whether a tmpfs of the container's own can have an owner and an inode limit.
    """

    def __init__(
        self, engine: Engine, config: ContainerConfig, image: str, *, tmpfs: bool = True
    ) -> None:
        self._engine = engine
        self._config = config
        self._image = image
        self._tmpfs = tmpfs

    def check(self) -> None:
        """Find out whether such workspaces can be made here.

        Raises:
            BackendUnavailableError: They can't.
        """
        if self._config.workspace_storage != "loop":
            return
        check_loops()
        if not self._engine.endpoint.is_local:
            raise BackendUnavailableError(
                "workspace_storage 'loop' needs an engine on this machine", backend="container"
            )

    async def make(
        self, sandbox_id: str, limits: Limits, labels: Mapping[str, str]
    ) -> Mapping[str, Any] | None:
        """Make a workspace and return it as a mount without a target; None for the container's own.

        Raises:
            CreateError: It could not be made. What there is of it is for `remove` to take away.
            BackendUnreachableError: The engine does not answer.
        """
        in_memory = self._config.workspace_storage == "tmpfs"
        if in_memory and self._tmpfs:
            return None
        if self._config.workspace_storage == "loop":
            make = partial(make_loop, sandbox_id, limits, self._config.user)
            return {"Type": "bind", "Source": await anyio.to_thread.run_sync(make)}
        name = volume_of(sandbox_id)
        try:
            if in_memory:
                options = memory_volume(limits, self._config.user)
                await self._engine.create_volume(name, labels, options)
            else:
                await self._engine.create_volume(name, labels)
                await self._own(name, labels)
        except RefusedError as error:
            raise CreateError(
                f"the engine could not make a workspace: {error.message}", backend="container"
            ) from error
        return {"Type": "volume", "Source": name, "VolumeOptions": {"NoCopy": True}}

    async def _own(self, volume: str, labels: Mapping[str, str]) -> None:
        """Give a volume to the sandbox's user, through a container that is never started."""
        body = fill_body(self._image, volume, labels, WORKSPACE)
        create = self._engine.docker.containers.create(body, name=volume)
        container = await self._engine.call("a container", create)
        try:
            await self._engine.upload(container, "/", own_directory_tar(self._config.user))
        finally:
            with contextlib.suppress(RefusedError):
                await self._engine.call("a removal", container.delete(force=True, v=True))

    async def remove(self, sandbox_id: str) -> None:
        """Remove a sandbox's workspace, if there is anything of it outside of the container."""
        storage = self._config.workspace_storage
        if storage == "volume" or (storage == "tmpfs" and not self._tmpfs):
            await self._engine.remove_volume(volume_of(sandbox_id))
        elif storage == "loop":
            await anyio.to_thread.run_sync(remove_loop, sandbox_id)


def memory_volume(
    limits: Limits, user: str, page: int = os.sysconf("SC_PAGE_SIZE")
) -> dict[str, str]:
    """Return what makes a volume a memory file system of its own size.

    Podman takes `size` for a quota of its own, so the size is given in pages, as tmpfs has it too.
    """
    uid, gid = user.split(":")
    blocks = max(1, (limits.workspace_bytes or 0) // page)
    what = f"nr_blocks={blocks},nr_inodes={limits.workspace_files},uid={uid},gid={gid},mode=0755"
    return {"type": "tmpfs", "device": "tmpfs", "o": f"{what},nosuid,nodev"}


def own_directory_tar(user: str) -> bytes:
    """Return an archive that gives the workspace's directory to a `uid:gid`."""
    uid, gid = user.split(":")
    item = tarfile.TarInfo(WORKSPACE.strip("/"))
    item.type = tarfile.DIRTYPE
    item.mode = 0o755
    item.uid, item.gid = int(uid), int(gid)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(item)
    return buffer.getvalue()
