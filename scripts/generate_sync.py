"""Write src/ringfence/sync.py, the synchronous twins of the async classes, from their source.

    python scripts/generate_sync.py            write it
    python scripts/generate_sync.py --check    say whether it is up to date: 0 if so, else 1

Every public method, property and attribute gets a twin with the same signature and docstring that
waits for the async one. What differs is in the tables below.
"""

import argparse
import ast
import difflib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "ringfence"
TARGET = PACKAGE / "sync.py"

Definition: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

HEAD = '''
"""The synchronous twins of backends, sandboxes, processes, pools, sessions and exports.

Written by scripts/generate_sync.py from the async classes; change those, not this file. All calls
share one event loop in a thread of its own, so they also work where an event loop is running, and
from any thread::

    from ringfence import sync

    with sync.open_backend("auto") as backend:
        print(backend.execute("echo", ["hello"]).stdout_text)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio.to_thread

from . import export, importing, registry
from .backend import DEFAULT_LIST_ENTRIES
from .backend import Backend as AsyncBackend
from .backend import Sandbox as AsyncSandbox
from .contexts import CodeContext, CodeResult, ContextLimits, Output
from .contexts import CodeContexts as AsyncCodeContexts
from .contexts import CodeRun as AsyncCodeRun
from .events import Observer
from .execution import Run as AsyncRun
from .export import ExportEvent, ExportLimits, ExportReport, Room
from .export.pipeline import AT_ONCE
from .importing import ImportLimits, ImportReport
from .incoming import Source
from .leases import LeaseStore
from .models import (
    Capabilities,
    Chunk,
    Command,
    Exit,
    FileInfo,
    Limits,
    Listing,
    Probe,
    Result,
    SandboxSpec,
)
from .policy import Plan, Policy
from .pool import Pool as AsyncPool
from .pool import PoolConfig
from .portal import Entered, call
from .process import Process as AsyncProcess
from .registry import Config
from .sessions import DEFAULT_IDLE_TIMEOUT, DEFAULT_TENANT, BackgroundCommand, OutputPart
from .sessions import BackgroundCommands as AsyncBackgroundCommands
from .sessions import Session as AsyncSession
from .sessions import SessionManager as AsyncSessionManager
from .sessions import StreamedRun as AsyncStreamedRun
from .sessions.background import DEFAULT_READ_BYTES, DEFAULT_WRITE_TIMEOUT
from .storage import ArtifactStore

__all__ = (
    "Backend",
    "BackgroundCommands",
    "CodeContexts",
    "CodeRun",
    "Pool",
    "Process",
    "Run",
    "Sandbox",
    "Session",
    "SessionManager",
    "StreamedRun",
    "export_workspace",
    "import_files",
    "open_backend",
)
'''

TAIL = '''
async def _made(factory: Callable[[], Any]) -> Any:
    """Call a factory that blocks, in a thread: it may need the event loop itself."""
    made = await anyio.to_thread.run_sync(factory)
    return made._inner if isinstance(made, Sandbox) else made
'''

CLASSES = {"Process": "process.py", "Run": "execution.py", "Sandbox": "backend.py",
           "Backend": "backend.py", "Pool": "pool/pool.py", "StreamedRun": "sessions/streaming.py",
           "BackgroundCommands": "sessions/background.py",
           "Session": "sessions/session.py", "SessionManager": "sessions/manager.py",
           "CodeRun": "contexts/run.py", "CodeContexts": "contexts/contexts.py"}  # fmt: skip

# Functions that take a sandbox: where each is, and the module that it is called by.
CALLS = {"export_workspace": ("export/exporting.py", "export"),
         "import_files": ("importing.py", "importing")}  # fmt: skip

BASES = {"Session": "Sandbox"}

