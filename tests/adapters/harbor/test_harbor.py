"""The adapter for Harbor: every operation, its failures, and a whole trial of Harbor's own."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from harbor.environments.factory import EnvironmentFactory
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from ringfence import CommandError, SandboxClosedError, UnsupportedError, WorkspaceError
from ringfence.adapters.harbor import HarborEnvironment
from scripts.services.engine import Engine

from ..backends import IMAGE, settings

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[3] / "examples" / "harbor_trial.py"
IMPORT_PATH = "ringfence.adapters.harbor:HarborEnvironment"
NO_NETWORK = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def make(place: Path, policy: NetworkPolicy = NO_NETWORK, **task: Any) -> HarborEnvironment:
    """Make an environment as Harbor does, by its import path."""
    socket = settings("container")["socket_path"]
    options = task.pop("options", {})
    (place / "environment").mkdir(parents=True, exist_ok=True)
    paths = TrialPaths(place / "trial")
    paths.mkdir()  # type: ignore[no-untyped-call]
    made = EnvironmentFactory.create_environment_from_import_path(
        IMPORT_PATH,
        environment_dir=place / "environment",
        environment_name="test",
        session_id="test__1",
        trial_paths=paths,
        task_env_config=EnvironmentConfig(**{"docker_image": IMAGE, **task}),
        network_policy=policy,
        **{"container": {"socket_path": socket}, **options},
    )
    assert isinstance(made, HarborEnvironment)
    return made


@pytest.fixture
async def environment(own_places: Path, tmp_path: Path) -> AsyncIterator[HarborEnvironment]:
    made = make(tmp_path, env={"OF_TASK": "task"})
    await made.start(force_build=False)
    yield made
    await made.stop(delete=True)


async def test_commands(environment: HarborEnvironment) -> None:
    found = await environment.exec(
        'pwd; echo "$OF_TASK $MINE"; echo bad >&2; exit 3', env={"MINE": "$(id)"}
    )
    assert (found.stdout, found.stderr, found.return_code) == (
        *("/workspace\ntask $(id)\n", "bad\n"),
        3,
    )
    assert (await environment.exec("pwd", cwd="/tmp")).stdout == "/tmp\n"
    assert (await environment.exec("nonsense-of-mine")).return_code == 127
    with environment.scoped_exec_env({"MINE": "scoped"}):
        assert (await environment.exec("echo $MINE")).stdout == "scoped\n"


async def test_a_timeout_is_a_result(environment: HarborEnvironment) -> None:
    found = await environment.exec("echo out; echo err >&2; sleep 60", timeout_sec=4)
    assert (found.stdout, found.return_code) == ("out\n", 124)
    assert found.stderr == "err\n[TIMEOUT: command exceeded time limit]\n"
    with pytest.raises(CommandError):
        await environment.exec("true", timeout_sec=-1)


async def test_output_is_bounded_and_told(environment: HarborEnvironment) -> None:
    found = await environment.exec("head -c 20000000 /dev/zero | tr '\\0' x")
    assert len(found.stdout or "") == 16 * 1024 * 1024
    assert "[cut: of 20000000 bytes of stdout" in (found.stderr or "")


async def test_output_as_it_comes(environment: HarborEnvironment) -> None:
    heard: list[tuple[str, str]] = []

    async def hear(text: str, stream: str) -> None:
        heard.append((text, stream))

    with environment.scoped_output_callback(hear):
        await environment.exec("echo 1; sleep 0.2; echo 2 >&2")
    assert heard == [("1\n", "stdout"), ("2\n", "stderr")]


async def test_there_is_one_user(environment: HarborEnvironment) -> None:
    uid = (await environment.exec("id -u")).stdout
    assert uid == (await environment.exec("id -u", user="root")).stdout == "65534\n"
    with pytest.raises(UnsupportedError, match="'agent'"):
        await environment.exec("true", user="agent")
    with environment.with_default_user("agent"), pytest.raises(UnsupportedError):
        await environment.exec("true")


async def test_directories_of_harbor(environment: HarborEnvironment) -> None:
    for path in ("/logs", "/tests", "/solution"):
        assert await environment.is_dir(path)
    done = await environment.ensure_dirs(["/logs/agent", "/logs/verifier"])
    assert done is not None
    assert done.return_code == 0
    assert await environment.is_dir("/logs/verifier")
    found = await environment.exec(
        "printf '#!/bin/sh\\necho ran' > /tests/t; chmod +x /tests/t; /tests/t"
    )
    assert found.stdout == "ran\n"
    assert (await environment.exec("touch /etc/x")).return_code != 0
    emptied = await environment.empty_dirs(["/tests"])
    assert emptied is not None
    assert emptied.return_code == 0
    assert (await environment.exec("ls -A /tests")).stdout == ""


@pytest.mark.parametrize("where", ["/workspace/in", "/logs/agent/in", "in"])
async def test_files_go_in_and_out(
    environment: HarborEnvironment, tmp_path: Path, where: str
) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "sub" / "x.bin").write_bytes(bytes(range(256)) * 9000)
    (source / "link").symlink_to("run.sh")
    await environment.upload_dir(source, where)
    assert (await environment.exec(f"cd {where} && ./link")).stdout == "ran\n"
    assert await environment.is_file(f"{where}/sub/x.bin")
    await environment.exec(f"ln -s /etc {where}/out; ln -s ../../x {where}/up; mkfifo {where}/fifo")
    await environment.download_dir(where, tmp_path / "got")
    got = tmp_path / "got"
    assert sorted(path.name for path in got.iterdir()) == ["link", "run.sh", "sub"]
    assert (got / "sub" / "x.bin").read_bytes() == (source / "sub" / "x.bin").read_bytes()
    assert (got / "sub" / "empty").is_dir()
    assert os.readlink(got / "link") == "run.sh"
    assert stat.S_IMODE((got / "run.sh").stat().st_mode) & 0o100

    await environment.upload_file(source / "run.sh", f"{where}/deep/er/copy.sh")
    ran = await environment.exec("./copy.sh", cwd=f"{where}/deep/er")
    assert ran.stdout == "ran\n"
    await environment.download_file(f"{where}/deep/er/copy.sh", tmp_path / "new" / "copy.sh")
    assert (tmp_path / "new" / "copy.sh").read_text() == "#!/bin/sh\necho ran\n"


async def test_downloads_with_patterns(environment: HarborEnvironment, tmp_path: Path) -> None:
    await environment.exec("mkdir -p /logs/d/e; echo 1 > /logs/d/a.txt; echo 2 > /logs/d/e/b.log")
    await environment.download_dir_with_exclusions(
        source_dir="/logs/d", target_dir=tmp_path / "one", exclude=["*.log"]
    )
    assert [path.name for path in (tmp_path / "one").rglob("*.*")] == ["a.txt"]


async def test_files_that_can_not_be_had(environment: HarborEnvironment, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await environment.download_file("/logs/nothing", tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        await environment.download_dir("/logs/nothing", tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        await environment.upload_file(tmp_path / "nothing", "/workspace/x")
    with pytest.raises(FileNotFoundError):
        await environment.upload_dir(tmp_path / "nothing", "/workspace/x")
    with pytest.raises(IsADirectoryError):
        await environment.download_file("/logs", tmp_path / "x")
    await environment.exec("mkfifo /logs/fifo fifo")
    for fifo in ("/logs/fifo", "fifo"):
        with pytest.raises(OSError, match="regular file"):
            await environment.download_file(fifo, tmp_path / "x")
    (tmp_path / "file").write_text("1")
    with pytest.raises(OSError, match="/usr"):
        await environment.upload_file(tmp_path / "file", "/usr/x")
    assert not (tmp_path / "x").exists()


async def test_a_stream_that_is_no_archive(
    environment: HarborEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a program could make it that writes to the output of the sandbox's tar."""

    async def forged(*_: object) -> io.BytesIO:
        return io.BytesIO(b"x" * 10_000)

    monkeypatch.setattr("ringfence.adapters.harbor_files.collected", forged)
    with pytest.raises(WorkspaceError, match="no archive"):
        await environment.download_dir("/logs", tmp_path / "x")


