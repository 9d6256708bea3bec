"""Artifact stores: objects under keys, in a directory, at an S3 service, or in memory.

store = open_store("s3://artifacts")
await store.put("tenant/execution/report.csv", data)
"""

from .config import LocalStoreConfig, MemoryStoreConfig, S3StoreConfig, StoreConfig
from .keys import check_key, escape_name, escape_path, key_prefix, unescape_name, unescape_path
from .local import LocalStore
from .opening import open_store
from .store import ArtifactStore, Content, StoredObject

__all__ = (
    "ArtifactStore",
    "Content",
    "LocalStore",
    "LocalStoreConfig",
    "MemoryStoreConfig",
    "S3StoreConfig",
    "StoreConfig",
    "StoredObject",
    "check_key",
    "escape_name",
    "escape_path",
    "key_prefix",
    "open_store",
    "unescape_name",
    "unescape_path",
)