# What a class is made from, where that is not the async one.
INITS = {
    "Pool": """
        def __init__(self, config: PoolConfig[Sandbox]) -> None:
            settings = {**vars(config), "factory": partial(_made, config.factory)}
            self._inner = AsyncPool(PoolConfig(**settings))
            self._entered: Entered | None = None
    """,
    "CodeContexts": """
        def __init__(
            self, sandbox: Sandbox, *, python: str = "python3", limits: ContextLimits | None = None
        ) -> None:
            self._inner = AsyncCodeContexts(sandbox._inner, python=python, limits=limits)
            self._entered: Entered | None = None
    """,
    "Session": """
        def __init__(self, inner: AsyncSession) -> None:
            super().__init__(inner)
            self._inner: AsyncSession = inner
    """,
    "SessionManager": """
        def __init__(
            self,
            backend: Backend,
            *,
            leases: LeaseStore | None = None,
            policy: Policy | None = None,
            idle_timeout: float = DEFAULT_IDLE_TIMEOUT,
            observers: Iterable[Observer] = (),
            warm: int = 0,
        ) -> None:
            self._inner = AsyncSessionManager(
                backend._inner,
                leases=leases,
                policy=policy,
                idle_timeout=idle_timeout,
                observers=observers,
                warm=warm,
            )
            self._entered: Entered | None = None
    """,
}

RENAMED = {"aclose": "close"}

# What the core asks for itself, and no user needs.
LEFT_OUT = {
    "BackgroundCommands.running",
    "Run.complete",
    "Sandbox.keeps_deadlines",
    "Session.end_if_overdue",
    "Session.in_use",
    "Session.overdue",
    "Session.tell_later",
    "SessionManager.backend",
}

# The twins of what only the language calls, for the classes that have it.
SPECIAL = {
    "Process.__aiter__": """
        def __iter__(self) -> Self:
            self._inner.__aiter__()
            return self

        def __next__(self) -> Chunk:
            try:
                return call(self._inner.__anext__)
            except StopAsyncIteration:
                raise StopIteration from None
    """,
    "Sandbox.__aenter__": """
        def __enter__(self) -> Self:
            return self

        def __exit__(
            self,
            exc_type: type[BaseException] | None,
            exc: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            self.close()
    """,
    "Backend.__aenter__": """
        def __enter__(self) -> Self:
            self._entered = Entered(self._inner)
            self._entered.__enter__()
            return self

        def __exit__(
            self,
            exc_type: type[BaseException] | None,
            exc: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            if self._entered is not None:
                self._entered.__exit__(exc_type, exc, traceback)
    """,
}
SPECIAL["Pool.__aenter__"] = SPECIAL["Backend.__aenter__"]
SPECIAL["Session.background"] = """
    @property
    def background(self) -> BackgroundCommands:
        \"\"\"The commands in it that run on while nobody waits for them.\"\"\"
        return BackgroundCommands(self._inner.background)
"""
SPECIAL["SessionManager.sessions"] = """
    @property
    def sessions(self) -> list[Session]:
        \"\"\"The sessions that have a sandbox in this worker.\"\"\"
        return [Session(session) for session in self._inner.sessions]
"""
for _run in ("Run", "StreamedRun"):
    SPECIAL[f"{_run}.__aiter__"] = SPECIAL["Process.__aiter__"]
    SPECIAL[f"{_run}.__aenter__"] = SPECIAL["Backend.__aenter__"]
SPECIAL["CodeRun.__aiter__"] = SPECIAL["Process.__aiter__"].replace("Chunk", "Output")
SPECIAL["CodeRun.__aenter__"] = SPECIAL["Backend.__aenter__"]
SPECIAL["CodeContexts.__aenter__"] = SPECIAL["Backend.__aenter__"]
SPECIAL["SessionManager.__aenter__"] = SPECIAL["Backend.__aenter__"]

