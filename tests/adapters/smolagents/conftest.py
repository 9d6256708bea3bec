"""A sandbox with a kernel on each backend, as smolagents' executor takes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from ringfence import Mount, SandboxSpec, sync
from ringfence.interpreter import find_interpreter
from scripts.services.kernel import kernel_packages

from ..backends import BACKENDS, settings

PACKAGES = "/opt/kernel"


@pytest.fixture(scope="module", params=BACKENDS)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[sync.Sandbox, str]]:
    """A sandbox, and the name of its Python."""
    python = find_interpreter(sys.executable)
    spec, name = SandboxSpec(mounts=python.mounts), python.path
    if request.param == "container":
        packages = Mount(str(kernel_packages()), PACKAGES)
        spec, name = SandboxSpec(mounts=(packages,), env={"PYTHONPATH": PACKAGES}), "python3"
    with sync.open_backend(settings(request.param)) as backend, backend.create(spec) as sandbox:
        yield sandbox, name
