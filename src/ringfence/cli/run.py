"""`ringfence run`: one command in one sandbox, with this program's streams as its own."""

from __future__ import annotations

import json
import os
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import anyio
from anyio import CancelScope

from ..backend import Backend, Sandbox
from ..config import CONFIGS, BackendConfig
from ..errors import SandboxError, SandboxLostError
from ..export import ExportLimits, ExportReport, export_workspace, readable
from ..interpreter import Interpreter
from ..models import DEFAULT_TIMEOUT, Command, Exit, ExitReason, Mount, SandboxSpec
from ..process import HOST_SLACK, DeadlineError, Process
from ..registry import open_backend, select_backend
from ..settings import Settings
from . import words
from .container import show_fetching
from .interrupts import unless_interrupted
from .job import Job, choose_python, default_python
from .stdio import Writer, read_stdin

__all__ = ("Options", "choose", "fault", "no_isolation", "run")

_JAIL_PATH = "/usr/local/bin:/usr/bin:/bin"
_NAMED_SKIPS = 20


@dataclass(frozen=True)
class Options:
    """What a run was asked for beside its settings.

    Attributes:
        job: What to run.
        export: Where the workspace goes, or None.
        as_json: Print one object instead of the program's output.
        with_venv: Show the active virtual environment.
    """

    job: Job
    export: str | None = None
    as_json: bool = False
    with_venv: bool = False


async def run(settings: Settings, options: Options) -> int:
    """Run it, and return the exit code: the program's own, or 128+N if signal N ended us."""
    return await unless_interrupted(_Run(settings, options).perform)


class _Run:
    """One run on its way."""

    def __init__(self, settings: Settings, options: Options) -> None:
        self._settings = settings
        self._options = options
        self._job = options.job
        self._writer = Writer()

    async def perform(self) -> int:
        shows_host = self._options.with_venv or "/" in (self._settings.python or "")
        backend = await choose(self._settings, self._job, shows_host=shows_host)
        if backend.name == "container":
            show_fetching(backend)
        if backend.name == "wasm":
            from . import wasm_job

            self._job = wasm_job.as_program(self._job)
            await wasm_job.prepare(backend)
        if warning := no_isolation(self._settings, backend):
            self._say(warning)
        python = choose_python(self._settings, backend.name, with_venv=self._options.with_venv)
        if python is None and self._job.needs_python:
            python = default_python(self._settings, backend.name)
        spec = self._spec(backend, python)
        async with backend, await backend.create(spec) as sandbox:
            for file in self._job.files:
                await file.put(sandbox)
            command = self._command(sandbox, python)
            if self._options.as_json:
                return await self._collected(sandbox, command)
            return await self._live(sandbox, command)

    def _spec(self, backend: Backend, python: Interpreter | None) -> SandboxSpec:
        own_path = os.environ.get("PATH", _JAIL_PATH) if backend.name == "process" else _JAIL_PATH
        shown: tuple[Mount, ...] = python.mounts if python else ()
        env = python.env(own_path) if python else {}
        return SandboxSpec(
            env={**env, **self._settings.env},
            mounts=(*self._settings.mounts, *shown),
            labels={"command": readable(self._job.words[0])[:256]},
        )

    def _command(self, sandbox: Sandbox, python: Interpreter | None) -> Command:
        job = self._job
        has_stdin = job.kind == "stdin" or not os.isatty(0)
        return Command(
            job.argv(sandbox.workspace, python.path if python else ""),
            stdin=read_stdin() if has_stdin else None,
            timeout=self._settings.timeout or sandbox.limits.timeout or DEFAULT_TIMEOUT,
            fallback="sh" if job.kind == "shell" else None,
        )

    # Live: output goes out as it comes, however much it is.

    async def _live(self, sandbox: Sandbox, command: Command) -> int:
        process = await sandbox.start(
            replace(command, stdin=None), stdin_open=command.stdin is not None
        )
        async with anyio.create_task_group() as tasks:
            if command.stdin is not None:
                tasks.start_soon(_feed, process)
            end = await self._drain(sandbox, process, command.timeout or DEFAULT_TIMEOUT)
            tasks.cancel_scope.cancel()
        if end.message:
            await self._writer.write(2, end.message.encode())
        self._tell(sandbox, end.reason, command, end.code)
        await self._export(sandbox)
        return end.code

    async def _drain(self, sandbox: Sandbox, process: Process, timeout: float) -> Exit:
        """Write all output out and return how the command ended.

        The deadline is held in the sandbox. Ours stands behind it, and runs only while we wait
        for the sandbox: what a slow reader leaves unread is not the sandbox's fault.
        """
        slack = (sandbox.limits.kill_grace or 0.0) + HOST_SLACK
        deadline = anyio.current_time() + timeout
        while True:
            began = anyio.current_time()
            chunk = None
            with CancelScope(deadline=max(deadline, began) + slack), suppress(DeadlineError):
                chunk = await process.receive()
                if chunk is None:
                    return await process.wait()
            if chunk is None:
                raise SandboxLostError(
                    "the sandbox did not answer when its command's time was up", cause="silent"
                )
            slack -= max(0.0, anyio.current_time() - max(deadline, began))
            await self._writer.write(1 if chunk.stream == "stdout" else 2, chunk.data)

    # Collected: one object on stdout.

    async def _collected(self, sandbox: Sandbox, command: Command) -> int:
        result = await sandbox.exec(command)
        self._tell(sandbox, result.exit_reason, command, result.exit_code)
        for name, seen, kept in (
            ("stdout", result.stdout_bytes, len(result.stdout)),
            ("stderr", result.stderr_bytes, len(result.stderr)),
        ):
            if seen > kept:
                self._say(
                    f"{name} was cut: {words.size(kept)} of {words.size(seen)} were kept "
                    "(--output-size raises that; without --json nothing is cut)"
                )
        report = await self._export(sandbox)
        facts = _facts(sandbox) | {"export": report.to_dict() if report else None}
        text = json.dumps(result.to_dict() | facts, indent=2) + "\n"
        await self._writer.write(1, text.encode())
        return result.exit_code

    # What both end with.

    def _tell(self, sandbox: Sandbox, reason: ExitReason, command: Command, code: int) -> None:
        """Say on stderr what the exit code alone does not tell."""
        limits = sandbox.limits
        if reason is ExitReason.TIMED_OUT:
            after = words.span(command.timeout or 0.0)
            self._say(f"timed out after {after}; all that it had started was killed")
        elif reason is ExitReason.OUT_OF_MEMORY:
            limit = f" of {words.size(limits.memory_bytes)}" if limits.memory_bytes else ""
            self._say(f"killed at its memory limit{limit}")
        first = command.argv[0]
        if code == 127 and self._job.kind == "command" and os.path.isfile(os.fsdecode(first)):
            self._say(
                f"{os.fsdecode(first)} is a file of this machine; --file copies one into the "
                "workspace, and without -- a .py or .sh is run as a script"
            )

    def _say(self, text: str) -> None:
        words.say(text, before=self._writer.line_break())

    async def _export(self, sandbox: Sandbox) -> ExportReport | None:
        if self._options.export is None:
            return None
        report = await export_workspace(sandbox, self._options.export)
        files = "1 file" if len(report.files) == 1 else f"{len(report.files)} files"
        total = words.size(report.total_bytes)
        self._say(f"exported {files} ({total}) to {readable(report.target)}")
        for item in report.skipped[:_NAMED_SKIPS]:
            self._say(f"not exported: {_brief(readable(item.path))}: {item.reason}")
        if report.skipped_count > _NAMED_SKIPS:
            self._say(f"not exported: {report.skipped_count - _NAMED_SKIPS} more")
        if not report.is_complete:
            self._say(f"not exported: what is beyond the first {ExportLimits().entries:,} entries")
        return report


