"""Images that programs write and nobody has named, told by what is new at the workspace's top.

One listing after each run is compared with the one after the run before, so a run costs one
listing and no more. A directory of so many entries that a listing is dear is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import SandboxLostError, WorkspaceError
from ..export import readable
from ..models import FileInfo, FileKind
from ..sessions import Session
from .answers import Picture
from .options import McpOptions
from .pictures import image_of

__all__ = ("Found", "NewImages")

_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_MOST_ENTRIES = 1000
_MOST_IMAGES = 8


@dataclass(frozen=True)
class Found:
    """What was found after a run.

    Attributes:
        pictures: What is shown.
        told: A line for a model: which they are, and which could not be shown; or empty.
    """

    pictures: tuple[Picture, ...] = ()
    told: str = ""


class NewImages:
    """The images of one client's workspace, and which of them it has not had yet.

    Args:
        session: The client's.
        options: The server's.
    """

    def __init__(self, session: Session, options: McpOptions) -> None:
        self._session = session
        self._options = options
        self._generation = 0
        self._known: dict[str, tuple[int, float]] = {}

    async def written(self, taken: int = 0) -> Found:
        """Return the images that were written since the run before.

        What can't be shown, as it is too large or gone again, is told and is no error.

        Args:
            taken: Bytes of images that the call returns beside them.
        """
        try:
            return await self._shown(await self._new(), taken)
        except SandboxLostError as error:
            self._session.tell_later(error)  # what the program did is told now
            return Found()

    async def _new(self) -> list[FileInfo]:
        session = self._session
        if not session.capabilities.files or not session.is_live:
            return []
        if session.generation != self._generation:
            self._generation, self._known = session.generation, {}
        listing = await session.list_files(".", max_entries=_MOST_ENTRIES)
        if listing.truncated:
            return []
        images = [
            entry
            for entry in listing.entries
            if entry.kind is FileKind.FILE and entry.name.lower().endswith(_ENDINGS)
        ]
        before, self._known = self._known, {one.name: (one.size, one.mtime) for one in images}
        new = [one for one in images if before.get(one.name) != (one.size, one.mtime)]
        return sorted(new, key=lambda one: one.mtime)

    async def _shown(self, new: list[FileInfo], taken: int) -> Found:
        pictures: list[Picture] = []
        shown, left_out = [], []
        room = self._options.images_bytes - taken
        for file in new:
            name = readable(file.name)
            picture = await self._picture(name) if len(pictures) < _MOST_IMAGES else None
            if picture is None or len(picture.data) > room:
                left_out.append(name)
                continue
            room -= len(picture.data)
            pictures.append(picture)
            shown.append(name)
        told = [f"[shown: {', '.join(shown)}]"] if shown else []
        if left_out:
            told.append(f"[not shown: {', '.join(left_out[:_MOST_IMAGES])}; read_file says why]")
        return Found(tuple(pictures), "\n".join(told))

    async def _picture(self, name: str) -> Picture | None:
        try:
            found = await image_of(self._session, self._options, name)
        except WorkspaceError:
            return None
        return found[0] if found else None
