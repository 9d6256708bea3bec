"""From a URL or settings to a store."""

from __future__ import annotations

import os

from ..errors import MissingDependencyError
from .config import LocalStoreConfig, StoreConfig, parse_store
from .local import LocalStore
from .store import ArtifactStore

__all__ = ("open_store",)


def open_store(where: str | os.PathLike[str] | StoreConfig) -> ArtifactStore:
    """Return a store, ready to use; no request is made yet.

    Args:
        where: A directory's path or `file:///` URL; `memory:` for one in this process that ends
            with it; `s3://bucket/prefix`, with credentials, region and endpoint from the `AWS_*`
            variables; or one of the configs.

    Raises:
        ConfigError: It names no store, or the directory can't be made.
        MissingDependencyError: It is not a directory, and the extra `storage` is not installed.
    """
    if isinstance(where, str):
        config = parse_store(where)
    elif isinstance(where, os.PathLike):
        config = LocalStoreConfig(where)
    else:
        config = where
    if isinstance(config, LocalStoreConfig):
        return LocalStore(config.directory)
    try:
        from ._objects import ObjectStore
    except ImportError as error:
        raise MissingDependencyError(
            f"this kind of store needs a package that is not installed: {error.name}",
            hint="pip install 'ringfence[storage]'",
        ) from None
    return ObjectStore(config)
