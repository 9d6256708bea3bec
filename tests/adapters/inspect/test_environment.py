"""What Inspect's own checks don't look at: tasks, settings, limits, ends and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, Solver, TaskState, generate, solver, use_tools
from inspect_ai.tool import Tool, tool
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandbox,
)
from inspect_ai.util._sandbox import self_check

from ringfence import inventory
from ringfence.adapters import inspect as adapter
from ringfence.adapters.inspect import RingfenceSandboxEnvironment
from ringfence.config import BackendConfig
from ringfence.errors import ConfigError

from ..backends import on_each_backend, settings
from . import test_self_check

pytestmark = pytest.mark.timeout(120)
in_the_loop = pytest.mark.asyncio(loop_scope="session")

MODEL = "mockllm/model"


def test_all_of_inspects_checks_are_collected() -> None:
    theirs = {name for name in vars(self_check) if name.startswith("test_")}
    assert theirs
    assert theirs <= set(vars(test_self_check))


@tool
def look() -> Tool:
    async def execute() -> str:
        """Leave a file, and say what else there is."""
        script = "ls -d x 2>/dev/null; touch x; wc -l < in/numbers"
        return (await sandbox().exec(["sh", "-c", script])).stdout

    return execute


def run(task: Task, logs: Path, *outputs: ModelOutput) -> EvalLog:
    for output in outputs:
        output.usage = ModelUsage()
    model = get_model(MODEL, custom_outputs=outputs)
    (log,) = evaluate(
        task,
        model=model,
        log_dir=str(logs),
        display="none",
        max_samples=1,  # they share what the model says
    )
    return log


@on_each_backend
def test_a_task_runs_its_tools_in_a_sandbox_of_its_own(backend: str, tmp_path: Path) -> None:
    config = BackendConfig.parse(settings(backend))
    task = Task(
        dataset=[
            Sample(input="?", files={"in/numbers": "1\n2\n3\n"}, target="3", id=number)
            for number in (1, 2)
        ],
        solver=[use_tools(look()), generate()],
        scorer=includes(),
        sandbox=SandboxEnvironmentSpec("ringfence", config),
    )
    outputs = [
        output
        for _ in range(2)
        for output in (
            ModelOutput.for_tool_call(MODEL, "look", {}),
            ModelOutput.from_content(MODEL, "3"),
        )
    ]
    log = run(task, tmp_path, *outputs)
    assert log.status == "success", log.error
    assert log.samples
    tools = [m.text for sample in log.samples for m in sample.messages if m.role == "tool"]
    assert tools == ["3\n", "3\n"]  # no sample saw the file of another
    assert [found for found in inventory.scan() if found.alive] == []
    assert adapter._shared == {}


@solver
def remote() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        done = await sandbox().exec_remote(["sh", "-c", "echo said; exit 3"], stream=False)
        state.output = ModelOutput.from_content(MODEL, f"{done.returncode} {done.stdout}")
        return state

    return solve


@on_each_backend
def test_inspects_own_tools_run_inside(backend: str, tmp_path: Path) -> None:
    given = settings(backend) | {"cpus": 2.0}
    if backend == "container":
        given["tmpfs"] = {"/var/tmp": "size=64m,exec,mode=1777"}
    spec = SandboxEnvironmentSpec("ringfence", BackendConfig.parse(given))
    log = run(Task(dataset=[Sample(input="?")], solver=remote(), sandbox=spec), tmp_path)
    assert log.status == "success", log.error
    assert log.samples
    assert log.samples[0].output.completion == "3 said\n"


def test_a_task_names_its_backend(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('backend = "bubblewrap"\npids = 40\n', "utf-8")
    for given in ("bubblewrap", str(file)):
        task = Task(dataset=[Sample(input="?")], sandbox=("ringfence", given))
        log = run(task, tmp_path, ModelOutput.from_content(MODEL, "."))
        assert log.status == "success", log.error


def test_a_config_survives_a_log(tmp_path: Path) -> None:
    config = BackendConfig(backend="bubblewrap", pids=50)
    spec = SandboxEnvironmentSpec("ringfence", config)
    assert SandboxEnvironmentSpec.model_validate(json.loads(spec.model_dump_json())) == spec


@pytest.mark.parametrize(
    ("config", "says"),
    [("docler", "unknown backend 'docler'"), ("missing.toml", "missing.toml")],
)
@in_the_loop
async def test_a_bad_config_is_refused_before_anything_starts(config: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        await RingfenceSandboxEnvironment.task_init("task", config)


@in_the_loop
async def test_output_past_the_limit_is_an_error_with_what_there_was(
    sample: SandboxEnvironment,
) -> None:
    with pytest.raises(OutputLimitExceededError, match="10 MiB") as caught:
        await sample.exec(["head", "-c", "11000000", "/dev/zero"])
    assert len(caught.value.truncated_output or "") == 10 << 20


@in_the_loop
async def test_nobody_else_than_the_sandboxs_user_can_be_named(sample: SandboxEnvironment) -> None:
    uid = (await sample.exec(["id", "-u"])).stdout.strip()
    assert (await sample.exec(["id", "-u"], user=uid)).stdout.strip() == uid
    with pytest.raises(SandboxUserUnsupportedError, match="root"):
        await sample.exec(["id"], user="root")


@in_the_loop
async def test_a_directory_that_is_not_there_is_a_failure(sample: SandboxEnvironment) -> None:
    for cwd in ("nowhere", "/nowhere"):
        result = await sample.exec(["true"], cwd=cwd)
        assert (result.success, result.returncode) == (False, 126)
        assert "nowhere" in result.stderr


@in_the_loop
async def test_files_outside_of_the_workspace_have_the_same_errors(
    sample: SandboxEnvironment,
) -> None:
    with pytest.raises(FileNotFoundError, match="/tmp/none"):
        await sample.read_file("/tmp/none")
    with pytest.raises(PermissionError):
        await sample.write_file("/usr/bin/new", "text")
    with pytest.raises(NotADirectoryError):
        await sample.write_file("/etc/passwd/below", "text")
    await sample.write_file("/tmp/odd 'name'\n", b"\x00\xff")
    assert await sample.read_file("/tmp/odd 'name'\n", text=False) == b"\x00\xff"
    with pytest.raises(UnicodeDecodeError):
        await sample.read_file("/tmp/odd 'name'\n")
    await sample.exec(["mkfifo", "/tmp/fifo"])
    with pytest.raises(OSError, match="fifo"):
        await sample.read_file("/tmp/fifo")


@on_each_backend
@in_the_loop
async def test_one_that_is_gone_is_unavailable(backend: str) -> None:
    config, before = BackendConfig.parse(settings(backend)), dict(adapter._shared)
    environments = await RingfenceSandboxEnvironment.sample_init("task", config, {})
    environment = environments["default"].as_type(RingfenceSandboxEnvironment)
    if backend == "container":
        connection = await environment.connection()
        assert connection.container == environment._sandbox.id
        assert f"exec -it {connection.container}" in connection.command
    else:
        with pytest.raises(NotImplementedError, match=backend):
            await environment.connection()
    await environment._sandbox._destroy("killed by a test")
    with pytest.raises(SandboxUnavailableError, match="killed by a test"):
        await environment.exec(["true"])
    with pytest.raises(SandboxUnavailableError):
        await environment.read_file("x")
    await RingfenceSandboxEnvironment.sample_cleanup("task", config, environments, True)
    assert adapter._shared == before


@in_the_loop
async def test_what_live_processes_have_stays(sample: SandboxEnvironment) -> None:
    await RingfenceSandboxEnvironment.cli_cleanup(None)
    assert (await sample.exec(["true"])).success
