"""The parts that need no program: patches, threads, signals and alarms."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import anyio
import pytest
import wasmtime

from ringfence.backends import _wasm_threads
from ringfence.backends._wasm_patch import export_global
from ringfence.backends._wasm_threads import Alarms, Signal, submit
from ringfence.backends._wasm_turns import python_job
from ringfence.errors import ConfigError
from ringfence.models import Command

from . import programs


class TestPatch:
    def test_a_global_is_exported(self) -> None:
        text = '(module (global (mut i32) (i32.const 7)) (func (export "f")) (memory 1))'
        patched = export_global(bytes(wasmtime.wat2wasm(text)), 0, "name" * 40)
        store = wasmtime.Store()
        instance = wasmtime.Instance(store, wasmtime.Module(store.engine, patched), [])
        found = instance.exports(store)["name" * 40]
        assert isinstance(found, wasmtime.Global)
        assert found.value(store) == 7
        assert "f" in [item.name for item in wasmtime.Module(store.engine, patched).exports]

    def test_a_module_without_exports_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="exports nothing"):
            export_global(bytes(wasmtime.wat2wasm("(module)")), 0, "x")


class TestAlarms:
    def test_they_ring_in_their_order(self) -> None:
        alarms, rung = Alarms(), []
        done = threading.Event()
        alarms.set(0.2, done.set)
        alarms.set(0.1, lambda: rung.append(2))
        alarms.set(0.05, lambda: rung.append(1))
        cancelled = alarms.set(0.06, lambda: rung.append(3))
        alarms.cancel(cancelled)
        alarms.cancel(cancelled)
        assert done.wait(30)
        assert rung == [1, 2]

    def test_one_that_fails_stops_no_other(self, caplog: pytest.LogCaptureFixture) -> None:
        def fail() -> None:
            raise ZeroDivisionError

        alarms, done = Alarms(), threading.Event()
        alarms.set(0.01, fail)
        alarms.set(0.05, done.set)
        assert done.wait(30)
        assert "could not be held" in caplog.text


def test_threads_are_used_again() -> None:
    workers = _wasm_threads._Workers()  # of its own: other tests have left theirs to wait
    names: list[int] = []
    for count in range(1, 21):
        workers.submit(lambda: names.append(threading.get_ident()))
        deadline = time.monotonic() + 30
        while len(names) < count or workers._free < 1:
            assert time.monotonic() < deadline  # it has done its job, and waits for the next
            time.sleep(0.001)
    assert len(set(names)) == 1


def test_a_thread_has_room_for_a_deep_stack() -> None:
    before = threading.stack_size()
    done = threading.Event()
    submit(done.set, lambda: None)
    assert done.wait(30)
    assert threading.stack_size() == before


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_signal_wakes_all_that_wait(anyio_backend: Any) -> None:
    signal, woken, state = Signal(), [], False

    async def wait(name: int) -> None:
        await signal.wait(lambda: state)
        woken.append(name)

    def make_ready() -> None:
        nonlocal state
        state = True
        signal.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for name in range(3):
                group.start_soon(wait, name)
            await anyio.sleep(0.05)
            signal.set()  # nothing is ready yet
            await anyio.sleep(0.05)
            assert woken == []
            threading.Timer(0.05, make_ready).start()
        await signal.wait(lambda: state)
    assert sorted(woken) == [0, 1, 2]


@pytest.mark.parametrize(
    ("argv", "is_job"),
    [
        (["python"], True),
        (["python", "-"], True),
        (["python", "-c", "1"], True),
        (["python", "x.py"], True),
        (["python", "-c"], False),
        (["python", "-m", "x"], False),
        (["python", "-u", "x.py"], False),
        (["python", "--version"], False),
    ],
)
def test_options_are_left_to_the_interpreter(argv: list[str], is_job: bool) -> None:
    assert (python_job(Command(argv)) is not None) == is_job


def test_a_process_ends_with_programs_in_it(tmp_path: Any) -> None:
    """Catches a thread that comes back from a program into a Python that is gone."""
    path = tmp_path / "loop.wasm"
    for module in (programs.LOOP, programs.SLEEP_60, programs.FLOOD):
        path.write_bytes(module)
        code = f"""if True:
            import anyio, ringfence
            from ringfence.backends.wasm import WasmBackend, WasmConfig
            async def main():
                backend = WasmBackend(WasmConfig(wasm_path={str(path)!r}))
                await backend.__aenter__()
                sandbox = await backend.create()
                process = await sandbox.start(ringfence.Command(["x"]))
                await anyio.sleep(0.1)
            anyio.run(main)
        """
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=50)
        assert done.returncode == 0, done.stderr
        assert b"panic" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="it has no fork")
def test_a_forked_child_is_told_that_it_can_t(tmp_path: Any) -> None:
    """Catches a child that waits for ever for the threads of its parent."""
    path = tmp_path / "loop.wasm"
    path.write_bytes(programs.LOOP)
    code = f"""if True:
        import anyio, os, ringfence
        from ringfence.backends.wasm import WasmBackend, WasmConfig
        async def main():
            async with WasmBackend(WasmConfig(wasm_path={str(path)!r})) as backend:
                result = await backend.execute("x", timeout=0.3)
                assert result.exit_code == 124, result
        anyio.run(main)
        child = os.fork()
        if child == 0:
            try:
                anyio.run(main)
            except ringfence.BackendUnavailableError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert _wasm_threads.STACK_BYTES >= 16 * 1024 * 1024
