"""Settings from flags, `RINGFENCE_*` variables and a TOML file, in this order.

A setting has one name everywhere: `memory` in the file is `RINGFENCE_MEMORY` and `--memory`. The
file is the one that `RINGFENCE_CONFIG` names; else `./ringfence.toml`; else `ringfence/config.toml`
in `XDG_CONFIG_HOME` (`~/.config`). One file is read, not several. The one in the current
directory may have come with the very code that is to be jailed, so it can't choose what lies
outside of the jail: see `loading`.
"""

from __future__ import annotations

from .loading import PREFIX, load_settings
from .parsers import parse_mount, parse_seconds, parse_size
from .values import BACKEND_SETTINGS, Settings

__all__ = (
    "BACKEND_SETTINGS",
    "PREFIX",
    "Settings",
    "load_settings",
    "parse_mount",
    "parse_seconds",
    "parse_size",
)
