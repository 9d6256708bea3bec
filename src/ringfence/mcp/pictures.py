"""Bringing images out of a session."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import FileTooLargeError, SandboxError, ToolError, WorkspaceError
from ..export import unreadable
from ..models import FileKind
from ..sessions import Session
from .answers import Picture
from .images import IMAGE_HEAD, Image, recognize
from .options import McpOptions

__all__ = ("bring_images", "image_of")


async def image_of(
    session: Session, options: McpOptions, path: str
) -> tuple[Picture, Image] | None:
    """Return a file as an image, or None if it is none.

    Args:
        session: Where.
        options: How large it may be.
        path: As a model writes it.

    Raises:
        FileTooLargeError: It is one, and larger than what may be returned.
        WorkspaceError: It can't be read.
    """
    name, most = unreadable(path), options.image_bytes
    head = await session.read_file(name, max_bytes=IMAGE_HEAD)
    if recognize(head) is None:
        return None
    found = await session.stat(name)
    if found.kind is FileKind.FILE and found.size > most:
        raise _too_large(path, f"{found.size} bytes, and at most {most} are shown")
    data = await session.read_file(name, max_bytes=most + 1)
    if len(data) > most:
        raise _too_large(path, f"more than the {most} bytes that are shown at most")
    image = recognize(data)
    if image is None:  # it is being written
        return None
    if image.width * image.height > options.image_pixels:
        raise _too_large(
            path,
            f"{image.width} x {image.height} pixels, and at most {options.image_pixels} in "
            "all are shown",
        )
    return Picture(image.media_type, data), image


async def bring_images(
    session: Session, options: McpOptions, paths: Sequence[str], taken: int = 0
) -> tuple[tuple[Picture, ...], SandboxError | None]:
    """Return the images that were asked for, and the first error, which keeps out what follows.

    Args:
        session: Where.
        options: How large they may be.
        paths: Which.
        taken: Bytes of images that the call returns beside them.
    """
    brought: list[Picture] = []
    room = options.images_bytes - taken
    try:
        for path in paths:
            picture = await _wanted(session, options, path, room)
            room -= len(picture.data)
            brought.append(picture)
    except (ToolError, WorkspaceError) as error:
        return tuple(brought), error
    return tuple(brought), None


async def _wanted(session: Session, options: McpOptions, path: str, room: int) -> Picture:
    found = await image_of(session, options, path)
    if found is None:
        raise ToolError(f"{path} is no PNG, JPEG, GIF or WebP image; read_file returns text")
    if len(found[0].data) > room:
        most = options.images_bytes
        raise _too_large(path, f"more bytes than are left of one call's {most}")
    return found[0]


def _too_large(path: str, what: str) -> FileTooLargeError:
    return FileTooLargeError(
        path, f"the image has {what}", hint="make a smaller one, such as with a lower resolution"
    )