# A callback is called in its caller's thread, where it may block and be interrupted.
BODIES = {
    "Sandbox.exec": """
        if on_output is None:
            return call(self._inner.exec, command, args, timeout=timeout)
        with self.stream(command, args, timeout=timeout) as run:
            for chunk in run:
                on_output(chunk)
        return run.result
    """,
    "CodeContexts.run_code": """
        if on_output is None:
            return call(self._inner.run_code, code, context=context, timeout=timeout)
        with CodeRun(call(self._inner._stream, code, context, timeout)) as run:
            for output in run:
                on_output(output)
        return run.result
    """,
    "Pool.release": """
        call(self._inner.release, sandbox._inner)
    """,
    "Pool.lease": """
        sandbox = self.acquire(timeout=timeout)
        try:
            yield sandbox
        finally:
            self.release(sandbox)
    """,
    "SessionManager.exec": """
        if on_output is None:
            return call(
                self._inner.exec, execution_id, command, tenant_id=tenant_id, timeout=timeout
            )
        with self.exec_streaming(
            execution_id, command, tenant_id=tenant_id, timeout=timeout
        ) as run:
            for chunk in run:
                on_output(chunk)
        return run.result
    """,
}

WORDS = (
    ("Use it with `async with`", "Use it in a `with` block"),
    ("It is shielded from cancellation.", "An interruption does not stop it."),
    ("and from any task", "and from any thread"),
    ("`async with", "`with"),
    ("`await ", "`"),
    ("aclose", "close"),
    ("is skipped; may be async.", "is skipped, in another thread."),
    ("as it arrives, decoded; may be async", "decoded, in the caller's thread"),
    ("each output as it comes; may be async.", "each output, in the caller's thread."),
    ("Use `async with`.", "Use a `with` block."),
    ("If the caller is cancelled, the code", "If the caller is interrupted, the code"),
    ("decoded; may be async. It", "decoded, in the caller's thread. It"),
    ("also when the caller is cancelled", "also when the caller is interrupted"),
)


def main() -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    wanted = formatted(generated())
    found = TARGET.read_text() if TARGET.exists() else ""
    if not check:
        TARGET.write_text(wanted)
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(
            found.splitlines(keepends=True), wanted.splitlines(keepends=True), "found", "wanted"
        )
    )
    return int(found != wanted)


def formatted(source: str) -> str:
    """Return the source as ruff formats it."""
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(ruff, input=source, text=True, check=True, stdout=subprocess.PIPE).stdout


def generated() -> str:
    """Return the whole module."""
    parts = [HEAD.strip()]
    parts += [twin_class(name, parsed(file)) for name, file in CLASSES.items()]
    parts.append(twin_function(find(parsed("registry.py"), "open_backend")))
    parts += [twin_call(parsed(file), name, room) for name, (file, room) in CALLS.items()]
    parts.append(TAIL.strip())
    return "\n\n\n".join(parts) + "\n"


def parsed(file: str) -> ast.Module:
    """Parse one module of the package."""
    return ast.parse((PACKAGE / file).read_text())


def find(module: ast.Module, name: str) -> Definition:
    """Return the class or function of a name."""
    for node in module.body:
        if isinstance(node, Definition) and node.name == name:
            return node
    raise SystemExit(f"there is no {name} in the source")


def members(module: ast.Module, name: str) -> Iterator[tuple[ast.stmt, str]]:
    """Yield what a class and its bases in the same module define, with the attributes' texts."""
    node = find(module, name)
    assert isinstance(node, ast.ClassDef)
    for statement, after in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = str(after.value.value)
        yield statement, text
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id.startswith("_"):
            yield from members(module, base.id)


def twin_class(name: str, module: ast.Module) -> str:
    """Return the synchronous class."""
    doc = indented(docstring(find(module, name)))
    enters = "Entered(" in SPECIAL.get(f"{name}.__aenter__", "")
    state = "    self._entered: Entered | None = None\n" if enters else ""
    init = f"def __init__(self, inner: Async{name}) -> None:\n    self._inner = inner\n" + state
    if name in INITS:
        init = textwrap.dedent(INITS[name]).strip() + "\n"
    base = f"({BASES[name]})" if name in BASES else ""
    parts = [f"class {name}{base}:\n{doc}\n", init]
    done = set()
    for node, text in members(module, name):
        made = twin_member(name, node, text)
        if made and made[0] not in done:
            done.add(made[0])
            parts.append(made[1])
    parts.append("def __repr__(self) -> str:\n    return repr(self._inner)\n")
    return parts[0] + "\n" + "\n".join(indented(part) for part in parts[1:])


