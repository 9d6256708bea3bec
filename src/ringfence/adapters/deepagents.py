"""A sandbox for deepagents: `create_deep_agent(model, backend=RingfenceBackend(sandbox))`.

Commands and the content of files go the sandbox's own ways. What deepagents builds on commands
(listing, searching, editing) takes a shell, coreutils, grep and python3 inside.
"""

from __future__ import annotations

from ._missing import missing

try:
    from deepagents.backends.protocol import (
        ExecuteResponse,
        FileDownloadResponse,
        FileUploadResponse,
    )
    from deepagents.backends.sandbox import BaseSandbox
except ModuleNotFoundError as error:
    raise missing("deepagents", error) from error


from ..errors import (
    CommandError,
    FileIsDirectoryError,
    FileKindError,
    FileMissingError,
    FileNotDirectoryError,
    FilePermissionError,
    PathError,
    WorkspaceError,
)
from ..models import TIMEOUT_MARKER, Chunk, Result, shell
from ._files import Files
from ._reach import AnySandbox, Reach
from ._words import cut_note, with_note

__all__ = ("RingfenceBackend",)

MAX_FILE_BYTES = 64 << 20
"""What of a file is brought out at most; a larger one is an error with its size."""

_ERRORS = (
    (FileMissingError, "file_not_found"),
    (FilePermissionError, "permission_denied"),
    (FileIsDirectoryError, "is_directory"),
    ((PathError, FileKindError, FileNotDirectoryError, CommandError), "invalid_path"),
)


class RingfenceBackend(BaseSandbox):
    """A ringfence sandbox or session, as deepagents sees one.

    It may be called from any thread and event loop. The blocking forms need a sandbox of
    `ringfence.sync`, or that the event loop of the sandbox runs in another thread.

    Args:
        sandbox: Where to run. It is not closed with the agent.

    Raises:
        ConfigError: It is no sandbox.
    """

    def __init__(self, sandbox: AnySandbox) -> None:
        self._reach = Reach(sandbox)
        self._inner = self._reach.sandbox
        self._files = Files(self._inner)

    @property
    def id(self) -> str:
        """The sandbox's name; a session has another one for each sandbox that it makes."""
        return self._inner.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a script and return what it wrote, both streams in the order of arrival.

        Args:
            command: For `bash -c`, or `sh -c` where there is no bash.
            timeout: Seconds, clamped to the sandbox's maximum. None or 0 takes its default.
        """
        return self._reach.call(self._execute, command, timeout)

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,
    ) -> ExecuteResponse:
        return await self._reach.run(self._execute, command, timeout)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files by their absolute paths; what is wrong with one is in its response."""
        return self._reach.call(self._upload, files)

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return await self._reach.run(self._upload, files)

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files by their absolute paths; what is wrong with one is in its response."""
        return self._reach.call(self._download, paths)

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return await self._reach.run(self._download, paths)

    async def _execute(self, command: str, timeout: int | None) -> ExecuteResponse:
        pieces: list[str] = []

        def arrive(chunk: Chunk) -> None:
            pieces.append(chunk.text)

        result = await self._inner.exec(shell(command), timeout=timeout or None, on_output=arrive)
        return ExecuteResponse(
            output=_with_notes("".join(pieces), result),
            exit_code=result.exit_code,
            truncated=result.stdout_truncated or result.stderr_truncated,
        )

    async def _upload(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        found = []
        for path, data in files:
            try:
                await self._files.write(_absolute(path), data)
                found.append(FileUploadResponse(path=path))
            except (WorkspaceError, CommandError) as error:
                found.append(FileUploadResponse(path=path, error=_code(error)))
        return found

    async def _download(self, paths: list[str]) -> list[FileDownloadResponse]:
        found = []
        for path in paths:
            try:
                data = await self._files.read(_absolute(path), MAX_FILE_BYTES)
                found.append(FileDownloadResponse(path=path, content=data))
            except (WorkspaceError, CommandError) as error:
                found.append(FileDownloadResponse(path=path, error=_code(error)))
        return found


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise PathError(path, "is not absolute")
    return path


def _code(error: WorkspaceError | CommandError) -> str:
    """Return deepagents' name of an error, or what it says if there is none."""
    return next((code for kinds, code in _ERRORS if isinstance(error, kinds)), str(error))


def _with_notes(text: str, result: Result) -> str:
    text = with_note(text, cut_note(result))
    return with_note(text, TIMEOUT_MARKER) if result.timed_out else text
