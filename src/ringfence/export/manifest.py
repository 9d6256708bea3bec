"""The list of an export's files, kept beside them; written last, so what it lists is there."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from ..errors import StoreError
from ..storage.keys import check_key, unescape_path
from ..storage.store import ArtifactStore
from .report import Exported, ExportReport, Skipped, unreadable

__all__ = ("FILES", "MANIFEST", "manifest_of", "read_manifest")

FILES = "files"
"""The part of a key, after the prefix, that all files are below."""

MANIFEST = "manifest.json"
"""The part of its key after the prefix."""

_VERSION = 1
_MAX_BYTES = 64 << 20
_LEFT_OUT = "unchanged"  # of the run that wrote it, not of the file
_FIELDS = {field.name for field in fields(Exported)} - {_LEFT_OUT}


def manifest_of(report: ExportReport) -> bytes:
    """Return a report as a manifest: JSON, with names as `readable` writes them."""
    content = {"version": _VERSION, **report.to_dict()}
    for file in content["files"]:
        del file[_LEFT_OUT]
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


async def read_manifest(store: ArtifactStore, prefix: str) -> ExportReport:
    """Return what an export has put below a prefix.

    Raises:
        ObjectMissingError: There is no manifest: nothing was exported there, or not to the end.
        StoreError: It is larger than 64 MiB, or is none.
    """
    key = check_key(f"{prefix}/{MANIFEST}")
    data = await store.read(key, max_bytes=_MAX_BYTES)
    try:
        return _parsed(json.loads(data), f"{prefix}/{FILES}/")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoreError(f"is no manifest: {type(error).__name__}", key=key) from None


def _parsed(content: Any, above: str) -> ExportReport:
    if content["version"] != _VERSION:
        raise ValueError("of another version")
    files = []
    for item in content["files"]:
        file = Exported(**{name: item[name] for name in _FIELDS})
        file = Exported(**{**vars(file), "path": unreadable(file.path)})
        # Whoever can write the manifest shall not make its reader fetch anything else.
        if not file.key.startswith(above) or _differs(file, above):
            raise ValueError("a key of another file")
        files.append(file)
    return ExportReport(
        unreadable(content["target"]),
        tuple(files),
        tuple(Skipped(unreadable(item["path"]), item["reason"]) for item in content["skipped"]),
        int(content["skipped_count"]),
        bool(content["is_complete"]),
        str(content["manifest"]),
    )


def _differs(file: Exported, above: str) -> bool:
    return unescape_path(file.key.removeprefix(above)) != file.path.encode(
        "utf-8", "surrogateescape"
    )
