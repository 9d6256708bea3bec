"""What each tool does; the arguments have been checked against its schema."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .. import export
from ..errors import ConfigError, ToolError
from ..export import readable
from ..models import FileKind, Result
from ..tools import background, files
from ..tools.functions import check_language, code_command
from ..tools.text import MAX_TEXT, command_text, cut
from .answers import Answer, before_the_end
from .calls import Call
from .in_context import run_in_context
from .pictures import bring_images, image_of

__all__ = (
    "Handler",
    "end_session",
    "export_workspace",
    "list_commands",
    "list_files",
    "read_file",
    "read_output",
    "run_code",
    "run_command",
    "start_command",
    "stop_command",
    "write_file",
    "write_input",
)

Handler = Callable[..., Awaitable[Answer]]

_NAMED = 100


async def run_command(
    call: Call, command: str, timeout: float | None = None, images: Sequence[str] | None = None
) -> Answer:
    """Run a shell command."""
    return await _ran(call, await call.run(code_command("bash", command), timeout), images)


async def run_code(
    call: Call,
    language: str,
    code: str,
    timeout: float | None = None,
    images: Sequence[str] | None = None,
    context: str | None = None,
) -> Answer:
    """Run a program given as text, in a process of its own, or in a context that is kept."""
    if context is not None:
        return await run_in_context(call, context, language, code, timeout, images)
    result = await call.run(code_command(language, code), timeout)
    await check_language(call.session, language, result)
    return await _ran(call, result, images)


async def _ran(call: Call, result: Result, images: Sequence[str] | None) -> Answer:
    found = await call.new_images.written()
    pictures, error, told = found.pictures, None, found.told
    if images is not None:
        (pictures, error), told = await bring_images(call.session, call.options, images), ""
    stdout, stderr = cut(result.stdout_text, MAX_TEXT), cut(result.stderr_text, MAX_TEXT)
    data = {
        "stdout": stdout,
        "stderr": stderr,
        "exit_code": result.exit_code,
        "exit_reason": result.exit_reason.value,
        "stdout_cut": result.stdout_truncated or stdout != result.stdout_text,
        "stderr_cut": result.stderr_truncated or stderr != result.stderr_text,
        "stdout_bytes": result.stdout_bytes,
        "stderr_bytes": result.stderr_bytes,
        "duration_s": round(result.duration_s, 6),
    }
    return Answer(before_the_end(command_text(result), told), data, pictures, error)


async def write_file(call: Call, path: str, content: str, append: bool = False) -> Answer:
    """Write a text file."""
    text = await files.write_file(call.session, path, content, append)
    return Answer(text, {"path": path, "bytes": len(content.encode()), "appended": append})


async def read_file(call: Call, path: str, offset: int = 0, limit: int = MAX_TEXT) -> Answer:
    """Read a text file, or an image."""
    if not offset and (found := await image_of(call.session, call.options, path)):
        picture, image = found
        size = len(picture.data)
        about = f"[{image.media_type}, {size} bytes, {image.width} x {image.height}]"
        data = {"path": path, "media_type": image.media_type, "size": size}
        return Answer(about, data | {"width": image.width, "height": image.height}, (picture,))
    part = await files.read_part(call.session, path, offset, limit)
    data = {
        "path": path,
        "media_type": "text/plain",
        "text": part.text,
        "offset": part.offset,
        "end": part.end,
        "is_last": part.is_last,
    }
    return Answer(part.told(), data if part.size is None else data | {"size": part.size})


async def list_files(
    call: Call, path: str = ".", recursive: bool = True, limit: int = files.DEFAULT_ENTRIES
) -> Answer:
    """List the names below a directory."""
    found = await files.listing(call.session, path, recursive, limit)
    entries = [
        {"path": name, "kind": entry.kind.value}
        | ({"size": entry.size} if entry.kind is FileKind.FILE else {})
        for name, entry in found.entries
    ]
    data = {"entries": entries, "left_out": found.left_out, "unseen_directories": found.unseen}
    return Answer(found.told(), data)


async def start_command(
    call: Call, command: str, terminal: bool = False, wait: float = 1.0
) -> Answer:
    """Start a background command."""
    return _news(await background.start(call.session, command, terminal, wait))


async def read_output(
    call: Call,
    command_id: str,
    offset: int | None = None,
    wait: float = 0.0,
    limit: int = MAX_TEXT,
) -> Answer:
    """Read what a background command has written."""
    return _news(await background.hear(call.session, command_id, offset, wait, limit))


async def write_input(
    call: Call, command_id: str, text: str = "", end: bool = False, wait: float = 1.0
) -> Answer:
    """Send text to a background command."""
    return _news(await background.tell(call.session, command_id, text, end, wait))


async def stop_command(call: Call, command_id: str, interrupt: bool = False) -> Answer:
    """End a background command."""
    return _news(await background.stop(call.session, command_id, interrupt))


def _news(news: background.CommandNews) -> Answer:
    known = news.command
    data: dict[str, Any] = {
        "command_id": known.id,
        "running": known.running,
        "output": news.text,
        "offset": news.part.offset,
        "next_offset": news.end,
        "total_bytes": news.part.total,
    }
    if known.exit is not None:
        data |= {"exit_code": known.exit.code, "exit_reason": known.exit.reason.value}
    return Answer(news.told(), data)


async def list_commands(call: Call) -> Answer:
    """List the background commands."""
    commands = [
        {
            "command_id": one.id,
            "command": one.command,
            "running": one.running,
            "age_s": round(one.age_s, 3),
            "total_bytes": one.output_bytes,
        }
        | ({} if one.exit is None else {"exit_code": one.exit.code})
        for one in await call.session.background.commands()
    ]
    return Answer(await background.list_commands(call.session), {"commands": commands})


async def export_workspace(call: Call) -> Answer:
    """Copy the workspace's files below the directory that the server was given."""
    above = call.options.export_dir
    if above is None:
        raise ToolError("this server exports nothing")
    target = os.path.join(above, call.session.execution_id)
    try:
        report = await export.export_workspace(call.session, target)
    except ConfigError as error:
        raise ToolError(f"nothing was exported: {error.message}") from error
    told = [
        f"[{len(report.files)} files, {report.total_bytes} bytes, exported to {readable(target)}]"
    ]
    skipped = [
        {"path": readable(item.path), "reason": item.reason} for item in report.skipped[:_NAMED]
    ]
    told += [f"not exported: {item['path']}: {item['reason']}" for item in skipped]
    if report.skipped_count > len(skipped):
        told.append(f"not exported: {report.skipped_count - len(skipped)} more")
    data = {
        "target": readable(target),
        "files": [
            {"path": readable(file.path), "size": file.size} for file in report.files[:_NAMED]
        ],
        "file_count": len(report.files),
        "total_bytes": report.total_bytes,
        "skipped": skipped,
        "skipped_count": report.skipped_count,
        "is_complete": report.is_complete,
    }
    return Answer("\n".join(told), data)


async def end_session(call: Call) -> Answer:
    """End the session; the server forgets one that is closed."""
    await call.session.aclose()
    return Answer("[the session has ended; its files are gone]", {"ended": True})
