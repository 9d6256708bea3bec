"""Checks of many files that come in with one call."""

from __future__ import annotations

import random

from ringfence.errors import (
    FileIsDirectoryError,
    FileKindError,
    FileMissingError,
    NoSpaceError,
    PathError,
)
from ringfence.importing import import_files
from ringfence.incoming import Incoming
from ringfence.models import Limits

from . import _expect as expect
from ._context import Context
from ._model import FILES, PROGRAMS, Check, check, enforced

_MEBIBYTE = 2**20


async def many_files_come_in_whole(ctx: Context) -> None:
    """Files of one import are mixed up, cut, or lose their modes or directories."""
    noise = random.Random(2).randbytes(300_000)  # noqa: S311 - any bytes do
    contents = {f"in/{number % 7}/{number}": noise[: number * 41] for number in range(200)}
    contents |= {"in/empty": b"", "in/large": noise * 5}
    sandbox = ctx.sandbox
    report = await import_files(sandbox, contents)
    expect.equal(report.total_bytes, sum(map(len, contents.values())), "the bytes that came in")
    expect.equal(sorted(report.paths), sorted(contents), "the files that came in")
    for path, content in contents.items():
        expect.true(await sandbox.read_file(path) == content, f"{path} did not come whole")
    again = [Incoming("in/empty", b"now"), Incoming("in/0/7", b"", mode=0o600)]
    await import_files(sandbox, [Incoming("in/tool", b"#!", mode=0o751), *again])
    expect.equal(await sandbox.read_file("in/empty"), b"now", "the replaced content")
    expect.equal(await sandbox.read_file("in/0/7"), b"", "the shorter content")
    if ctx.capabilities.arbitrary_programs:
        for path, mode in (("in/tool", 0o751), ("in/empty", 0o644), ("in/0/7", 0o600)):
            expect.equal((await sandbox.stat(path)).mode, mode, f"the mode of {path}")


async def a_file_that_cannot_come_in_is_named(ctx: Context) -> None:
    """An import goes on in silence behind a fault, or takes away what was in its way."""
    sandbox = ctx.sandbox
    await sandbox.write_file("a/1/kept", "kept")
    with expect.raising(FileIsDirectoryError, "importing in the place of a directory") as caught:
        await import_files(sandbox, {"a/0": "0", "a/1": "1", "b": "2"})
    [error] = caught
    expect.equal(error.path, "a/1", "the path that the error names")
    expect.true("a/0" in error.written, "what was written before is not told")
    for path in error.written:
        expect.equal(len(await sandbox.read_file(path)), 1, f"the size of {path}")
    expect.equal(await sandbox.read_file("a/1/kept"), b"kept", "what was in the way")


async def of_a_file_that_does_not_fit_nothing_stays(ctx: Context) -> None:
    """An import into a full workspace leaves a part of a file that looks like a file."""
    sandbox = await ctx.create(Limits(workspace_bytes=8 * _MEBIBYTE))
    content = {f"in/{number:03}": b"x" * 100_000 for number in range(120)}
    with expect.raising(NoSpaceError, "importing 12 MB into 8 MiB") as caught:
        await import_files(sandbox, content)
    [error] = caught
    with expect.raising(FileMissingError, "looking for what did not fit"):
        await sandbox.stat(error.path)
    sizes = {f"in/{info.name}": info.size for info in (await sandbox.list_files("in")).entries}
    expect.true(len(error.written) > 20, f"{len(error.written)} files were written")
    for path in error.written:
        expect.equal(sizes.get(path), 100_000, f"the size of {path}")
    expect.equal({*sizes.values()}, {100_000}, "the sizes of all that is there")


async def an_import_follows_nothing_out(ctx: Context) -> None:
    """A link or a FIFO in the workspace takes an import outside, or makes it wait."""
    await ctx.sh_ok("ln -s .. up; ln -s ../victim link; mkfifo fifo")
    for path, kind in (("up/victim", PathError), ("link", PathError), ("fifo", FileKindError)):
        with expect.raising(kind, f"importing to {path}"):
            await import_files(ctx.sandbox, {path: "x", "beside": "y"})
        kept = await ctx.sh_ok("test ! -e ../victim; echo $?; ls -d fifo link up")
        expect.equal(kept, "0\nfifo\nlink\nup\n", f"what is there after {path}")


CHECKS: tuple[Check, ...] = (
    check(many_files_come_in_whole, FILES),
    check(a_file_that_cannot_come_in_is_named, FILES),
    check(of_a_file_that_does_not_fit_nothing_stays, FILES, enforced("workspace_bytes")),
    check(an_import_follows_nothing_out, FILES, PROGRAMS),
)