def _brief(path: str) -> str:
    return path if len(path) <= 120 else f"{path[:57]}...{path[-60:]}"


async def _feed(process: Process) -> None:
    """Send our stdin on, until the command wants no more of it."""
    async with aclosing(read_stdin()) as parts:
        try:
            async for part in parts:
                await process.write_stdin(part)
            await process.close_stdin()
        except SandboxLostError:
            return  # whoever drains the output is told so too


async def choose(settings: Settings, job: Job, *, shows_host: bool) -> Backend:
    """Return the backend, unopened; it makes no spare sandboxes for the one command there is.

    Args:
        settings: What was set.
        job: What to run.
        shows_host: Whether the interpreter is one of this machine's.
    """
    given: dict[str, Any] = {
        name: value for name, value in asdict(settings.limits).items() if value is not None
    }
    given |= settings.of_backend
    name = settings.backend
    if name == "auto" and shows_host:
        name = "bubblewrap"  # the one that isolates and can show this machine's programs
    if name == "auto":
        name = (await select_backend(BackendConfig(backend="auto", **given))).name
    BackendConfig(backend=name, **given)  # which refuses what this backend does not have
    if name == "wasm":
        from .wasm_job import settings_for

        given |= settings_for(job, settings)
    model = CONFIGS[name]
    if "spares" in model.model_fields:
        given["spares"] = 0
    return open_backend(model(**given))


def no_isolation(settings: Settings, backend: Backend) -> str:
    """Return the warning that there is no isolation, if nobody asked for that in so many words."""
    origin = settings.origins.get("backend", "")
    if backend.name == "process" and origin != "--backend":
        return f"running without isolation: process was chosen by {origin}"
    return ""


def _facts(sandbox: Sandbox) -> dict[str, Any]:
    """Return what a result does not tell of where it came from."""
    limits = {name: value for name, value in asdict(sandbox.limits).items() if value is not None}
    return {
        "backend": sandbox.backend,
        "isolation": sandbox.capabilities.isolation.name.lower(),
        "sandbox": sandbox.id,
        "limits": limits,
        "notes": list(sandbox.capabilities.notes),
    }


def fault(error: SandboxError) -> dict[str, Any]:
    """Return one of our own faults as `--json` prints it."""
    return {
        "error": {
            "code": error.code,
            "message": error.message,
            "hint": error.hint,
            "backend": error.backend,
            "retryable": error.retryable,
        }
    }
