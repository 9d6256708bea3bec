"""What runs the real command as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import ringfence

BACKENDS = ("bubblewrap", "process") if sys.platform == "linux" else ("process",)


SOURCE = str(Path(ringfence.__file__).parent.parent)
"""Where the package is, for a process that starts in another directory."""


@dataclass(frozen=True)
class Done:
    """How the command ended."""

    code: int
    out: bytes
    err: str

    @property
    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)


@dataclass(frozen=True)
class Cli:
    """The command, in a directory and with settings of the test's own."""

    directory: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> list[str]:
        return [sys.executable, "-m", "ringfence"]

    @property
    def environ(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if name == "RINGFENCE_STATE_DIR"
            or not name.startswith(("RINGFENCE_", "VIRTUAL_ENV", "CONDA_", "XDG_CONFIG"))
        }
        # A leak that Python finds would be a line on stderr, which the tests compare.
        strict = {"PYTHONPATH": SOURCE, "PYTHONWARNINGS": "always::ResourceWarning"}
        return {**kept, **strict, "HOME": str(self.directory / "home"), **self.env}

    def __call__(self, *args: str | bytes, stdin: bytes = b"", **env: str) -> Done:
        done = subprocess.run(
            [*self.argv, *args],
            cwd=self.directory,
            env={**self.environ, **env},
            input=stdin,
            capture_output=True,
            timeout=50,
        )
        return Done(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @contextmanager
    def started(self, *args: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Run it beside the test; it is killed if the test leaves it behind."""
        pipe = subprocess.PIPE
        options = {"stdin": pipe, "stdout": pipe, "stderr": pipe, **options}
        with subprocess.Popen(
            [*self.argv, *args], cwd=self.directory, env=self.environ, **options
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