async def test_places_have_a_number_of_files(environment: HarborEnvironment) -> None:
    code = "for n in range(60_000): open(f'/logs/f{n}', 'w').close()"
    found = await environment.exec(f'python3 -c "{code}"; ls /logs | wc -l')
    assert "No space left" in (found.stderr or "")
    assert 40_000 < int(found.stdout or "") < 50_000


async def test_the_files_of_the_task_are_there(own_places: Path, tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    (tmp_path / "environment" / "data.csv").write_text("1,2\n")
    made = make(tmp_path, workdir="/workspace/work")
    await made.start(force_build=False)
    try:
        assert (await made.exec("pwd; cat data.csv")).stdout == "/workspace/work\n1,2\n"
    finally:
        await made.stop(delete=False)


async def test_limits_of_the_task(own_places: Path, tmp_path: Path) -> None:
    made = make(tmp_path, cpus=0.5, memory_mb=256, storage_mb=16)
    await made.start(force_build=False)
    try:
        assert made._sandbox is not None
        limits = made._sandbox.limits
        assert (limits.cpus, limits.memory_bytes) == (0.5, 256 * 1024 * 1024)
        assert limits.max_timeout == limits.max_age == 6 * 3600.0
        full = await made.exec("head -c 20000000 /dev/zero > big")
        assert full.return_code != 0
        assert (await made.exec("cat /proc/net/route | wc -l")).stdout == "1\n"  # no network
    finally:
        await made.stop(delete=True)


async def test_its_life(own_places: Path, tmp_path: Path) -> None:
    made = make(tmp_path)
    for _ in range(2):
        with pytest.raises(SandboxClosedError):
            await made.exec("true")
        await made.start(force_build=False)
        assert made._sandbox is not None
        name = made._sandbox.id
        assert name in containers()
        await made.stop(delete=True)
        await made.stop(delete=True)
        assert name not in containers()


def containers() -> str:
    done = subprocess.run(
        ["docker", "-H", Engine().address, "ps", "-a", "--format", "{{.Names}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


async def test_a_start_that_fails_leaves_nothing(
    own_places: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path)
    names: list[str] = []

    async def failing() -> None:
        assert made._sandbox is not None
        names.append(made._sandbox.id)
        raise OSError("for the test")

    monkeypatch.setattr(made, "_upload_environment_dir_after_start", failing)
    with pytest.raises(OSError, match="for the test"):
        await made.start(force_build=False)
    assert names[0] not in containers()


async def test_what_a_task_can_not_ask_for(own_places: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="no finished image"):
        make(tmp_path, docker_image=None)
    assert make(tmp_path, docker_image=None, options={"image": IMAGE})._image == IMAGE
    with pytest.raises(UnsupportedError, match="/app"):
        make(tmp_path, workdir="/app")
    with pytest.raises(RuntimeError, match="GPU"):
        make(tmp_path, gpus=1)
    hosts = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["example.com"])
    with pytest.raises(ValueError, match="allowlist"):
        make(tmp_path, policy=hosts)
    with pytest.raises(ValueError, match="place_mb"):
        make(tmp_path, options={"place_mb": 0})
    with pytest.raises(ValueError, match="nonsense"):
        make(tmp_path, options={"nonsense": 1})
    assert "network" in HarborEnvironment.options_schema()["properties"]


@pytest.mark.timeout(150)
def test_a_whole_trial(own_places: Path, tmp_path: Path) -> None:
    """The example: Harbor's own program, with its oracle for an agent."""
    done = subprocess.run(
        [sys.executable, EXAMPLE, IMAGE],
        cwd=tmp_path,
        env={
            **os.environ,
            "DOCKER_HOST": Engine().address,
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is looked for in the network
            "HARBOR_TELEMETRY": "0",
        },
        capture_output=True,
        text=True,
        timeout=140,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("rewards: {'reward': 1.0}\n")
