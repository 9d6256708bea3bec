"""Values are checked when they are made."""

from __future__ import annotations

import json
import math
import os
import pickle
from collections.abc import AsyncIterator
from dataclasses import FrozenInstanceError, fields
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence import (
    Capabilities,
    Command,
    CommandError,
    CommandFailedError,
    CommandTimedOutError,
    ConfigError,
    Enforced,
    Enforcement,
    ExitReason,
    FileInfo,
    FileKind,
    Isolation,
    LimitError,
    Limits,
    Listing,
    Mount,
    Result,
    SandboxSpec,
    shell,
)
from ringfence.models import new_sandbox_id

NO_NUL = st.binary(max_size=40).filter(lambda data: b"\0" not in data)
PROGRAM = NO_NUL.filter(bool)
NAME = st.text(min_size=1, max_size=20).filter(
    lambda name: not {"=", "\0"} & set(name) and _encodable(name)
)
BAD_SECONDS = (0, -1, -0.0, math.inf, -math.inf, math.nan, 10**400, True, "5", None, b"1")


def _encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


class TestCommand:
    @given(program=PROGRAM, args=st.lists(NO_NUL, max_size=5))
    def test_every_argument_arrives_byte_for_byte(self, program: bytes, args: list[bytes]) -> None:
        assert Command([program, *args]).argv_bytes == (program, *args)
        as_text = [os.fsdecode(arg) for arg in (program, *args)]
        assert Command(as_text).argv_bytes == (program, *args)

    @given(before=st.lists(PROGRAM, min_size=1), bad=NO_NUL, after=NO_NUL)
    def test_nul_is_refused_wherever_it_stands(
        self, before: list[bytes], bad: bytes, after: bytes
    ) -> None:
        nul = bad + b"\0" + after
        settings: tuple[dict[str, Any], ...] = (
            {"argv": [*before, nul]},
            {"argv": before, "env": {"A": nul}},
            {"argv": before, "env": {os.fsdecode(nul): "1"}},
            {"argv": before, "cwd": nul},
            {"argv": before, "fallback": os.fsdecode(nul)},
        )
        for setting in settings:
            with pytest.raises(CommandError, match="NUL"):
                Command(**setting)

    @pytest.mark.parametrize("argv", ["ls -l", b"ls", [], [""], ["", "x"], [b""], None, 5])
    def test_an_argv_that_names_no_program_is_refused(self, argv: Any) -> None:
        with pytest.raises(CommandError):
            Command(argv)

    @pytest.mark.parametrize("argument", [None, 5, ["x"], 1.5, bytearray(b"x")])
    def test_an_argument_that_is_no_text_is_refused(self, argument: Any) -> None:
        with pytest.raises(CommandError, match=r"argv\[1\] must be"):
            Command(["x", argument])

    def test_an_argument_outside_of_utf8_is_refused_or_kept(self) -> None:
        assert Command(["x", "\udcff"]).argv_bytes[1] == b"\xff"
        with pytest.raises(CommandError, match="UTF-8"):
            Command(["x", "\ud800"])

    def test_paths_are_arguments_too(self) -> None:
        command = Command([PurePosixPath("/bin/ls"), ""], cwd=PurePosixPath("/workspace"))
        assert (command.argv_bytes, command.cwd_bytes) == ((b"/bin/ls", b""), b"/workspace")

    @given(env=st.dictionaries(NAME, NO_NUL, max_size=4))
    def test_variables_arrive_byte_for_byte(self, env: dict[str, bytes]) -> None:
        command = Command(["x"], env=env)
        assert command.env_bytes == tuple((os.fsencode(k), v) for k, v in env.items())

    @pytest.mark.parametrize("name", ["", "A=B", "=", None, 5])
    def test_a_bad_name_of_a_variable_is_refused(self, name: Any) -> None:
        with pytest.raises(CommandError, match=r"name of a variable|variable's name"):
            Command(["x"], env={name: "1"})

    @pytest.mark.parametrize("timeout", [value for value in BAD_SECONDS if value is not None])
    def test_a_timeout_that_is_no_positive_number_is_refused(self, timeout: Any) -> None:
        with pytest.raises(CommandError, match="timeout must be"):
            Command(["x"], timeout=timeout)

    @given(st.floats(min_value=0, exclude_min=True, allow_infinity=False) | st.integers(1, 10**300))
    def test_any_positive_number_is_a_timeout(self, timeout: float) -> None:
        assert Command(["x"], timeout=timeout).timeout == timeout

    @pytest.mark.parametrize("cap", [-1, True, 1.5, "1"])
    def test_a_bad_cap_is_refused(self, cap: Any) -> None:
        with pytest.raises(CommandError, match="output_bytes must be"):
            Command(["x"], output_bytes=cap)

    def test_a_cap_of_zero_is_one(self) -> None:
        assert Command(["x"], output_bytes=0).output_bytes == 0

    @pytest.mark.parametrize("leftovers", ["", "KILL", None, True])
    def test_bad_leftovers_are_refused(self, leftovers: Any) -> None:
        with pytest.raises(CommandError, match="leftovers must be"):
            Command(["x"], leftovers=leftovers)

    @pytest.mark.parametrize("stdin", [5, [b"x"], bytearray(b"x"), iter([b"x"])])
    def test_a_stdin_that_is_no_stream_is_refused_with_the_mend(self, stdin: Any) -> None:
        with pytest.raises(CommandError, match=r"feed\(\)"):
            Command(["x"], stdin=stdin)

    def test_text_for_stdin_that_is_no_utf8_is_refused(self) -> None:
        with pytest.raises(CommandError, match="UTF-8"):
            Command(["x"], stdin="a\ud800")

    def test_every_kind_of_stdin_is_taken(self) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"x"

        for stdin in (None, b"", "text", pieces()):
            assert Command(["x"], stdin=stdin).stdin is stdin

    def test_it_is_frozen(self) -> None:
        with pytest.raises(FrozenInstanceError):
            Command(["x"]).timeout = 5  # type: ignore[misc]

    def test_shell_passes_the_script_as_one_argument(self) -> None:
        command = shell("echo 'a  b'; exit 3", timeout=5, cwd="/workspace/x", env={"A": "1"})
        assert command.argv_bytes == (b"bash", b"-c", b"echo 'a  b'; exit 3")
        assert (command.fallback, command.timeout, command.cwd) == ("sh", 5, "/workspace/x")
        assert command.env_bytes == ((b"A", b"1"),)


