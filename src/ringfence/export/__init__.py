"""What leaves a sandbox: its workspace, into a directory, a store or an archive.

report = await export_workspace(sandbox, store, prefix=key_prefix("acme", "run-7"))
async for part in archive_workspace(sandbox, "zip"): ...
"""

from .archive import Archive, archive_workspace
from .exporting import export_workspace
from .manifest import read_manifest
from .report import (
    MAX_FILE_BYTES,
    Exported,
    ExportEvent,
    ExportLimits,
    ExportReport,
    Skipped,
    readable,
    unreadable,
)
from .room import Room

__all__ = (
    "MAX_FILE_BYTES",
    "Archive",
    "ExportEvent",
    "ExportLimits",
    "ExportReport",
    "Exported",
    "Room",
    "Skipped",
    "archive_workspace",
    "export_workspace",
    "read_manifest",
    "readable",
    "unreadable",
)
