"""The conformance suite itself: a check that can't fail is worth nothing.

Each case breaks the process backend in one way, and names a check that has to notice.
"""

from __future__ import annotations

import gc
import heapq
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from ringfence import execution, host_files, host_paths
from ringfence.backend import Sandbox
from ringfence.backends import _portable, _portable_process
from ringfence.backends._portable import PortableSandbox
from ringfence.backends._portable_process import PortableProcess
from ringfence.backends.fake import FakeBackend
from ringfence.backends.process import ProcessBackend
from ringfence.config import ProcessConfig
from ringfence.errors import BackendUnavailableError, ConfigError, SandboxError
from ringfence.models import Exit, Probe, Stream
from ringfence.process import Launch
from ringfence.testing import (
    CHECKS,
    REQUIRED_VARIABLE,
    CheckFailedError,
    Conformance,
    Context,
    NotApplicable,
    perform,
    run,
)
from ringfence.testing._conformance import FAILURES

BY_NAME = {check.name: check for check in CHECKS}
Break = Callable[[pytest.MonkeyPatch], None]


def broken() -> ProcessBackend:
    return ProcessBackend(ProcessConfig(portable=True))


def _launches(change: Callable[[Launch], Launch]) -> Break:
    """Start other commands than those that were asked for."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        whole = PortableSandbox._start

        async def start(self: PortableSandbox, launch: Launch) -> PortableProcess:
            return await whole(self, change(launch))

        patch.setattr(PortableSandbox, "_start", start)

    return apply


def _commands(change: Callable[[Any], dict[str, Any]]) -> Break:
    def changed(launch: Launch) -> Launch:
        return replace(launch, command=replace(launch.command, **change(launch.command)))

    return _launches(changed)


def _ends(change: Callable[[Exit], Exit]) -> Break:
    """Say something else about how a command ended."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        whole = PortableProcess.wait

        async def wait(self: PortableProcess) -> Exit:
            return change(await whole(self))

        patch.setattr(PortableProcess, "wait", wait)

    return apply


def _sets(target: object, name: str, value: object) -> Break:
    return lambda patch: patch.setattr(target, name, value)


