"""The `/etc` of a jail: a handful of the host's files without secrets, and made-up users.

It is put together once, as a directory in the state directory that every jail shows read-only:
each file shown by itself would cost every start a mount. Its name tells from what it was made, so
it is made anew when the host's files change.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
import tempfile

__all__ = ("make_etc",)

# What programs look for; nothing here holds a secret. Patterns below /etc.
_SHOWN = (
    "alternatives",
    "fonts",
    "ImageMagick*",
    "java-*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "os-release",
    "perl",
    "python3*",
    "R",
    "terminfo",
    "timezone",
)

_MADE = {
    "passwd": "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
    "sandbox:x:65534:65534:sandbox:/tmp/home:/bin/sh\n",
    "group": "root:x:0:\nsandbox:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "resolv.conf": "",
}


def make_etc(state_dir: str, source: str = "/etc") -> str:
    """Return the directory, below `state_dir`; it is made if it is not there yet."""
    found = sorted(path for pattern in _SHOWN for path in glob.glob(f"{source}/{pattern}"))
    made = f"{state_dir}/etc-{_fingerprint(found)}"
    if os.path.isdir(made):
        return made
    draft = tempfile.mkdtemp(prefix=".etc-", dir=state_dir)
    os.chmod(draft, 0o755)  # noqa: S103 - jails of any uid read it
    for path in found:
        _copy(path, f"{draft}/{os.path.basename(path)}")
    for name, text in _MADE.items():
        with open(f"{draft}/{name}", "w", encoding="ascii") as file:
            file.write(text)
    try:
        os.rename(draft, made)
    except OSError:  # another process was first
        shutil.rmtree(draft)
    return made


def _fingerprint(paths: list[str]) -> str:
    digest = hashlib.sha256(repr(sorted(_MADE.items())).encode())
    for path in paths:
        info = os.lstat(path)
        digest.update(f"{path} {info.st_mtime_ns} {info.st_size}\n".encode())
    return digest.hexdigest()[:16]


def _copy(path: str, target: str) -> None:
    """Copy what everybody may read, links as links."""
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.copytree(path, target, symlinks=True, ignore=_unreadable)
        elif os.path.islink(path) or os.stat(path).st_mode & 0o004:
            shutil.copy2(path, target, follow_symlinks=False)
    except (FileNotFoundError, shutil.Error):
        return  # it changed while it was copied; no program depends on one of these files


def _unreadable(directory: str, names: list[str]) -> list[str]:
    skipped = []
    for name in names:
        mode = os.lstat(f"{directory}/{name}").st_mode
        if not mode & 0o004:
            skipped.append(name)
    return skipped
