"""Checks of file operations: content, modes, errors, listings, names."""

from __future__ import annotations

import contextlib
import hashlib
import random

import anyio

from ringfence.errors import (
    CommandError,
    FileConflictError,
    FileIsDirectoryError,
    FileMissingError,
    FileNotDirectoryError,
    FilePermissionError,
    FileTooLargeError,
    WorkspaceError,
)
from ringfence.models import FileKind

from . import _expect as expect
from ._context import Context
from ._model import FILES, PROGRAMS, Check, check

_MEBIBYTE = 2**20


async def content_is_kept_exactly(ctx: Context) -> None:
    """Content goes through a shell: it is expanded, cut, run, or gains a newline."""
    contents = [
        b"no newline", b"$HOME `id -u` \\n $(id)", b"x\nEOF\ntouch pwned\n", b"", b" ", b"\n",
        bytes(range(256)), b"a\r\nb\r\n", b"EOF\n" * 1000, b"'\"\\", "ünï😀".encode(), b"\0" * 5,
    ]  # fmt: skip
    for number, content in enumerate(contents):
        await ctx.sandbox.write_file(f"f{number}", content)
        expect.equal(await ctx.sandbox.read_file(f"f{number}"), content, "what was read back")
    await ctx.sandbox.write_file("text", "ünï😀")
    expect.equal(await ctx.sandbox.read_file("text"), "ünï😀".encode(), "text")
    names = {info.name for info in (await ctx.sandbox.list_files()).entries}
    expect.true("pwned" not in names, "the content was run")


async def large_files_are_kept_exactly(ctx: Context) -> None:
    """Content travels on a command line, which holds 128 KiB, or in one message too many."""
    noise = random.Random(1).randbytes(20 * _MEBIBYTE)  # noqa: S311 - any bytes do
    for size in (131_071, 131_072, 5 * _MEBIBYTE, 20 * _MEBIBYTE):
        content = noise[:size]
        await ctx.sandbox.write_file("large", content)
        back = await ctx.sandbox.read_file("large")
        expect.equal(len(back), size, "the length of what was read back")
        expect.true(back == content, f"{size} bytes did not come back as they were written")
    expect.equal((await ctx.sandbox.stat("large")).mode, 0o644, "the mode of a new file")
    printed = await ctx.sh("sha256sum large")
    wanted = hashlib.sha256(noise).hexdigest()
    expect.equal(printed.stdout_text.split()[0], wanted, "the hash as a program sees it")


async def programs_and_file_operations_see_the_same_files(ctx: Context) -> None:
    """Files that we write are not there for programs, or belong to somebody else."""
    await ctx.sandbox.write_file("ours", "one\n")
    await ctx.sandbox.make_dir("ours.d")
    await ctx.sh_ok(
        "echo two >>ours; mv ours ours.d/moved; echo new >ours.d/theirs; chmod 600 ours.d/*"
    )
    expect.equal(await ctx.sandbox.read_file("ours.d/moved"), b"one\ntwo\n", "the changed file")
    await ctx.sandbox.write_file("ours.d/theirs", "again\n", append=True)
    expect.equal(await ctx.sh_ok("cat ours.d/theirs"), "new\nagain\n", "the other one")
    await ctx.sh_ok("rm -r ours.d")


async def modes_are_set_once_and_kept(ctx: Context) -> None:
    """New files can be read by nobody, or writing changes the mode of one that exists."""
    sandbox = ctx.sandbox
    await sandbox.write_file("tool", "#!/bin/sh\necho ran\n", mode=0o755)
    expect.equal((await sandbox.stat("tool")).mode, 0o755, "the mode that was asked for")
    expect.equal(await ctx.sh_ok("./tool"), "ran\n", "what it prints")
    await sandbox.write_file("tool", "#!/bin/sh\necho again\n")
    expect.equal((await sandbox.stat("tool")).mode, 0o755, "the mode after writing again")
    await sandbox.write_file("tool", "x", mode=0o600)
    expect.equal((await sandbox.stat("tool")).mode, 0o600, "the mode after changing it")
    await sandbox.write_file("new", "x")
    expect.equal((await sandbox.stat("new")).mode, 0o644, "the mode of a new file")
    await sandbox.make_dir("new.d")
    expect.equal((await sandbox.stat("new.d")).mode, 0o755, "the mode of a new directory")


async def writing_replaces_and_appending_adds(ctx: Context) -> None:
    """A shorter content leaves the end of the longer one, or appending replaces."""
    sandbox = ctx.sandbox
    await sandbox.write_file("f", "a long content")
    await sandbox.write_file("f", "short")
    expect.equal(await sandbox.read_file("f"), b"short", "the content after replacing")
    await sandbox.write_file("f", "er", append=True)
    await sandbox.write_file("g", "new", append=True)
    expect.equal(await sandbox.read_file("f"), b"shorter", "the content after appending")
    expect.equal(await sandbox.read_file("g"), b"new", "a new file that was appended to")


