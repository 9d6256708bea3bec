"""Settings of stores, checked when they are made."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from ..errors import ConfigError, ObjectKeyError
from .keys import check_key

__all__ = ("LocalStoreConfig", "MemoryStoreConfig", "S3StoreConfig", "StoreConfig", "parse_store")

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ENDPOINT = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9._/-]*)?")


@dataclass(frozen=True)
class LocalStoreConfig:
    """A directory of this machine.

    Attributes:
        directory: Made with mode 0700 if it is not there.
    """

    directory: str | os.PathLike[str]

    def __post_init__(self) -> None:
        if not os.fspath(self.directory) or "\0" in os.fspath(self.directory):
            raise ConfigError(f"{os.fspath(self.directory)!r} is no directory for a store")


@dataclass(frozen=True)
class MemoryStoreConfig:
    """This process's memory, for tests: each store of it is a new and empty one."""


@dataclass(frozen=True)
class S3StoreConfig:
    """S3, or a service that speaks its protocol.

    What is not given is taken from where every S3 client looks: `AWS_ACCESS_KEY_ID`,
    `AWS_SECRET_ACCESS_KEY`, `AWS_REGION`, `AWS_ENDPOINT`, or the machine's own role.

    Attributes:
        bucket: It has to be there.
        prefix: What all keys are below, in the bucket.
        endpoint: `https://host`, or `http://host:port` for a service on a network that you trust;
            empty for Amazon's.
        region: Empty for the usual one.
        access_key_id, secret_access_key, session_token: The credentials; never shown.
        timeout: Seconds for one request, and for all its tries together.
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if not _BUCKET.fullmatch(self.bucket):
            raise ConfigError(f"{self.bucket!r} is no name of a bucket")
        if self.endpoint and not _ENDPOINT.fullmatch(self.endpoint):
            # Not shown: it may have a password in it.
            raise ConfigError("the endpoint is no http:// or https:// URL of a host alone")
        if bool(self.access_key_id) != bool(self.secret_access_key):
            raise ConfigError("access_key_id and secret_access_key are given both or not at all")
        if not 0 < self.timeout <= 3600:
            raise ConfigError(f"timeout is 0 to 3600 seconds, not {self.timeout:g}")
        if self.prefix:
            try:
                check_key(self.prefix)
            except ObjectKeyError as error:
                raise ConfigError(f"the prefix is none: {error.message}") from None

    @property
    def name(self) -> str:
        """Where it is, without credentials."""
        place = f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
        return f"{place} at {self.endpoint}" if self.endpoint else place


StoreConfig: TypeAlias = LocalStoreConfig | MemoryStoreConfig | S3StoreConfig


def parse_store(text: str) -> StoreConfig:
    """Return the settings that a URL or a path stands for: see `open_store`.

    Raises:
        ConfigError: It stands for none, or has credentials in it.
    """
    scheme = text.partition(":")[0] if re.match(r"[a-z][a-z0-9+]+:", text) else ""
    if not scheme:
        return LocalStoreConfig(text)
    if text in ("memory:", "memory://"):
        return MemoryStoreConfig()
    parts = urlsplit(text)
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(  # not shown: it may be a secret
            "a store's URL has no user, query or fragment",
            hint="give credentials by an S3StoreConfig or by variables",
        )
    if scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return LocalStoreConfig(Path(unquote(parts.path)))
    if scheme == "s3":
        return S3StoreConfig(parts.netloc, parts.path.strip("/"))
    raise ConfigError(
        f"{scheme}: is no kind of store", hint="a path, file:///..., memory: or s3://bucket/prefix"
    )
