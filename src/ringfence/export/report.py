"""What an export may bring out, what it tells on its way, and what it has done."""

from __future__ import annotations

import mimetypes
import os
import re
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..errors import SandboxError, StoreError, WorkspaceError

__all__ = (
    "MAX_FILE_BYTES",
    "ExportEvent",
    "ExportLimits",
    "ExportReport",
    "Exported",
    "Skipped",
    "Tally",
    "media_type",
    "readable",
    "reason_of",
    "unreadable",
)

MAX_FILE_BYTES = 52_428_800
"""A file may have exactly so many bytes (50 MiB), and not one more."""

_ESCAPED = re.compile(r"\\(?:\\|x([0-9a-f]{2}))")
_OCTETS = "application/octet-stream"
_TYPES = mimetypes.MimeTypes()  # Python's own table; the machine's would differ


@dataclass(frozen=True)
class ExportLimits:
    """How much an export may bring out.

    Attributes:
        file_bytes: Of each file; a larger one is skipped whole.
        total_bytes: Of all files; one that does not fit any more is skipped, smaller ones go on.
        entries: Files, directories and the rest that are looked at.
        listed: Skipped entries that the report names; the others it counts.
    """

    file_bytes: int = MAX_FILE_BYTES
    total_bytes: int = 1 << 30
    entries: int = 10_000
    listed: int = 1000


@dataclass(frozen=True)
class Exported:
    """A file that was copied.

    Attributes:
        path: Below the workspace; bytes that are not UTF-8 as surrogate escapes.
        size: Bytes.
        sha256: Of its content, in hexadecimal.
        mode: Its permission bits in the workspace.
        mtime: When it was changed there, in seconds since the epoch.
        media_type: As its name says; a program in the sandbox chose that name.
        key: Of the object in the store; empty in a directory.
        unchanged: Whether the store had it already.
    """

    path: str
    size: int
    sha256: str
    mode: int
    mtime: float
    media_type: str
    key: str = ""
    unchanged: bool = False


@dataclass(frozen=True)
class Skipped:
    """Something that was not copied.

    Attributes:
        path: Below the workspace, as `Exported.path`.
        reason: Why, in a few words.
    """

    path: str
    reason: str


@dataclass(frozen=True)
class ExportReport:
    """What an export did.

    Attributes:
        target: The directory, absolute, or the store's name.
        files: What was copied, by the bytes of the paths.
        skipped: What was not; at most `ExportLimits.listed` of them.
        skipped_count: How many were not, named or not.
        is_complete: Whether the walk saw everything; False if there was more than `entries`.
        manifest: The key of the manifest in the store; empty in a directory.
    """

    target: str
    files: tuple[Exported, ...]
    skipped: tuple[Skipped, ...]
    skipped_count: int
    is_complete: bool
    manifest: str = ""

    @property
    def total_bytes(self) -> int:
        """Bytes of all files that were copied."""
        return sum(file.size for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON types, with names made readable (see `readable`)."""
        return {
            "target": readable(self.target),
            "files": [{**asdict(file), "path": readable(file.path)} for file in self.files],
            "total_bytes": self.total_bytes,
            "skipped": [{**asdict(item), "path": readable(item.path)} for item in self.skipped],
            "skipped_count": self.skipped_count,
            "is_complete": self.is_complete,
            "manifest": self.manifest,
        }


@dataclass(frozen=True)
class ExportEvent:
    """What has become of one entry of the workspace.

    Attributes:
        path: Below the workspace.
        outcome: `exported`, `unchanged` (the store had it already) or `skipped`.
        size: Bytes; 0 of what was skipped.
        reason: Why it was skipped, else empty.
        files: How many files are done, this one too.
        total_bytes: Bytes of the files that are done.
    """

    path: str
    outcome: Literal["exported", "unchanged", "skipped"]
    size: int
    reason: str
    files: int
    total_bytes: int


@dataclass
class Tally:
    """What has been done so far, of which a report is made."""

    limits: ExportLimits
    files: list[Exported] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    skipped_count: int = 0
    total_bytes: int = 0

    def add(self, file: Exported) -> ExportEvent:
        """Note a file that is done."""
        self.files.append(file)
        self.total_bytes += file.size
        outcome: Literal["exported", "unchanged"] = "unchanged" if file.unchanged else "exported"
        return ExportEvent(file.path, outcome, file.size, "", len(self.files), self.total_bytes)

    def skip(self, path: bytes, reason: str) -> ExportEvent:
        """Note what is left out."""
        shown = os.fsdecode(path) or "."
        self.skipped_count += 1
        if len(self.skipped) < self.limits.listed:
            self.skipped.append(Skipped(shown, reason))
        return ExportEvent(shown, "skipped", 0, reason, len(self.files), self.total_bytes)

    def report(self, target: str, *, is_complete: bool, manifest: str = "") -> ExportReport:
        """Return the report, sorted: files are done in no order."""
        self.files.sort(key=lambda file: os.fsencode(file.path))
        self.skipped.sort(key=lambda item: os.fsencode(item.path))
        return ExportReport(
            target,
            tuple(self.files),
            tuple(self.skipped),
            self.skipped_count,
            is_complete,
            manifest,
        )


def readable(name: str) -> str:
    r"""Return a name as text that is safe to show and can be turned back.

    A backslash is doubled; what is not printable, or is a byte that is not UTF-8, becomes `\xhh`.
    """
    shown = []
    for character in name:
        if character == "\\":
            shown.append("\\\\")
        elif character.isprintable():
            shown.append(character)
        else:
            shown += [f"\\x{byte:02x}" for byte in os.fsencode(character)]
    return "".join(shown)


def unreadable(text: str) -> str:
    """Return the name that `readable` has made a text of."""

    def character(found: re.Match[str]) -> bytes:
        return bytes([int(found[1], 16)]) if found[1] else b"\\"

    out, end = b"", 0
    for found in _ESCAPED.finditer(text):
        out += os.fsencode(text[end : found.start()]) + character(found)
        end = found.end()
    return os.fsdecode(out + os.fsencode(text[end:]))


def media_type(path: bytes) -> str:
    """Return what a file is, by its name and the same on every machine."""
    guessed, encoding = _TYPES.guess_type(os.fsdecode(path).rpartition("/")[2])
    return guessed if guessed and not encoding else _OCTETS


def reason_of(error: SandboxError) -> str:
    """Return an error's text without the path or key, which stands beside it."""
    if isinstance(error, WorkspaceError):
        return error.message.removeprefix(f"{error.path!r}: ")
    if isinstance(error, StoreError):
        return error.message.removeprefix(f"{error.key!r}: ")
    return error.message