async def directories_above_a_file_are_made(ctx: Context) -> None:
    """Writing into a directory that is not there yet fails."""
    await ctx.sandbox.write_file("deep/new/dirs/f", "x")
    expect.equal(await ctx.sandbox.read_file("deep/new/dirs/f"), b"x", "the content")
    await ctx.sandbox.make_dir("other/new/dirs")
    await ctx.sandbox.make_dir("other/new/dirs")
    expect.equal((await ctx.sandbox.stat("other/new/dirs")).kind, FileKind.DIRECTORY, "the kind")


async def wrong_paths_have_typed_errors(ctx: Context) -> None:
    """A missing file, a directory and a wrong kind all look alike, or like an empty file."""
    sandbox = ctx.sandbox
    await sandbox.write_file("file", "x")
    await sandbox.make_dir("dir/full")
    wrong = (
        (sandbox.read_file("missing"), FileMissingError, "missing"),
        (sandbox.read_file("no/dir/f"), FileMissingError, "no/dir/f"),
        (sandbox.read_file("dir"), FileIsDirectoryError, "dir"),
        (sandbox.read_file("file/x"), FileNotDirectoryError, "file/x"),
        (sandbox.read_file("."), FileIsDirectoryError, "."),
        (sandbox.write_file("dir", "x"), FileIsDirectoryError, "dir"),
        (sandbox.write_file("file/x", "x"), FileNotDirectoryError, "file/x"),
        (sandbox.list_files("missing"), FileMissingError, "missing"),
        (sandbox.list_files("file"), FileNotDirectoryError, "file"),
        (sandbox.stat("missing"), FileMissingError, "missing"),
        (sandbox.stat("file/x"), FileNotDirectoryError, "file/x"),
        (sandbox.make_dir("file"), (FileConflictError, FileNotDirectoryError), "file"),
        (sandbox.make_dir("file/x"), FileNotDirectoryError, "file/x"),
        (sandbox.remove("missing"), FileMissingError, "missing"),
        (sandbox.move("missing", "x"), FileMissingError, "missing"),
        (sandbox.move("file", "no/dir/x"), FileMissingError, "no/dir/x"),
        (sandbox.move("file", "dir"), (FileIsDirectoryError, FileConflictError), "dir"),
        (sandbox.move("dir", "dir/full/x"), WorkspaceError, "dir/full/x"),
    )
    with contextlib.ExitStack() as stack:
        for work, _, _ in wrong:
            stack.callback(work.close)
        for work, kind, path in wrong:
            [error] = await expect.each_raises(kind, work, where=f" on {path!r}")
            expect.true(
                path in str(error), f"{expect.name_of(work)} on {path!r} does not name it: {error}"
            )
            expect.true(isinstance(error, OSError), f"{error!r} is no OSError")
    expect.equal(await sandbox.read_file("file"), b"x", "the file after all that")


async def missing_rights_have_a_typed_error(ctx: Context) -> None:
    """A file that may not be read comes back empty, or is read with the host's rights."""
    if await ctx.runs_as_root():
        raise expect.NotApplicable("programs run as root, whom file permissions don't stop")
    await ctx.sh_ok("echo x >f; chmod 000 f; mkdir d e; echo x >d/f; chmod 000 d; chmod 555 e")
    sandbox = ctx.sandbox
    await expect.each_raises(
        FilePermissionError,
        sandbox.read_file("f"), sandbox.write_file("f", "x"), sandbox.read_file("d/f"),
        sandbox.list_files("d"), sandbox.write_file("e/new", "x"), sandbox.make_dir("e/new"),
    )  # fmt: skip


async def reads_are_bounded(ctx: Context) -> None:
    """A file over the limit fills the host's memory, or is cut without a word."""
    sandbox = ctx.sandbox
    await ctx.sh_ok(
        "truncate -s 1099511627776 sparse && truncate -s 67108865 over && printf 0123456789 >small"
    )
    with ctx.promptly("a file of 1 TiB"):
        for name in ("sparse", "over"):
            with expect.raising(FileTooLargeError, f"reading {name}"):
                await sandbox.read_file(name)
        part = await sandbox.read_file("sparse", offset=2**39, max_bytes=1000)
    expect.equal(part, bytes(1000), "a part of it")
    expect.equal(await sandbox.read_file("over", offset=67_108_860), bytes(5), "the rest")
    for offset, size, wanted in ((0, 3, b"012"), (8, 5, b"89"), (10, 5, b""), (99, 5, b"")):
        part = await sandbox.read_file("small", offset=offset, max_bytes=size)
        expect.equal(part, wanted, f"{size} bytes from {offset}")
    expect.equal(await sandbox.read_file("small", max_bytes=0), b"", "no bytes")
    expect.equal(await sandbox.read_file("small", offset=4), b"456789", "all from 4")
    for bad in ({"offset": -1}, {"max_bytes": -1}):
        with expect.raising(CommandError, f"reading with {bad}"):
            await sandbox.read_file("small", **bad)


