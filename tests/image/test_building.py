"""Building by a real engine: what is told meanwhile, and how it fails."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from ringfence.errors import BackendUnavailableError, ImageError
from ringfence.image import BuiltImage, Step, build_image, debian
from scripts.services.engine import Engine

from ..cli.conftest import Cli
from ..machine import processes_with, until
from .conftest import make_base, remove

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.container,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the image that it starts from may have to be built first
]

NOWHERE = "ringfence-test.invalid/none:latest"
"""No registry has this name, so no engine can fetch it."""

TAG = "ringfence-test:unbuilt"


def is_there(tag: str) -> bool:
    return Engine().call("GET", f"/images/{tag}/json") is not None


async def test_the_engines_steps_are_told_in_order(base: str, by_engine: BuiltImage) -> None:
    steps: list[Step] = []
    built = await build_image(
        way="auto", base=base, tag=by_engine.tag, with_data=True, on_step=steps.append
    )
    numbers = [step.number for step in steps if not step.is_detail]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {step.count for step in steps if not step.is_detail} == {len(numbers)}
    assert built.with_data
    assert any("python3-pandas" in step.text for step in steps if step.is_detail)
    again = await build_image(way="dockerfile", base=base, tag=by_engine.tag)
    assert not again.with_data


async def test_a_step_that_fails_is_told_with_its_output() -> None:
    with pytest.raises(ImageError, match=r"(?s)returned a non-zero code.*apt-get.*not found"):
        await build_image(way="dockerfile", base="ringfence-test:minimal", tag=TAG)
    assert not is_there(TAG)


async def test_a_base_that_can_not_be_had_is_told_with_the_other_way() -> None:
    with pytest.raises(ImageError, match=r"--way debian") as caught:
        await build_image(way="dockerfile", base=NOWHERE, tag=TAG)
    assert NOWHERE in caught.value.message


async def test_if_neither_way_can_work_both_reasons_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendUnavailableError, match=r"neither way.*none:latest.*no mmdebstrap"):
        await build_image(way="auto", base=NOWHERE, tag=TAG)


async def test_without_a_base_packages_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    class Taken(Exception):  # noqa: N818  # no error: it says that this way was gone
        pass

    async def bootstrap(*_: object, **__: object) -> None:
        raise Taken

    monkeypatch.setattr(debian, "bootstrap", bootstrap)
    steps: list[Step] = []
    with pytest.raises(Taken):
        await build_image(way="auto", base=NOWHERE, tag=TAG, on_step=steps.append)
    assert any("of Debian packages, since" in step.text for step in steps)


async def test_an_archive_that_is_none_makes_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    async def bootstrap(target: Path, **_: object) -> None:
        target.write_bytes(b"this is no archive" * 1000)

    monkeypatch.setattr(debian, "bootstrap", bootstrap)
    with pytest.raises(ImageError, match="the engine refuses"):
        await build_image(way="debian", tag=TAG)
    assert not is_there(TAG)


async def test_what_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def bootstrap(*_: object, **__: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(debian, "bootstrap", bootstrap)
    with pytest.raises(ImageError, match=r"not built within 0\.5 s"):
        await build_image(way="debian", tag=TAG, timeout=0.5)


async def test_giving_up_ends_the_engines_build_too() -> None:
    mark = f"86398.{os.getpid()}"
    base = "ringfence-test:sleeper"
    await make_base(base, "ringfence-test:minimal", f"exec sleep {mark}")
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(build_image, way="dockerfile", base=base, tag=TAG))
            await until(lambda: bool(processes_with(mark)), seconds=120)
            tasks.cancel_scope.cancel()
        await until(lambda: not processes_with(mark), seconds=60)
    finally:
        await remove(base)
    assert not is_there(TAG)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_ends_the_build_with_its_number(
    cli: Cli, tmp_path: Path, number: signal.Signals
) -> None:
    mark = f"8639{int(number)}.{os.getpid()}"
    program = tmp_path / "bin" / "mmdebstrap"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec sleep {mark}\n")
    program.chmod(0o755)
    with_it = replace(cli, env={"PATH": f"{program.parent}:{os.environ['PATH']}"})
    with with_it.started("image", "build", "--way", "debian", "--tag", TAG) as process:
        await until(lambda: bool(processes_with(mark)), seconds=20)
        process.send_signal(number)
        assert process.wait(20) == 128 + number
    assert not processes_with(mark)


def test_the_command_builds_and_lists(cli: Cli, base: str, by_engine: BuiltImage) -> None:
    done = cli("image", "build", "--way", "dockerfile", "--base", base, "--tag", by_engine.tag)
    assert done.code == 0, done.err
    assert done.out.decode().startswith(f"{by_engine.tag}: ")
    assert "ringfence: [1/" in done.err
    listed = cli("image", "ls", "--json").json
    assert by_engine.tag in [image["tag"] for image in listed]
    assert b"current" in cli("image", "ls").out


def test_the_command_says_what_to_do(cli: Cli) -> None:
    done = cli("image", "build", "--way", "dockerfile", "--base", NOWHERE, "--tag", TAG)
    assert done.code == 125
    assert "--way debian" in done.err
    assert cli("image", "build", "--way", "magic").code == 125
    assert cli("image", "build", "--timeout", "soon").code == 125
    gone = cli("image", "ls", "--host", "unix:///nowhere.sock")
    assert (gone.code, "nowhere.sock" in gone.err) == (125, True)
