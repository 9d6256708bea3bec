"""Python and JavaScript: scripts, live interpreters, and those that are started ahead.

They are compiled once into the user's cache. Without their packages these tests fail, unless
RINGFENCE_REQUIRE_BACKENDS names other backends only.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from ringfence.backends.wasm import WasmBackend
from ringfence.errors import MissingDependencyError, SandboxClosedError, SandboxLostError
from ringfence.models import Command, Limits, Result, SandboxSpec
from ringfence.testing import REQUIRED_VARIABLE

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(400)]


async def opened(backend: WasmBackend) -> WasmBackend:
    """Enter a backend; skip only where nobody requires it to be there."""
    try:
        return await backend.__aenter__()
    except MissingDependencyError as error:
        required = os.environ.get(REQUIRED_VARIABLE)
        if required is not None and "wasm" not in required.split(","):
            pytest.skip(str(error))
        raise


@pytest.fixture
async def python() -> AsyncIterator[WasmBackend]:
    backend = await opened(WasmBackend.python())
    yield backend
    await backend.aclose()


@pytest.fixture
async def cold() -> AsyncIterator[WasmBackend]:
    backend = await opened(WasmBackend.python(spares=0))
    yield backend
    await backend.aclose()


@pytest.fixture
async def javascript() -> AsyncIterator[WasmBackend]:
    backend = await opened(WasmBackend.javascript())
    yield backend
    await backend.aclose()


SAME = {
    "code": Command(["python", "-c", "import sys; print(sys.argv, sys.path[0])", "a", ""]),
    "names": Command(["python", "-c", "print([n for n in globals() if n[0] != '_'], __name__)"]),
    "no name of ours": Command(["python", "-c", "print('_serve' in globals(), __doc__)"]),
    "stdin as program": Command(["python"], stdin="print(7); import sys; print(sys.argv)"),
    "a dash": Command(["python", "-", "x"], stdin="import sys; print(sys.argv)"),
    "stdin as input": Command(["python", "-c", "print(input()); print(input())"], stdin="1\n2\n"),
    "no input": Command(["python", "-c", "input()"]),
    "env": Command(["python", "-c", "import os; print(os.environ)"], env={"A": "ü"}),
    "an error": Command(["python", "-c", "def f():\n  1/0\nf()"]),
    "bad syntax": Command(["python", "-c", "def f("]),
    "exit with a number": Command(["python", "-c", "import sys; sys.exit(77)"]),
    "exit with text": Command(["python", "-c", "import sys; sys.exit('bye')"]),
    "exit at once": Command(["python", "-c", "import os; os._exit(9)"]),
    "at exit": Command(["python", "-c", "import atexit; atexit.register(print, 'late'); print(1)"]),
    "no newline": Command(["python", "-c", "import sys; sys.stdout.write('x')"]),
    "bytes": Command(["python", "-c", "import os; os.write(1, bytes(range(256)))"]),
    "a module": Command(["python", "-m", "json.tool", "-h"]),
    "no file": Command(["python", "no.py"]),
    "recursion": Command(["python", "-c", "def f(): f()\nf()"]),
    "closed stdout": Command(["python", "-c", "import sys; sys.stdout.close()"]),
    "future": Command(["python", "-c", "print(0 .__class__, eval('1 if True else 2'))"]),
}


@pytest.mark.parametrize("name", SAME)
async def test_one_that_was_started_ahead_does_the_same(
    python: WasmBackend, cold: WasmBackend, name: str
) -> None:
    """Catches whatever our own code in the interpreter gives away or does differently."""
    ours, plain = await python.execute(SAME[name]), await cold.execute(SAME[name])
    assert ours.exit_code == plain.exit_code
    assert ours.stdout == plain.stdout
    # A module that can't be found is named with where Python looked for it; the rest is the same.
    shown = plain.stderr_text.splitlines()
    assert ours.stderr_text.splitlines()[-1:] == shown[-1:]
    assert len(ours.stderr_text.splitlines()) == len(shown)


async def test_it_has_a_clock_and_chance(python: WasmBackend) -> None:
    code = "import time, random, uuid; print(time.time(), random.random(), uuid.uuid4())"
    first, second = [(await python.execute("python", ["-c", code])).stdout_text for _ in range(2)]
    assert abs(float(first.split()[0]) - time.time()) < 60
    assert first.split()[1:] != second.split()[1:]


async def test_its_clock_and_chance_are_fixed_on_request() -> None:
    code = "import time, random; print(time.time(), random.random(), hash('x'))"
    backend = await opened(WasmBackend.python(clock="fixed", random="fixed", spares=0))
    first, second = [(await backend.execute("python", ["-c", code])).stdout for _ in range(2)]
    await backend.aclose()
    assert first == second


async def test_it_reaches_nothing(python: WasmBackend) -> None:
    code = """if True:
        import os, socket, subprocess
        for attack in (
            lambda: open("/etc/passwd"), lambda: os.listdir("/"), lambda: os.fork(),
            lambda: subprocess.run(["id"]), lambda: socket.create_connection(("127.0.0.1", 80)),
            lambda: os.kill(1, 9), lambda: open("f", "w"),
        ):
            try:
                print(attack())
            except (OSError, AttributeError):
                print("refused")
    """
    lines = (await python.execute("python", ["-c", code])).stdout_text.splitlines()
    assert set(lines) <= {"refused", "['usr']"}  # its own library, which is in the module
    assert lines.count("refused") >= 6


async def test_a_deadline_ends_it_also_while_it_sleeps(python: WasmBackend) -> None:
    for code in (
        "import time; print(1, flush=True); time.sleep(600)",
        "print(1, flush=True)\nwhile 1: 0",
    ):
        for timeout in (1, 15):
            with anyio.fail_after(45):
                result = await python.execute("python", ["-c", code], timeout=timeout)
            assert result.exit_code == 124
            if result.stdout:  # a busy machine may not come to it in the shorter time
                break
        assert result.stdout == b"1\n"


async def test_memory_is_held_to_its_limit(python: WasmBackend) -> None:
    code = "try: bytes(10**9)\nexcept MemoryError: print('refused')"
    assert (await python.execute("python", ["-c", code])).stdout == b"refused\n"


async def test_a_live_sandbox_runs_scripts_in_its_workspace(python: WasmBackend) -> None:
    async with await python.create() as sandbox:
        await sandbox.write_file("pack/mod.py", "X = 41")
        await sandbox.write_file("a.py", "import sys; sys.path.append('pack'); import mod\n"
                                 "open('/workspace/out', 'w').write(str(mod.X + 1))")  # fmt: skip
        await sandbox.write_file("d/b.py", "print(open('c').read(), end='')")
        await sandbox.write_file("d/c", "here")
        for path in ("a.py", "/workspace/a.py"):
            assert (await sandbox.exec("python", [path])).ok
            assert await sandbox.read_file("out") == b"42"
            await sandbox.remove("out")
        assert (await sandbox.exec(Command(["python", "b.py"], cwd="d"))).stdout == b"here"
        code = "import tempfile; f = tempfile.TemporaryFile(); f.write(b'x'); print(f.tell())"
        assert (await sandbox.exec("python", ["-c", code])).stdout == b"1\n"
        env = "import os; open(os.environ['HOME'] + '/x', 'w'); print(sorted(os.environ))"
        shown = (await sandbox.exec("python", ["-c", env])).stdout_text
        assert shown == "['HOME', 'MPLCONFIGDIR', 'TMPDIR', 'XDG_CACHE_HOME']\n"


async def test_a_spec_of_its_own_is_kept(python: WasmBackend) -> None:
    """Catches an interpreter that was started ahead with other limits or variables."""
    spec = SandboxSpec(limits=Limits(memory_bytes=32 * 2**20), env={"A": "b"})
    code = "import os\ntry: bytes(30 * 2**20)\nexcept MemoryError: print(os.environ['A'])"
    assert (await python.execute("python", ["-c", code], spec=spec)).stdout == b"b\n"
    async with await python.create(spec) as sandbox:
        assert (await sandbox.exec("python", ["-c", code])).stdout == b"b\n"


async def test_many_at_once_share_nothing(python: WasmBackend) -> None:
    results: dict[int, Result] = {}

    async def run(number: int) -> None:
        results[number] = await python.execute("python", ["-c", f"print({number})"])

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(run, number)
    assert {n: r.stdout_text for n, r in results.items()} == {n: f"{n}\n" for n in range(8)}


TURNS: list[tuple[Callable[[], WasmBackend], list[tuple[str, str, int]]]] = [
    (
        WasmBackend.python,
        [
            ("x = 41", "", 0),
            ("print(x + 1)", "42\n", 0),
            ("import sys; sys.exit(3)", "", 3),
            ("print(x); print(input())", "41\nin\n", 0),
            ("raise ValueError('no')", "", 1),
            ("def f(", "", 1),
            ("print(x)", "41\n", 0),
        ],
    ),
    (
        WasmBackend.javascript,
        [
            ("var x = 41", "", 0),
            ("console.log(x + 1)", "42\n", 0),
            ("let y = 2; function f() { return y }", "", 0),
            ("console.log(f()); Promise.resolve(3).then(console.log)", "2\n3\n", 0),
            ("throw new Error('no')", "", 1),
            ("syntax error here", "", 1),
            ("console.log(y)", "2\n", 0),
        ],
    ),
]


@pytest.mark.parametrize(("make", "turns"), TURNS, ids=["python", "javascript"])
async def test_a_live_interpreter_keeps_what_turns_leave(
    make: Callable[[], WasmBackend], turns: list[tuple[str, str, int]]
) -> None:
    backend = await opened(make())
    async with await backend.interpreter() as live:
        for code, stdout, exit_code in turns:
            result = await live.run(code, stdin="in\n")
            assert (result.stdout_text, result.exit_code) == (stdout, exit_code), code
    await backend.aclose()


async def test_a_turn_that_is_ended_ends_the_interpreter(python: WasmBackend) -> None:
    async with await python.interpreter() as live:
        result = await live.run("print('begun', flush=True)\nwhile True: pass", timeout=3)
        assert (result.stdout, result.exit_code) == (b"begun\n", 124)
        with pytest.raises(SandboxLostError, match="variables are gone"):
            await live.run("1")
    with pytest.raises(SandboxClosedError):
        await live.run("1")


async def test_turns_wait_for_one_another_and_can_be_cancelled(python: WasmBackend) -> None:
    async with await python.interpreter() as live:
        await live.run("seen = []")
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(live.run, f"seen.append({number})")
        assert (await live.run("print(sorted(seen))")).stdout == b"[0, 1, 2, 3, 4]\n"
        with anyio.move_on_after(0.2):
            await live.run("while True: pass")
        with pytest.raises(SandboxLostError):
            await live.run("1")


async def test_a_live_interpreter_shares_the_files_of_its_sandbox(python: WasmBackend) -> None:
    async with await python.interpreter() as live:
        await live.sandbox.write_file("in", "text")
        await live.run("open('out', 'w').write(open('/workspace/in').read().upper())")
        await live.run("import gc; gc.collect()")
        assert await live.sandbox.read_file("out") == b"TEXT"


async def test_output_of_a_turn_is_capped(python: WasmBackend) -> None:
    async with await python.interpreter(SandboxSpec(limits=Limits(output_bytes=100))) as live:
        for _ in range(2):
            result = await live.run("print('x' * 5000)")
            assert (len(result.stdout), result.stdout_bytes) == (100, 5001)


class TestJavaScript:
    async def test_scripts_run_with_their_arguments(self, javascript: WasmBackend) -> None:
        async with await javascript.create() as sandbox:
            await sandbox.write_file("a.js", "console.log(scriptArgs.slice(1).join(), 6 * 7)")
            result = await sandbox.exec("qjs", ["a.js", "x", "y"])
            assert (result.stdout, result.exit_code) == (b"x,y 42\n", 0)

    async def test_promises_and_timers_are_run(self, javascript: WasmBackend) -> None:
        code = "os.setTimeout(() => console.log(2), 20); Promise.resolve(1).then(console.log)"
        result = await javascript.execute("qjs", ["--std", "-e", code])
        assert (result.stdout, result.exit_code) == (b"1\n2\n", 0)

    async def test_exit_codes(self, javascript: WasmBackend) -> None:
        thrown = await javascript.execute("qjs", ["-e", "throw new Error('no')"])
        assert (thrown.exit_code, "Error: no" in thrown.stderr_text) == (1, True)
        gone = await javascript.execute("qjs", ["--std", "-e", "std.exit(3)"])
        assert gone.exit_code == 3

    async def test_a_deadline_ends_it(self, javascript: WasmBackend) -> None:
        result = await javascript.execute("qjs", ["-e", "for (;;);"], timeout=0.5)
        assert result.timed_out

    async def test_endless_recursion_is_a_trap(self, javascript: WasmBackend) -> None:
        result = await javascript.execute("qjs", ["-e", "(function f() { f() })()"])
        assert result.exit_code == 134
        assert result.stderr_text.startswith("wasm trap: STACK_OVERFLOW")

    async def test_it_recurses_deeply(self, javascript: WasmBackend) -> None:
        """Catches its build's own stack, which is too small and overwrites its variables."""
        code = "const f = n => n ? 1 + f(n - 1) : 0; console.log(f(5000))"
        assert (await javascript.execute("qjs", ["-e", code])).stdout == b"5000\n"


