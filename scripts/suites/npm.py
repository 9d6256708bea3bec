"""The conformance suite of MCP and the Node.js that it needs, brought by npm from a lock.

`conformance/package.json` says which; a newer one is written there and locked anew. The lock has
hashes and no addresses, so that npm asks whichever registry this machine uses. No script of a
package is run.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from .environments import CACHE
from .uv import SuiteError

WANTED = Path(__file__).resolve().parent / "conformance"
LOCK = WANTED / "package-lock.json"
HOME = CACHE / "conformance"
PROGRAM = "node_modules/@modelcontextprotocol/conformance/dist/index.js"

SECONDS = 300
PATIENCE = {
    "npm_config_fetch_retries": "8",
    "npm_config_fetch_retry_mintimeout": "1000",
    "npm_config_fetch_timeout": "60000",
}
QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error")

MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


def conformance() -> list[str]:
    """Have the suite, and return the beginning of its command line.

    Raises:
        SuiteError: It can't be installed.
    """
    stamp = HOME / "made"
    locked = LOCK.read_text("utf-8")
    if not stamp.is_file() or stamp.read_text("utf-8") != locked:
        HOME.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        for path in (WANTED / "package.json", LOCK):
            shutil.copy(path, HOME)
        _npm("ci", HOME)
        stamp.write_text(locked, "utf-8")
    machine = platform.machine()
    node = HOME / f"node_modules/node-linux-{MACHINES.get(machine, machine)}/bin/node"
    if not node.is_file():
        raise SuiteError(f"{WANTED / 'package.json'} has no Node.js for {machine}")
    return [str(node), str(HOME / PROGRAM)]


def lock_conformance() -> None:
    """Make the lock anew: the newest that the suite allows of what it needs.

    Raises:
        SuiteError: npm can't.
    """
    LOCK.unlink(missing_ok=True)
    _npm("install", WANTED, "--package-lock-only", "--omit-lockfile-registry-resolved")


def _npm(verb: str, where: Path, *options: str) -> None:
    command = ["npm", verb, *QUIET, *options]
    try:
        done = subprocess.run(
            command,
            cwd=where,
            env={**PATIENCE, **os.environ, "npm_config_cache": str(CACHE.parent / "npm")},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise SuiteError("there is no npm: install Node.js, of any version") from None
    except subprocess.TimeoutExpired:
        raise SuiteError(f"{' '.join(command)}: not done in {SECONDS} s") from None
    if done.returncode != 0:
        raise SuiteError(f"{' '.join(command)}\n{done.stderr.strip()[-2000:]}")
