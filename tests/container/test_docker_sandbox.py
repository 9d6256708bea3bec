"""`DockerSandbox` on a real engine: what its code sees, what ends it, and that nothing is left."""

from __future__ import annotations

import anyio
import pytest

from ringfence import (
    TIMEOUT_MARKER,
    AsyncDockerSandbox,
    BackendUnavailableError,
    BackendUnreachableError,
    DockerSandbox,
    SandboxConfig,
)

from .conftest import PYTHON
from .seen import Seen

pytestmark = [pytest.mark.container, pytest.mark.timeout(240)]


@pytest.fixture
def engine(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """The engine, as it is found without a word about it in the config."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{seen.socket}")
    return seen


def config(**settings: object) -> SandboxConfig:
    return SandboxConfig(image=PYTHON, **settings)  # type: ignore[arg-type]


def test_hello_and_where_it_is(engine: Seen) -> None:
    with DockerSandbox(config()) as sandbox:
        result = sandbox.execute(
            "print('Hello from the sandbox!'); import os; print(os.getcwd(), os.getuid())"
        )
    assert dict(result) == {
        "success": True,
        "output": "Hello from the sandbox!\n/workspace 65534\n",
        "exit_code": 0,
    }


LOOK = """
import os, socket

def can(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False

status = open("/proc/self/status").read()
found = dict(line.split(":\\t") for line in status.splitlines() if ":\\t" in line)
print(found["CapBnd"], found["NoNewPrivs"], found["Seccomp"])
print(can("/etc/x"), can("/usr/x"), can("/tmp/x"), can("/workspace/x"))
print(os.statvfs("/tmp").f_blocks * os.statvfs("/tmp").f_frsize // 2**20)
print(sorted(name for _, name in socket.if_nameindex()))
print(sorted(key for key in os.environ if "DOCKER" in key or "SECRET" in key))
"""


def test_it_is_hardened(engine: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET", "of this process")
    with DockerSandbox(config()) as sandbox:
        result = sandbox.execute(LOOK)
    assert result.output.splitlines() == [
        "0000000000000000 1 2",
        "False False True True",
        "64",
        "['lo']",
        "[]",
    ]


def test_code_that_fails_is_a_result(engine: Seen) -> None:
    with DockerSandbox(config()) as sandbox:
        result = sandbox.execute("import sys\nprint('a')\nprint('b', file=sys.stderr)\n1/0")
        assert (result.success, result.exit_code) == (False, 1)
        assert result.output.startswith("a\nb\nTraceback")
        assert result.output.endswith("ZeroDivisionError: division by zero\n")
        assert (result.stdout, result.stderr[:2]) == ("a\n", "b\n")
        assert sandbox.execute("raise SystemExit(7)").exit_code == 7


def test_its_time_ends_and_its_container_with_it(engine: Seen) -> None:
    with DockerSandbox(config(timeout=1.5)) as sandbox:
        result = sandbox.execute("print('first')\nimport time\ntime.sleep(600)")
        assert (result.success, result.exit_code, result.timed_out) == (False, 124, True)
        assert result.output == f"first\n{TIMEOUT_MARKER}\n"
        engine.nothing_left()


def test_its_memory_ends_and_nothing_else(engine: Seen) -> None:
    with DockerSandbox(config(memory_limit="64m")) as sandbox:
        result = sandbox.execute("print('first')\nx = 'x' * 10**9")
        assert (result.exit_code, result.result.out_of_memory) == (137, True)
        assert result.output == "first\n"
        assert sandbox.execute("print('second')").success


def test_code_is_not_cut_by_the_limit_of_an_argument(engine: Seen) -> None:
    code = f"x = '{'é' * 300_000}'\nprint(len(x), \"it's $HOME `id`\")"
    with DockerSandbox(config()) as sandbox:
        assert sandbox.execute(code).output == "300000 it's $HOME `id`\n"


def test_the_root_is_written_to_if_it_was_asked_for(engine: Seen) -> None:
    """As far as its user may: it is not root."""
    code = "import os; print(os.access('/', os.W_OK), os.statvfs('/').f_flag & os.ST_RDONLY)"
    with DockerSandbox(config(read_only=False)) as sandbox:
        assert sandbox.execute(code).output == "False 0\n"


def test_nothing_is_shared_between_two_calls(engine: Seen) -> None:
    with DockerSandbox(config()) as sandbox:
        sandbox.execute("open('/tmp/x', 'w').close(); open('x', 'w').close()")
        result = sandbox.execute("import os; print(os.listdir('/tmp'), os.listdir('.'))")
    assert result.output == "['home'] []\n"


def test_a_cancelled_call_leaves_no_container(engine: Seen) -> None:
    async def main() -> None:
        async with AsyncDockerSandbox(config()) as sandbox:
            for delay in (0.01, 0.2, 1.0):
                with anyio.move_on_after(delay):
                    await sandbox.execute("import time; time.sleep(600)")
            assert (await sandbox.execute("print(1)")).output == "1\n"

    anyio.run(main)
    engine.nothing_left()


def test_no_such_image_is_an_error(engine: Seen) -> None:
    with pytest.raises(BackendUnavailableError, match="has no image"):
        DockerSandbox(SandboxConfig(image="ringfence-test:none")).execute("print(1)")


def test_no_engine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(BackendUnreachableError):
        DockerSandbox(config()).execute("print(1)")
