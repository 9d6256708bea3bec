"""What is said to the engine about what lies beside a sandbox's container: pure functions."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from typing import Any

from ._docker_body import WARDEN_DIR, shown_mount

__all__ = ("fill_body", "network_body", "warden_tar")


def fill_body(
    image: str,
    volume: str,
    labels: Mapping[str, str],
    target: str = WARDEN_DIR,
    *,
    hosts: str = "",
) -> dict[str, Any]:
    """Return the request for a container through which a volume is filled; it never starts."""
    return {
        "Image": image,
        "Entrypoint": ["/nothing"],
        "Cmd": [],
        "NetworkDisabled": True,
        "Labels": dict(labels),
        "HostConfig": {
            "NetworkMode": "none",
            "LogConfig": {"Type": "none", "Config": {}},
            "Mounts": [
                {
                    "Type": "volume",
                    "Source": volume,
                    "Target": target,
                    "VolumeOptions": {"NoCopy": True},
                },
                *((shown_mount(hosts, "/etc/hosts"),) if hosts else ()),
            ],
        },
    }


def network_body(name: str, bridge: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the request for a network of one container, whose bridge has a name of our own."""
    return {
        "Name": name,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Internal": False,
        "Attachable": False,
        "EnableIPv6": False,  # the guard is of IPv4's packets
        "Options": {
            "com.docker.network.bridge.name": bridge,
            "com.docker.network.bridge.enable_icc": "false",
        },
        "Labels": dict(labels),
    }


def warden_tar(binary: bytes) -> bytes:
    """Return the archive that brings the warden into its volume; the same for the same binary."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        item = tarfile.TarInfo("warden")
        item.size = len(binary)
        item.mode = 0o555
        archive.addfile(item, io.BytesIO(binary))
    return buffer.getvalue()