LIMIT_NAMES = [item.name for item in fields(Limits)]
WHOLE = [item.name for item in fields(Limits) if "int" in str(item.type)]
LIMITS = st.builds(
    Limits,
    **{
        name: st.none() | (st.integers(1, 2**40) if name in WHOLE else st.floats(0.001, 1e9))
        for name in LIMIT_NAMES
    },
)


class TestLimits:
    @pytest.mark.parametrize("name", LIMIT_NAMES)
    @pytest.mark.parametrize("value", [value for value in BAD_SECONDS if value is not None])
    def test_what_is_no_positive_number_is_refused_by_name(self, name: str, value: Any) -> None:
        with pytest.raises(LimitError, match=name) as caught:
            Limits(**{name: value})
        assert caught.value.limit == name

    @pytest.mark.parametrize("name", WHOLE)
    def test_a_fraction_is_refused_where_things_are_counted(self, name: str) -> None:
        with pytest.raises(LimitError):
            Limits(**{name: 1.5})  # type: ignore[arg-type]

    @given(mine=LIMITS, other=LIMITS)
    def test_over_takes_what_is_open_from_the_other(self, mine: Limits, other: Limits) -> None:
        both = mine.over(other)
        for name in LIMIT_NAMES:
            own = getattr(mine, name)
            assert getattr(both, name) == (getattr(other, name) if own is None else own)

    @given(first=LIMITS, second=LIMITS, third=LIMITS)
    def test_over_may_be_grouped_in_any_way(
        self, first: Limits, second: Limits, third: Limits
    ) -> None:
        assert first.over(second).over(third) == first.over(second.over(third))

    @given(LIMITS)
    def test_asked_names_what_is_set(self, limits: Limits) -> None:
        assert limits.asked() == {name for name in LIMIT_NAMES if getattr(limits, name) is not None}

    def test_missing_names_what_nobody_would_hold(self) -> None:
        enforced = Enforced(memory_bytes=Enforcement.ENFORCED, cpus=Enforcement.PER_PROCESS)
        asked = Limits(memory_bytes=1, cpus=1, pids=1, tmp_bytes=1, timeout=1).asked()
        assert enforced.missing(asked) == ("pids", "tmp_bytes")

    def test_every_limit_that_the_kernel_must_hold_is_one(self) -> None:
        assert {item.name for item in fields(Enforced)} <= set(LIMIT_NAMES)


