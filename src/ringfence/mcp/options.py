"""What a server is told when it is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import ConfigError
from ..models import SandboxSpec

__all__ = ("McpOptions",)

_MIB = 1 << 20


@dataclass(frozen=True)
class McpOptions:
    """How a server serves.

    Attributes:
        spec: What each client's sandbox is made with, beyond the policy's profile.
        export_dir: The directory below which workspaces are exported; without one there is no
            tool for it.
        idle_timeout: Seconds after which a client's session that is not used ends.
        gone_timeout: Seconds that a session waits for a client that was cut off in a call.
        max_sessions: How many sessions of all clients together may have a sandbox at a time.
        max_contexts: How many code contexts one client may have at a time.
        python: The sandbox's interpreter for code contexts, a name or a path; it has `ipykernel`.
        calls_at_once: How many calls run at a time.
        calls_waiting: How many more wait for one of these to end; what comes then is refused.
        image_bytes: The largest image that is returned.
        images_bytes: Bytes of all the images that one call returns.
        image_pixels: The most pixels of one image, which a small file can claim to have.
    """

    spec: SandboxSpec = field(default_factory=SandboxSpec)
    export_dir: str | None = None
    idle_timeout: float = 600.0
    gone_timeout: float = 30.0
    max_sessions: int = 64
    max_contexts: int = 8
    python: str = "python3"
    calls_at_once: int = 32
    calls_waiting: int = 256
    image_bytes: int = 5 * _MIB
    images_bytes: int = 10 * _MIB
    image_pixels: int = 50_000_000

    def __post_init__(self) -> None:
        for name in (
            "idle_timeout",
            "gone_timeout",
            "max_sessions",
            "max_contexts",
            "calls_at_once",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above zero, not {getattr(self, name)!r:.80}")
