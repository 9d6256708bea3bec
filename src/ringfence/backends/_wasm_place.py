"""Where the files of a WASM sandbox are on the host, and what its programs call them."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass

from ..errors import ConfigError
from ..models import Mount

__all__ = ("Place", "make_place", "require_directory")

_WORKSPACE = "/workspace"

_ENV = (
    ("HOME", "/home"),
    ("TMPDIR", "/tmp"),  # noqa: S108 - inside, where it is private
    ("XDG_CACHE_HOME", "/home/.cache"),
    ("MPLCONFIGDIR", "/home/.cache/matplotlib"),
)


@dataclass(frozen=True)
class Place:
    """Where a sandbox's files are.

    Attributes:
        root: The host's directory that is the workspace; None: there is none.
        inside: What programs call it.
        scratch: A private directory that is removed at the end; None: nothing is.
        env: Variables that every program gets.
        extra: Directories of `scratch` that are shown as well, with their names inside.
        owns_spares: Whether the interpreters that have been started end with the sandbox.
    """

    root: str | None = None
    inside: str = "/"
    scratch: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    owns_spares: bool = False

    def dirs(self) -> tuple[tuple[str, str, bool], ...]:
        """Return all of them as a program whose cwd is the workspace sees them."""
        if self.root is None:
            return ()
        names = ("/",) if self.inside == "/" else ("/", self.inside)
        shown = tuple((self.root, name, True) for name in names)
        return shown + tuple((host, inside, True) for host, inside in self.extra)


def make_place(sandbox_id: str, is_interpreter: bool) -> Place:
    """Make a private workspace; for an interpreter also the places that its programs expect."""
    scratch = os.path.realpath(tempfile.mkdtemp(prefix=f"ringfence-{sandbox_id}-"))
    root = os.path.join(scratch, "workspace")
    os.mkdir(root, 0o700)
    if not is_interpreter:
        return Place(root, _WORKSPACE, scratch)
    for name in ("home", "tmp"):
        os.mkdir(os.path.join(scratch, name), 0o700)
    shown = tuple((os.path.join(scratch, name), f"/{name}") for name in ("home", "tmp"))
    return Place(root, _WORKSPACE, scratch, _ENV, shown, owns_spares=True)


def require_directory(mount: Mount) -> None:
    """Refuse a mount that is no directory, for WASI shows nothing else.

    Raises:
        ConfigError: It is none.
    """
    if not os.path.isdir(mount.source):
        raise ConfigError(
            f"the mount {mount.source!r} is not a directory, which is all that WASI can show",
            backend="wasm",
            hint="mount the directory that the file is in",
        )
