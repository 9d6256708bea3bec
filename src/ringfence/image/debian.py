"""A root file system of Debian packages alone, by `mmdebstrap`, as a tar archive.

It runs in mount and pid namespaces of its own: when its first process is killed all that it had
started is dead and its mounts are gone, so what it leaves can be removed without a look.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, Process

from ..errors import BackendUnavailableError, ImageError, MissingDependencyError
from . import recipe
from .apt_sources import source_files
from .scratch import scratch

__all__ = ("bootstrap", "bootstrap_argv", "check", "sandbox_argv")

_UNWANTED = (
    *("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*"),
    *("/usr/share/lintian/*", "/usr/share/bug/*"),
)
_WANTED = ("/usr/share/doc/*/copyright",)  # licences are to travel with what they are about

_CONTAINED = (
    # It ends with us, however we end,
    *("setpriv", "--pdeathsig", "KILL", "--"),
    # and takes all that it has started with it.
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--"),
)
_LINES_KEPT = 8
_MAX_LINE_BYTES = 1 << 16


def check() -> None:
    """Refuse if this way can't work here.

    Raises:
        BackendUnavailableError: Not Linux, or not root.
        MissingDependencyError: There is no mmdebstrap.
    """
    if not sys.platform.startswith("linux"):
        raise BackendUnavailableError(
            "an image of Debian packages can be made on Linux only",
            hint="use --way dockerfile, which the engine carries out",
        )
    if os.geteuid() != 0:
        raise BackendUnavailableError(
            "mmdebstrap needs root, to make files of other users",
            hint="run it as root, or use --way dockerfile",
        )
    if not shutil.which("mmdebstrap"):
        raise MissingDependencyError(
            "there is no mmdebstrap here",
            hint="apt-get install mmdebstrap (Debian, Ubuntu), or use --way dockerfile",
        )


def bootstrap_argv(
    *,
    variant: str,
    packages: Sequence[str],
    hooks: Sequence[str],
    sources: Sequence[Path],
    target: Path,
) -> list[str]:
    """Return the command that writes a tar archive of packages and those that they depend on.

    Args:
        variant: What is there besides: `essential` for a working Debian, `extract` for nothing,
            and then nothing is configured either.
        packages: Names of packages.
        hooks: Shell commands, run on the host as root when all is there; `$1` is the root.
        sources: Files of apt sources. None: mmdebstrap's own idea of Debian's mirror.
        target: The file for the archive.
    """
    # Customizing comes after installing, which there is none of where packages are only unpacked.
    hook = "--extract-hook" if variant == "extract" else "--customize-hook"
    return [
        *("mmdebstrap", "--mode=root", f"--variant={variant}", "--format=tar"),
        "--skip=cleanup/apt,cleanup/mmdebstrap",  # a hook does, and it fails over what is gone
        f"--include={','.join(packages)}",
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _UNWANTED),
        *(f"--dpkgopt=path-include={pattern}" for pattern in _WANTED),
        *(f"{hook}={command}" for command in hooks),
        # This machine's mirror, its key and how it is reached are nothing to an image.
        f'{hook}=rm -rf "$1"/etc/apt "$1"/var/lib/apt "$1"/var/cache/apt',
        f'{hook}=rm -f "$1"/etc/hostname "$1"/etc/resolv.conf',
        *(recipe.SUITE, str(target), *map(str, sources)),
    ]


def sandbox_argv(setup: Path, target: Path, *, with_data: bool) -> list[str]:
    """Return the command that writes the image's files to an archive."""
    return bootstrap_argv(
        variant="essential",
        packages=recipe.packages(with_data=with_data),
        hooks=[
            f'cp "{setup}" "$1"/setup',
            'chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 /setup',
            'rm "$1"/setup',
        ],
        sources=source_files(recipe.SUITE),
        target=target,
    )


async def bootstrap(target: Path, *, with_data: bool, on_line: Callable[[str], None]) -> None:
    """Write the image's files to a tar archive.

    Args:
        target: The archive.
        with_data: Put the data packages in.
        on_line: Is told what is being done, line by line.

    Raises:
        ImageError: mmdebstrap failed; with the end of what it said.
        BackendUnavailableError: As `check`.
    """
    check()
    lines: list[str] = []
    with scratch(in_memory=True) as place:
        place.chmod(0o755)  # apt downloads as a user of its own
        argv = sandbox_argv(recipe.write_setup(place), target, with_data=with_data)
        process = await anyio.open_process(
            [*_CONTAINED, *argv],
            env={**os.environ, "TMPDIR": str(place), "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            assert process.stdout
            async for line in _lines(process.stdout):
                lines.append(line)
                on_line(line)
            code = await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
    if code:
        end = "\n".join(lines[-_LINES_KEPT:])
        raise ImageError(f"mmdebstrap failed with exit code {code}:\n{end}")


async def _lines(stream: ByteReceiveStream) -> AsyncIterator[str]:
    """Yield lines; what is drawn over, with a carriage return, counts as one each time."""
    kept = b""
    async for chunk in stream:
        *whole, kept = (kept + chunk).replace(b"\r", b"\n").split(b"\n")
        kept = kept[-_MAX_LINE_BYTES:]
        for line in whole:
            if text := line.decode("utf-8", "replace").strip():
                yield text
    if text := kept.decode("utf-8", "replace").strip():
        yield text


async def _end(process: Process) -> None:
    """Kill it, if it has not ended, and all that it had started."""
    if process.returncode is None:
        process.kill()
    await process.aclose()