def twin_member(owner: str, node: ast.stmt, text: str) -> tuple[str, str] | None:
    """Return the name and source of one member's twin, or None if it has none."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        name = node.target.id
        if name.startswith("_") or f"{owner}.{name}" in LEFT_OUT:
            return None
        kind = ast.unparse(node.annotation).removeprefix("ClassVar[").removesuffix("]")
        return name, twin_property(name, kind, text)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    if special := SPECIAL.get(f"{owner}.{node.name}"):
        return node.name, textwrap.dedent(special).strip() + "\n"
    if node.name.startswith("_") or f"{owner}.{node.name}" in LEFT_OUT:
        return None
    if any(isinstance(item, ast.Name) and item.id == "property" for item in node.decorator_list):
        assert node.returns
        return node.name, twin_property(
            node.name, ast.unparse(node.returns), ast.get_docstring(node) or ""
        )
    return node.name, twin_method(owner, node)


def twin_property(name: str, kind: str, text: str) -> str:
    """Return a property that reads the async one's attribute."""
    doc = indented(quoted(text)) if text else ""
    return f"@property\ndef {name}(self) -> {kind}:\n{doc}    return self._inner.{name}\n"


def twin_method(owner: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return a method that waits for the async one."""
    assert node.returns
    kind = ast.unparse(node.returns).rpartition(".")[2].replace("Async", "")
    name = RENAMED.get(node.name, node.name)
    body = textwrap.dedent(BODIES.get(f"{owner}.{node.name}", "")).strip()
    if not body:
        arguments = list(passed(node.args))
        if isinstance(node, ast.AsyncFunctionDef):
            body = f"call({', '.join([f'self._inner.{node.name}', *arguments])})"
        else:
            body = f"self._inner.{node.name}({', '.join(arguments)})"
        if kind in CLASSES:
            body = f"{kind}({body})"
        if kind != "None":
            body = f"return {body}"
    head = f"def {name}({ast.unparse(node.args)}) -> {kind}:\n"
    if kind.startswith("Iterator["):
        head = f"@contextmanager\n{head}"
    return head + indented(docstring(node)) + indented(body) + "\n"


def twin_function(node: Definition) -> str:
    """Return `open_backend`."""
    assert isinstance(node, ast.FunctionDef)
    arguments = ", ".join(passed(node.args))
    head = f"def {node.name}({ast.unparse(node.args)}) -> Backend:\n"
    body = f"    return Backend(registry.{node.name}({arguments}))"
    return head + indented(docstring(node)) + body


def twin_call(module: ast.Module, name: str, room: str) -> str:
    """Return a function that hands the async sandbox to the async function and waits for it."""
    node = find(module, name)
    assert isinstance(node, ast.AsyncFunctionDef)
    assert node.returns
    _, *rest = passed(node.args)
    head = f"def {name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}:\n"
    body = f"    return call({room}.{name}, sandbox._inner, {', '.join(rest)})"
    return head + indented(docstring(node)) + body


def passed(arguments: ast.arguments) -> Iterator[str]:
    """Yield the arguments as a call passes them on."""
    for item in [*arguments.posonlyargs, *arguments.args]:
        if item.arg != "self":
            yield item.arg
    for item in arguments.kwonlyargs:
        yield f"{item.arg}={item.arg}"


def docstring(node: Definition) -> str:
    """Return a docstring as source, in the words of synchronous code."""
    return quoted(ast.get_docstring(node) or "")


def quoted(text: str) -> str:
    """Return a text as a docstring."""
    for old, new in WORDS:
        text = text.replace(old, new)
    end = "\n" if "\n" in text else ""
    return f'"""{text}{end}"""\n'


def indented(text: str) -> str:
    """Indent by one level."""
    return textwrap.indent(text, "    ")


if __name__ == "__main__":
    sys.exit(main())