class TestSpec:
    @pytest.mark.parametrize("path", ["", "a", "./a", "/a/../b", "/a/", "/a//b", "/a\0"])
    def test_a_mount_needs_a_plain_absolute_path(self, path: str) -> None:
        with pytest.raises(ConfigError, match="source"):
            Mount(path)
        if path:
            with pytest.raises(ConfigError, match="target"):
                Mount("/a", path)

    def test_a_mount_appears_at_its_own_path(self) -> None:
        assert Mount("/opt/data").target == "/opt/data"

    @pytest.mark.parametrize("env", [{"": "x"}, {"A=": "x"}, {"A": "\0"}])
    def test_a_bad_variable_is_refused(self, env: dict[str, str]) -> None:
        with pytest.raises(CommandError):
            SandboxSpec(env=env)

    @pytest.mark.parametrize("labels", [{"": "x"}, {"-a": "x"}, {"a": "\0"}, {"a": "x" * 257}])
    def test_a_bad_label_is_refused(self, labels: dict[str, str]) -> None:
        with pytest.raises(ConfigError):
            SandboxSpec(labels=labels)

    @pytest.mark.parametrize("value", [None, 5, b"x"])
    def test_a_label_is_a_text(self, value: Any) -> None:
        with pytest.raises(ConfigError):
            SandboxSpec(labels={"a": value})

    def test_labels_may_have_a_prefix(self) -> None:
        spec = SandboxSpec(labels={"ringfence.session/x_1": "", "a": "x" * 256})
        assert spec.network is None

    def test_ids_are_unique_and_short(self) -> None:
        ids = {new_sandbox_id() for _ in range(1000)}
        assert len(ids) == 1000
        assert all(name.startswith("rf-") and len(name) == 15 for name in ids)


def result(**changes: Any) -> Result:
    values = {"stdout": b"", "stderr": b"", "exit_code": 0, "exit_reason": ExitReason.EXITED}
    return Result(**{**values, **changes})


class TestResult:
    def test_a_program_that_succeeded_passes_the_check(self) -> None:
        done = result()
        assert done.ok
        assert done.check() is done

    @pytest.mark.parametrize("code", [1, 127, 255])
    def test_a_program_that_failed_does_not(self, code: int) -> None:
        done = result(exit_code=code, stderr=b"why")
        with pytest.raises(CommandFailedError, match=f"exit code {code}") as caught:
            done.check()
        assert caught.value.result is done
        assert not isinstance(caught.value, TimeoutError)

    def test_the_error_of_a_check_can_be_pickled(self) -> None:
        error = CommandFailedError("command failed", result(exit_code=3))
        twin = pickle.loads(pickle.dumps(error))
        assert (str(twin), twin.result) == (str(error), error.result)

    @pytest.mark.parametrize("timeout", [2.5, None])
    def test_a_program_that_ran_out_of_time_raises_a_timeout(self, timeout: float | None) -> None:
        done = result(exit_code=124, exit_reason=ExitReason.TIMED_OUT, timeout=timeout)
        assert done.timed_out
        with pytest.raises(CommandTimedOutError) as caught:
            done.check()
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, CommandFailedError)

    def test_the_exit_code_alone_makes_no_timeout(self) -> None:
        """Catches a program that exits with 124 or 137 by itself being taken for something else."""
        assert not result(exit_code=124).timed_out
        assert not result(exit_code=137).out_of_memory
        assert not result(exit_code=0, exit_reason=ExitReason.OUT_OF_MEMORY).ok

    def test_what_was_cut_is_said_for_each_stream(self) -> None:
        done = result(stdout=b"ab", stdout_bytes=2, stderr=b"ab", stderr_bytes=3)
        assert (done.stdout_truncated, done.stderr_truncated) == (False, True)

    def test_text_shows_what_is_not_utf8(self) -> None:
        done = result(stdout=b"a\xffb", stderr="é".encode())
        assert (done.stdout_text, done.stderr_text) == ("a\N{REPLACEMENT CHARACTER}b", "é")

    @given(stdout=st.binary(), stderr=st.binary())
    def test_it_is_json(self, stdout: bytes, stderr: bytes) -> None:
        done = result(stdout=stdout, stderr=stderr, stdout_bytes=len(stdout) + 1, timeout=30.0)
        found = json.loads(json.dumps(done.to_dict()))
        assert found["stdout"] == stdout.decode("utf-8", "replace")
        assert found["stderr"] == stderr.decode("utf-8", "replace")
        assert (found["exit_code"], found["exit_reason"]) == (0, "exited")
        assert found["stdout_truncated"] is True
        assert set(found["enforced"].values()) == {"none"}


def test_a_listing_says_that_it_is_cut() -> None:
    entry = FileInfo("a", FileKind.FILE, 1, 0o644, 0.0)
    assert Listing((entry,), 2).truncated
    assert not Listing((entry,), 1).truncated


def test_levels_of_isolation_are_ordered() -> None:
    order = [Isolation.NONE, Isolation.PROCESS, Isolation.NAMESPACE, Isolation.CONTAINER]
    order += [Isolation.GVISOR, Isolation.KATA, Isolation.POD]
    assert sorted(order, reverse=True) == order[::-1]
    assert Capabilities(Isolation.NONE).network_modes == ("none",)