async def test_a_module_of_the_user_s_is_used_for_an_interpreter() -> None:
    from ringfence.backends._wasm_carriers import CARRIERS

    path = str(CARRIERS["javascript"].path())
    backend = await opened(WasmBackend.javascript(wasm_path=path))
    assert (await backend.execute("qjs", ["-e", "console.log(1)"])).stdout == b"1\n"
    async with await backend.interpreter() as live:
        assert (await live.run("console.log(2)")).stdout == b"2\n"
    await backend.aclose()


async def test_nothing_is_left_of_interpreters(python: WasmBackend) -> None:
    import threading

    for _ in range(3):
        async with await python.create() as sandbox:
            await sandbox.exec("python", ["-c", "1"])
    await python.aclose()
    with anyio.fail_after(50):
        while sum(t.name == "ringfence-wasm" for t in threading.enumerate()) > 0:
            await anyio.sleep(0.1)


@pytest.mark.skipif(
    "python-scientific" not in os.environ.get("RINGFENCE_TEST_WASM", ""),
    reason="compiling it takes minutes: RINGFENCE_TEST_WASM=python-scientific runs it",
)
async def test_the_scientific_python_has_its_packages() -> None:
    backend = await opened(WasmBackend.python(scientific=True, memory_limit_pages=16384))
    code = "import numpy, pandas; print(pandas.DataFrame({'a': numpy.arange(3)}).a.sum())"
    assert (await backend.execute("python", ["-c", code])).stdout == b"3\n"
    async with await backend.create() as sandbox:
        await sandbox.write_file("s.py", "import sys; print(sys.argv); open('out', 'w').write('x')")
        assert (await sandbox.exec("python", ["s.py", "a"])).stdout == b"['s.py', 'a']\n"
        assert await sandbox.read_file("/workspace/out") == b"x"
    async with await backend.interpreter() as live:
        for turn, stdout in (("x = 1", ""), ("print(x)", "1\n"), ("1/0", ""), ("print(x)", "1\n")):
            assert (await live.run(turn)).stdout_text == stdout
    await backend.aclose()
