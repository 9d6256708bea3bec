"""LangChain's standard tests of a sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deepagents.backends.protocol import SandboxBackendProtocol
from langchain_tests.integration_tests import SandboxIntegrationTests

from ringfence import SandboxSpec, sync
from ringfence.adapters.deepagents import RingfenceBackend

from ..backends import settings

# A program named `python` is taken for granted; what the host calls it is another matter.
SPEC = SandboxSpec(env={"PATH": "/workspace/bin:/usr/local/bin:/usr/bin:/bin"})
NAMED_PYTHON = 'mkdir -p bin && ln -s "$(command -v python3)" bin/python'


class Standard(SandboxIntegrationTests):
    backend: str

    @pytest.fixture(scope="class")
    @classmethod
    def sandbox(cls) -> Iterator[SandboxBackendProtocol]:
        with (
            sync.open_backend(settings(cls.backend)) as backend,
            backend.create(SPEC) as sandbox,
        ):
            sandbox.exec("sh", ["-c", NAMED_PYTHON]).check()
            yield RingfenceBackend(sandbox)


class TestBubblewrap(Standard):
    backend = "bubblewrap"


class TestContainer(Standard):
    backend = "container"
