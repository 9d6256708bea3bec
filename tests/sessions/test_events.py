"""What observers are told of sessions, and what they are never told."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import prometheus_client
import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ringfence.backends.fake import FakeBackend, FakeSandbox, Script
from ringfence.errors import (
    CreateError,
    FileMissingError,
    MissingDependencyError,
    SandboxLostError,
)
from ringfence.events import Operation
from ringfence.leases import MemoryLeases
from ringfence.models import Command, ExitReason, SandboxSpec
from ringfence.observability import MetricsObserver, StructlogObserver, TracingObserver
from ringfence.policy import Plan, Policy
from ringfence.sessions import Session, SessionManager
from ringfence.storage import open_store

pytestmark = pytest.mark.anyio

SECRETS = ("s3cret-argument", "s3cret-output", "s3cret-content", "s3cret-value", "s3cret-stdin")


class Recorder:
    def __init__(self) -> None:
        self.told: list[tuple[str, str, str | None]] = []
        self.seen: list[Operation] = []

    def started(self, operation: Operation) -> None:
        self.told.append(("start", operation.name, None))

    def ended(self, operation: Operation) -> None:
        self.told.append(("end", operation.name, operation.error))
        self.seen.append(operation)


@asynccontextmanager
async def observed(*observers: Any, script: Script | None = None) -> AsyncIterator[SessionManager]:
    fake = FakeBackend(script=script)
    sessions = SessionManager(fake, leases=MemoryLeases(), observers=observers)
    async with fake, sessions:
        yield sessions


async def use_everything(sessions: SessionManager) -> None:
    spec = SandboxSpec(env={"TOKEN": SECRETS[3]})
    session = sessions.session("a", tenant_id="acme", spec=spec)
    command = Command(["/bin/echo", SECRETS[0]], stdin=SECRETS[4], env={"X": SECRETS[3]})
    await session.exec(command)
    await session.write_file("notes", SECRETS[2])
    await session.read_file("notes")
    await sessions.destroy_execution("a", tenant_id="acme")


async def test_each_operation_has_a_start_and_an_end() -> None:
    recorder = Recorder()
    async with observed(recorder) as sessions:
        await use_everything(sessions)
    names = ["reap", "create", "exec", "file", "file", "end"]
    assert recorder.told == [
        (phase, f"sandbox.{name}", None) for name in names for phase in ("start", "end")
    ]
    by_name = {operation.name: operation for operation in recorder.seen}
    executed = by_name["sandbox.exec"].attributes
    assert executed["execution_id"] == "a"
    assert executed["tenant_id"] == "acme"
    assert (executed["program"], executed["exit_code"], executed["exit_reason"]) == (
        *("echo", 0, "exited"),
    )
    assert by_name["sandbox.file"].attributes["operation"] == "read_file"
    assert by_name["sandbox.end"].attributes["cause"] == "destroyed"
    assert all(operation.duration_s >= 0 for operation in recorder.seen)


async def test_an_export_is_told_with_its_sizes_and_begins_with_tenant_and_execution() -> None:
    recorder, store = Recorder(), open_store("memory:")
    async with observed(recorder) as sessions:
        session = sessions.session("run", tenant_id="acme")
        await session.write_file("a", b"12345")
        report = await sessions.export("run", store, tenant_id="acme")
        assert report.total_bytes == 5
        assert report.manifest.startswith("acme/run/")
    told = next(op for op in recorder.seen if op.name == "sandbox.export").attributes
    assert (told["files"], told["bytes"], told["skipped"]) == (1, 5, 0)
    assert (told["tenant_id"], told["execution_id"]) == ("acme", "run")


async def test_a_plan_bounds_what_an_export_takes() -> None:
    policy = Policy({"free": Plan("free", storage_bytes=6)})
    fake = FakeBackend()
    sessions = SessionManager(fake, leases=MemoryLeases(), policy=policy)
    async with fake, sessions:
        for name in "abc":
            await sessions.session("run").write_file(name, b"123")
        report = await sessions.export("run", open_store("memory:"))
        assert (report.total_bytes, report.skipped_count) == (6, 1)


async def test_what_fails_ends_with_a_code() -> None:
    recorder = Recorder()
    async with observed(recorder, script=Script([b"x"], loses="killed")) as sessions:
        backend = sessions.backend
        assert isinstance(backend, FakeBackend)
        backend.create_errors.append(CreateError("no"))
        with pytest.raises(CreateError):
            await sessions.exec("a", "true")
        with pytest.raises(FileMissingError):
            await sessions.session("a").read_file("x")
        with pytest.raises(SandboxLostError):
            await sessions.exec("a", "true")
    ends = [(name, error) for phase, name, error in recorder.told if phase == "end"]
    assert ("sandbox.create", "create") in ends
    assert ("sandbox.file", "file_missing") in ends
    assert ends.count(("sandbox.exec", "sandbox_lost")) == 1
    assert recorder.seen[-1].attributes["cause"] == "killed"


async def test_a_cancelled_command_has_an_end_too() -> None:
    recorder = Recorder()
    async with observed(recorder, script=Script(hangs=True)) as sessions:
        session = sessions.session("a")
        async with anyio.create_task_group() as group:
            group.start_soon(sessions.exec, "a", "sleep 60")
            with anyio.fail_after(20):
                while not session._running:
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
    assert ("end", "sandbox.exec", None) in recorder.told
    ended = next(op for op in recorder.seen if op.name == "sandbox.exec")
    assert ended.attributes["exit_reason"] == ExitReason.SIGNALED.value


async def test_an_observer_s_fault_is_logged_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        def ended(self, operation: Operation) -> None:
            raise LookupError("mine")

    after = Recorder()
    with caplog.at_level(logging.ERROR):
        async with observed(Broken(), after) as sessions:
            assert (await sessions.exec("a", "true")).ok
    assert ("end", "sandbox.exec", None) in after.told
    assert "an observer of sandbox.exec failed" in caplog.text


async def test_nothing_secret_reaches_a_log_a_span_or_a_metric(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lines = io.StringIO()
    logger = structlog.wrap_logger(
        structlog.PrintLogger(lines), processors=[structlog.processors.JSONRenderer()]
    )
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    registry = prometheus_client.CollectorRegistry()
    observers = (
        StructlogObserver(logger),
        TracingObserver(provider),
        MetricsObserver(registry),
    )
    script = Script([SECRETS[1].encode()])
    with caplog.at_level(logging.DEBUG):
        async with observed(*observers, script=script) as sessions:
            await use_everything(sessions)
    spans = [span.to_json() for span in exporter.get_finished_spans()]
    everything = "\n".join(
        [
            lines.getvalue(),
            *spans,
            prometheus_client.generate_latest(registry).decode(),
            caplog.text,
        ]
    )
    assert "sandbox.exec" in everything
    assert [secret for secret in SECRETS if secret in everything] == []


async def test_log_lines_are_structured() -> None:
    lines = io.StringIO()
    logger = structlog.wrap_logger(
        structlog.PrintLogger(lines), processors=[structlog.processors.JSONRenderer()]
    )
    async with observed(StructlogObserver(logger), script=Script([b"12"], exit_code=3)) as sessions:
        await sessions.exec("a", "x")
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    line = next(line for line in told if line["event"] == "sandbox.exec.end")
    assert (line["execution_id"], line["exit_code"], line["stdout_bytes"]) == ("a", 3, 2)
    assert line["duration_s"] >= 0


async def test_spans_lie_below_the_caller_s_and_name_errors() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with observed(TracingObserver(provider)) as sessions:
        with provider.get_tracer("test").start_as_current_span("request") as request:
            await sessions.exec("a", "true")
            with pytest.raises(FileMissingError):
                await sessions.session("a").read_file("none")
    above = request.get_span_context()
    assert above is not None
    spans = {span.name: span for span in exporter.get_finished_spans()}
    for name in ("sandbox.create", "sandbox.exec", "sandbox.file"):
        parent = spans[name].parent
        assert parent is not None
        assert parent.span_id == above.span_id
    attributes = spans["sandbox.file"].attributes
    assert attributes is not None
    assert attributes["error.type"] == "file_missing"
    assert not spans["sandbox.file"].status.is_ok


async def test_metrics_count_outcomes_and_what_is_up() -> None:
    registry = prometheus_client.CollectorRegistry()

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    async with observed(MetricsObserver(registry), script=Script(exit_code=1)) as sessions:
        await sessions.exec("a", "x")
        await sessions.exec("b", "x")
        assert value("ringfence_sandboxes", backend="fake") == 2
        behind(sessions.session("a")).lose()
        with pytest.raises(SandboxLostError):
            await sessions.exec("a", "x")
        assert value("ringfence_sandboxes", backend="fake") == 1
    assert value("ringfence_sandboxes", backend="fake") == 0
    counted = {"operation": "sandbox.exec", "backend": "fake"}
    assert value("ringfence_operations_total", **counted, outcome="failed") == 2
    assert value("ringfence_operations_total", **counted, outcome="sandbox_lost") == 1
    assert value("ringfence_operation_seconds_count", **counted) == 3
    assert value("ringfence_operations_running", operation="sandbox.exec") == 0


def behind(session: Session) -> FakeSandbox:
    assert isinstance(session._box, FakeSandbox)
    return session._box


@pytest.mark.parametrize(
    ("observer", "module"),
    [
        (StructlogObserver, "structlog"),
        (TracingObserver, "opentelemetry.trace"),
        (MetricsObserver, "prometheus_client"),
    ],
)
def test_without_the_extra_an_observer_says_what_to_install(
    observer: Any, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingDependencyError, match=r"ringfence\[observability\]"):
        observer()
