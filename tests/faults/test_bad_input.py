"""Names and output that are no text, and commands that are none."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import anyio
import pytest

from ringfence.backend import Sandbox
from ringfence.errors import (
    CommandError,
    FileKindError,
    FileMissingError,
    PathError,
    SandboxError,
    WorkspaceError,
)
from ringfence.models import Command, FileKind

from ..machine import SOON
from .conftest import Factory
from .test_attacks import is_sound

pytestmark = pytest.mark.timeout(120)

NAMES = (b"\xff\xfe", b"a\nb", b" ", b"-rf", b"\xc3\x28", b"x" * 255, "é".encode(), b"'\"$(x)`")


def in_a_sandbox(factory: Factory, use: Callable[[Sandbox], Awaitable[None]]) -> None:
    async def main() -> None:
        async with factory() as backend, await backend.create() as sandbox:
            await use(sandbox)
            await is_sound(sandbox)

    anyio.run(main)


def test_names_that_are_no_text(factory: Factory) -> None:
    async def use(sandbox: Sandbox) -> None:
        for name in NAMES:
            await sandbox.write_file(name, name)
        listing = await sandbox.list_files()
        assert [os.fsencode(info.name) for info in listing.entries] == sorted(NAMES)
        for name in NAMES:
            assert await sandbox.read_file(name) == name
            assert (await sandbox.exec(Command(("cat", "--", name)))).stdout == name
            await sandbox.remove(name)

    in_a_sandbox(factory, use)


def test_output_that_is_no_text(factory: Factory) -> None:
    async def use(sandbox: Sandbox) -> None:
        raw = bytes(range(256)) * 10
        await sandbox.write_file("raw", raw)
        result = await sandbox.exec("sh", ["-c", "cat raw; cat raw >&2"])
        assert (result.stdout, result.stderr) == (raw, raw)
        assert "\ufffd" in result.stdout_text
        async with sandbox.stream("sh", ["-c", r"printf '\303'; sleep 0.1; printf '\251'"]) as run:
            said = [chunk.text async for chunk in run]
        assert "".join(text or "" for text in said) == "é"
        argument = bytes(set(range(1, 256)))
        assert (await sandbox.exec(Command(("printf", "%s", argument)))).stdout == argument

    in_a_sandbox(factory, use)


REFUSED: dict[str, Callable[[Sandbox], Awaitable[object]]] = {
    "no argv": lambda box: box.exec(Command(())),
    "an empty program": lambda box: box.exec(Command(("",))),
    "NUL in the program": lambda box: box.exec(Command(("tr\0ue",))),
    "NUL in an argument": lambda box: box.exec(Command(("true", "a\0b"))),
    "NUL in a variable": lambda box: box.exec(Command(("true",), env={"A": "\0"})),
    "NUL in a variable's name": lambda box: box.exec(Command(("true",), env={"\0": "a"})),
    "an empty variable": lambda box: box.exec(Command(("true",), env={"": "a"})),
    "= in a variable": lambda box: box.exec(Command(("true",), env={"A=": "a"})),
    "NUL in cwd": lambda box: box.exec(Command(("true",), cwd="a\0")),
    "cwd outside": lambda box: box.exec(Command(("true",), cwd="/etc")),
    "cwd above": lambda box: box.exec(Command(("true",), cwd="../x")),
    "cwd that is missing": lambda box: box.exec(Command(("true",), cwd="missing")),
    "cwd that is a file": lambda box: box.exec(Command(("true",), cwd="file")),
    "cwd through a link": lambda box: box.exec(Command(("true",), cwd="link")),
    "cwd through /proc": lambda box: box.exec(Command(("true",), cwd="proc/self/cwd")),
    "no time": lambda box: box.exec("true", timeout=0),
    "less than no time": lambda box: box.exec("true", timeout=-1),
    "a string for args": lambda box: box.exec("true", "args"),
    "arguments of megabytes": lambda box: box.exec("true", ["x" * (6 << 20)]),
    "too many arguments": lambda box: box.exec("true", [""] * 200_000),
    "NUL in a path": lambda box: box.read_file("a\0b"),
    "an empty path": lambda box: box.read_file(""),
    "a path outside": lambda box: box.write_file("/etc/x", b""),
    "a path above": lambda box: box.write_file("a/../../x", b""),
    "a path through a link": lambda box: box.write_file("link/x", b""),
    "a path that is too long": lambda box: box.read_file("x/" * 3000),
    "a name that is too long": lambda box: box.write_file("x" * 256, b""),
    "a FIFO": lambda box: box.read_file("fifo"),
    "a FIFO to write": lambda box: box.write_file("fifo", b"x"),
    "a missing file": lambda box: box.read_file("missing"),
    "below a file": lambda box: box.read_file("file/x"),
    "a negative offset": lambda box: box.read_file("file", offset=-1),
    "the workspace itself": lambda box: box.remove("."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(factory: Factory, name: str) -> None:
    """With a typed error, before anything runs, and the sandbox lives on."""

    async def use(sandbox: Sandbox) -> None:
        await sandbox.write_file("file", b"x")
        made = await sandbox.exec("sh", ["-c", "ln -s / link; ln -s /proc proc; mkfifo fifo"])
        assert made.exit_code == 0
        with anyio.fail_after(SOON), pytest.raises(SandboxError) as caught:
            await REFUSED[name](sandbox)
        assert isinstance(caught.value, (CommandError, WorkspaceError)), caught.value

    in_a_sandbox(factory, use)


def test_errors_say_what_they_are_about(factory: Factory) -> None:
    async def use(sandbox: Sandbox) -> None:
        with pytest.raises(FileMissingError, match="missing"):
            await sandbox.read_file("missing")
        await sandbox.exec("mkfifo", ["fifo"])
        with pytest.raises(FileKindError, match="fifo"):
            await sandbox.read_file("fifo")
        assert (await sandbox.stat("fifo")).kind is FileKind.FIFO
        with pytest.raises(PathError, match="workspace"):
            await sandbox.read_file("/etc/passwd")

    in_a_sandbox(factory, use)


def test_offsets_beyond_every_file(factory: Factory) -> None:
    async def use(sandbox: Sandbox) -> None:
        await sandbox.write_file("file", b"abc")
        assert await sandbox.read_file("file", offset=2**80) == b""
        assert await sandbox.read_file("file", offset=1, max_bytes=2**80) == b"bc"
        assert await sandbox.read_file("file", max_bytes=0) == b""

    in_a_sandbox(factory, use)


@pytest.mark.parametrize("number", [0, -1, 65, 10**9])
def test_signals_that_there_are_not(factory: Factory, number: int) -> None:
    async def use(sandbox: Sandbox) -> None:
        process = await sandbox.start(Command(("sleep", "60")))
        with pytest.raises(CommandError):
            await process.kill(number)
        await process.kill(9)
        assert (await process.wait()).code == 137

    in_a_sandbox(factory, use)