async def a_file_that_grows_is_read_to_an_end(ctx: Context) -> None:
    """Reading a file that a program goes on writing never ends."""
    process = await ctx.sandbox.start(ctx.script("while :; do echo x; done >grows", timeout=10))
    await ctx.file_appears(ctx.sandbox, "grows")
    with ctx.promptly("ten reads"):
        for _ in range(10):
            data = await ctx.sandbox.read_file("grows", max_bytes=100_000)
            expect.true(len(data) <= 100_000, f"{len(data)} bytes were read")
    await process.kill()
    await process.wait()


async def trees_are_removed_whole(ctx: Context) -> None:
    """A tree stays because it is deep or holds strange things, or goes with what it links to."""
    await ctx.sh_ok("""
        mkdir -p t/a/b; mkfifo t/p; ln -s / t/root; : >t/a/b/f; chmod 000 t/a/b/f
        : >"t/$(printf 'n\\377\\n')"
        deep=$(printf 'd/%.0s' $(seq 100))
        for i in $(seq 12); do mkdir -p n/$deep && mv t n/$deep && mv n t || exit 1; done
    """)
    with ctx.promptly("removing the tree"):
        await ctx.sandbox.remove("t")
    expect.equal((await ctx.sandbox.list_files()).entries, (), "what is left")
    await ctx.sandbox.write_file("f", "x")
    await ctx.sandbox.remove("f")
    for name in (".", "/workspace", ctx.sandbox.workspace):
        with expect.raising(WorkspaceError, f"removing {name!r}"):
            await ctx.sandbox.remove(name)
    await ctx.sandbox.write_file("f", "x")


async def closed_directories_are_removed(ctx: Context) -> None:
    """A directory that its owner has closed to himself, as caches of packages are, stays."""
    await ctx.sh_ok("""
        mkdir -p t/none t/read t/enter; for d in t/*; do : >$d/f; mkdir $d/in; : >$d/in/f; done
        chmod 000 t/none; chmod 444 t/read; chmod 555 t/enter t/enter/in
    """)
    await ctx.sandbox.remove("t")
    expect.equal((await ctx.sandbox.list_files()).entries, (), "what is left")


async def moving_renames_and_replaces(ctx: Context) -> None:
    """Moving copies, merges, or follows a link at its target."""
    sandbox = ctx.sandbox
    for name in ("a", "b"):
        await sandbox.write_file(name, name)
    await sandbox.move("a", "b")
    expect.equal(await sandbox.read_file("b"), b"a", "the replaced file")
    await sandbox.make_dir("d/e")
    await sandbox.move("b", "/workspace/d/e/f")
    await sandbox.move("d", "moved")
    expect.equal(await sandbox.read_file("moved/e/f"), b"a", "the moved file")
    await ctx.sh_ok("echo kept >target; ln -s target link; echo new >new")
    await sandbox.move("new", "link")
    expect.equal(await sandbox.read_file("link"), b"new\n", "what replaced the link")
    expect.equal(await sandbox.read_file("target"), b"kept\n", "the link's old target")
    names = [info.name for info in (await sandbox.list_files()).entries]
    expect.equal(names, ["link", "moved", "target"], "what is there")


async def many_file_operations_run_at_once(ctx: Context) -> None:
    """Operations that run together mix up their contents, or wait for running commands."""
    busy = await ctx.sandbox.start(ctx.script("sleep 30"))

    async def one(number: int) -> None:
        content = bytes([number]) * (100_000 + number)
        await ctx.sandbox.write_file(f"c/{number}", content)
        expect.true(await ctx.sandbox.read_file(f"c/{number}") == content, f"{number} is wrong")

    with ctx.promptly("eighty operations"):
        async with anyio.create_task_group() as group:
            for number in range(40):
                group.start_soon(one, number)
    expect.equal((await ctx.sandbox.list_files("c")).total, 40, "the number of files")
    await busy.kill()


CHECKS: tuple[Check, ...] = (
    check(content_is_kept_exactly, FILES),
    check(large_files_are_kept_exactly, FILES, PROGRAMS),
    check(programs_and_file_operations_see_the_same_files, FILES, PROGRAMS),
    check(modes_are_set_once_and_kept, FILES, PROGRAMS),
    check(writing_replaces_and_appending_adds, FILES),
    check(directories_above_a_file_are_made, FILES),
    check(wrong_paths_have_typed_errors, FILES),
    check(missing_rights_have_a_typed_error, FILES, PROGRAMS),
    check(reads_are_bounded, FILES, PROGRAMS),
    check(a_file_that_grows_is_read_to_an_end, FILES, PROGRAMS),
    check(trees_are_removed_whole, FILES, PROGRAMS),
    check(closed_directories_are_removed, FILES, PROGRAMS),
    check(moving_renames_and_replaces, FILES, PROGRAMS),
    check(many_file_operations_run_at_once, FILES, PROGRAMS),
)