def _follows_links(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(host_paths, "_DIRECTORY", os.O_RDONLY | os.O_DIRECTORY)
    patch.setattr(host_files, "_REGULAR", os.O_NONBLOCK)
    patch.setattr(host_files, "_refuse_special", lambda *_: None)


def _gives_the_host_s_environment(patch: pytest.MonkeyPatch) -> None:
    whole = PortableSandbox._environment

    def environment(self: PortableSandbox, launch: Launch) -> dict[bytes, bytes]:
        return dict(os.environb) | whole(self, launch)

    patch.setattr(PortableSandbox, "_environment", environment)


def _blocks_the_loop(patch: pytest.MonkeyPatch) -> None:
    async def in_place(self: PortableSandbox, work: Callable[..., Any], *args: Any) -> Any:
        time.sleep(2)
        return work(*args)

    patch.setattr(PortableSandbox, "_in_thread", in_place)


def _adds_a_newline(patch: pytest.MonkeyPatch) -> None:
    whole = host_files.write_file

    def write_file(root: str, path: bytes, data: bytes, mode: int | None, append: bool) -> None:
        whole(root, path, data + b"\n", mode, append)

    patch.setattr(host_files, "write_file", write_file)


def _never_finds_a_program(patch: pytest.MonkeyPatch) -> None:
    async def spawn(*_: object) -> PortableProcess:
        raise SandboxError("no such file")

    patch.setattr(_portable, "spawn", spawn)


def _loses_a_byte(patch: pytest.MonkeyPatch) -> None:
    whole = PortableProcess.data

    def data(self: PortableProcess, stream: Stream, data: bytes) -> None:
        whole(self, stream, data[:-1])

    patch.setattr(PortableProcess, "data", data)


async def _nothing(*_: object) -> None:
    return None


FAULTS: dict[str, tuple[str, Break]] = {
    "loses empty arguments": (
        "arguments_arrive_byte_for_byte",
        _commands(lambda command: {"argv": [word for word in command.argv_bytes if word]}),
    ),
    "cuts variables at a newline": (
        "environment_values_arrive_byte_for_byte",
        _commands(lambda command: {"env": {k: v[:3] for k, v in command.env_bytes}}),
    ),
    "raises for a missing program": ("a_command_that_is_not_found_is_127", _never_finds_a_program),
    "negative codes for signals": (
        "death_by_signal_is_128_and_its_number",
        _ends(lambda end: replace(end, code=128 - end.code if end.code > 128 else end.code)),
    ),
    "takes 137 for a signal": (
        "codes_above_128_are_not_taken_for_signals",
        _ends(lambda end: replace(end, code=min(end.code, 128))),
    ),
    "waits for the pipes": (
        "a_leftover_that_holds_the_pipes_delays_nothing",
        _sets(_portable_process, "_DRAIN_QUIET", 4.0),
    ),
    "loses a byte of output": ("all_that_was_printed_before_the_end_is_kept", _loses_a_byte),
    "cuts the output without a word": (
        "the_cap_is_exact",
        _launches(lambda launch: replace(launch, output_bytes=(launch.output_bytes or 1) - 1)),
    ),
    "forgets leftovers='kill'": (
        "leftovers_die_if_the_command_says_so",
        _commands(lambda command: {"leftovers": "keep"}),
    ),
    "kills every left-over": (
        "leftovers_live_on_in_a_live_sandbox",
        _commands(lambda command: {"leftovers": "kill"}),
    ),
    "has no grace": (
        "a_deadline_gives_a_short_grace",
        _sets(signal, "SIGTERM", signal.SIGKILL),
    ),
    "does not clamp": ("timeouts_are_clamped_visibly", _sets(Sandbox, "_clamp", lambda _, t: t)),
    "leaves cancelled commands": (
        "cancelling_the_caller_kills_the_command",
        _sets(execution.Run, "_stop", _nothing),
    ),
    "adds a newline to files": ("content_is_kept_exactly", _adds_a_newline),
    "follows links": ("links_lead_nowhere_outside", _follows_links),
    "does not sort": (
        "listings_are_sorted_and_say_when_they_are_cut",
        _sets(heapq, "nsmallest", lambda most, names: list(names)[:most][::-1]),
    ),
    "blocks the loop": ("files_that_are_no_files_never_block", _blocks_the_loop),
    "leaks the host's environment": (
        "the_host_s_environment_stays_outside",
        _gives_the_host_s_environment,
    ),
    "leaves files behind": (
        "cancelled_closings_end_all_the_same",
        _sets(host_files, "remove_tree", lambda path: None),
    ),
    "never answers a ping": (
        "a_ping_is_answered_beside_a_command",
        _sets(Sandbox, "_ping", lambda _: anyio.sleep_forever()),
    ),
    "takes a closed sandbox for alive": (
        "using_a_closed_sandbox_is_a_typed_error",
        _sets(Sandbox, "_ping", _nothing),
    ),
    "ends a sandbox only once asked": (
        "a_sandbox_ends_at_its_maximum_age",
        _sets(_portable, "_too_old", lambda held: None),
    ),
}


@contextmanager
def leaks_forgiven() -> Iterator[None]:
    """Let what a broken backend leaves open be collected here, and not in another test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            yield
        finally:
            gc.collect()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name, apply = FAULTS[fault]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # some faults leave files there
    apply(monkeypatch)
    with leaks_forgiven(), pytest.raises(FAILURES):  # soon: who waits for a fault is not patient
        anyio.run(partial(perform, broken, BY_NAME[name], patience=0.2))


@pytest.mark.parametrize(
    "name",
    [
        "programs_have_no_rights",
        "programs_are_not_root_on_the_host",
        "sockets_without_a_name_are_its_own",
        "there_is_no_network_but_its_own",
        "the_host_s_processes_are_not_there",
        "pid_1_can_t_be_killed_from_inside",
        "dangerous_system_calls_are_refused",
    ],
)
def test_a_backend_that_isolates_nothing_fails_the_checks_of_isolation(name: str) -> None:
    async def main() -> None:
        await perform(broken, BY_NAME[name], python="/usr/bin/python3", beyond=True)

    with pytest.raises(CheckFailedError):
        anyio.run(main)


def test_names_are_there_once_and_every_check_names_its_fault() -> None:
    assert len(BY_NAME) == len(CHECKS) >= 60
    for check in CHECKS:
        assert check.fault.endswith("."), check.name


def test_run_sorts_what_it_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    _adds_a_newline(monkeypatch)
    only = ["content_is_kept_exactly", "line_ends_are_left_alone", "programs_have_no_rights"]
    report = anyio.run(run, broken, only)
    assert report.passed == ["line_ends_are_left_alone"]
    assert list(report.failed) == ["content_is_kept_exactly"]
    assert report.not_applicable == {"programs_have_no_rights": "isolation >= namespace"}
    assert not report.ok
    assert "1 passed, 1 failed, 1 not applicable" in str(report)


def test_run_takes_topics_and_refuses_unknown_names() -> None:
    report = anyio.run(run, broken, ["paths"])
    assert report.ok
    with pytest.raises(ValueError, match="no such check or topic: nonsense"):
        anyio.run(run, broken, ["nonsense"])


def test_a_backend_that_can_t_run_is_one_error() -> None:
    def factory() -> ProcessBackend:
        return ProcessBackend(ProcessConfig(work_dir=Path("/no/such/directory")))

    with pytest.raises(ConfigError):
        anyio.run(run, factory)


def test_patience_is_for_the_whole_check() -> None:
    async def endless(_: Context) -> None:
        await anyio.sleep_forever()

    check = replace(BY_NAME["line_ends_are_left_alone"], timeout=0.001)
    with pytest.raises(CheckFailedError, match=r"within 0\.002 s"):
        anyio.run(partial(perform, broken, replace(check, function=endless), patience=2))
    anyio.run(partial(perform, broken, check, patience=30_000))


def test_an_unknown_deviation_is_refused() -> None:
    with pytest.raises(ValueError, match="no such check: nonsense"):
        Conformance("process", broken, deviations={"nonsense": "?"})


def test_a_check_that_does_not_apply_says_which_capability() -> None:
    with pytest.raises(NotApplicable, match="isolation >= namespace"):
        anyio.run(perform, broken, BY_NAME["programs_have_no_rights"])


def _unavailable() -> Conformance:
    def factory() -> FakeBackend:
        backend = FakeBackend()
        backend.open_error = BackendUnavailableError("nothing to run it with")
        backend.probe_result = Probe(False, "nothing to run it with")
        return backend

    return Conformance("absent", factory)


def test_a_backend_that_can_t_run_fails_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in (None, "process, absent"):
        if wanted is None:
            monkeypatch.delenv(REQUIRED_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(REQUIRED_VARIABLE, wanted)
        with pytest.raises(BackendUnavailableError, match="nothing to run it with"):
            _unavailable().verify(CHECKS[0])


def test_a_backend_that_is_not_required_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REQUIRED_VARIABLE, "process")
    with pytest.raises(pytest.skip.Exception, match="absent: it can't run here: nothing to run"):
        _unavailable().verify(CHECKS[0])


def test_a_deviation_that_does_not_apply_is_a_failure() -> None:
    suite = Conformance("process", broken, deviations={"programs_have_no_rights": "it is none"})
    with pytest.raises(pytest.fail.Exception, match="does not apply: isolation >= namespace"):
        suite.verify(BY_NAME["programs_have_no_rights"])


def test_deviations_and_attacks_are_marked() -> None:
    suite = Conformance("process", broken, deviations={"the_cap_is_exact": "it is not"})
    params = {param.id: param for param in suite.params(hostile_mark="hostile")}
    (xfail,) = (mark for mark in params["the_cap_is_exact"].marks if mark.name == "xfail")
    assert xfail.kwargs == {"reason": "it is not", "strict": True, "raises": FAILURES}
    assert "hostile" in {mark.name for mark in params["a_fork_bomb_is_held"].marks}
    assert "hostile" not in {mark.name for mark in params["line_ends_are_left_alone"].marks}
