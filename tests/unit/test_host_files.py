"""File operations on the host, as they are on POSIX and as they are on Windows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringfence import host_files
from ringfence.errors import (
    FileConflictError,
    FileIsDirectoryError,
    FileKindError,
    FileMissingError,
    FileNotDirectoryError,
    PathError,
    WorkspaceError,
)
from ringfence.models import FileKind


@pytest.fixture(params=[sys.platform, "win32"])
def root(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[str]:
    """A workspace; once more with the ways of a platform that can't open below a directory."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    (tmp_path / "root").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", request.param)
        yield str(tmp_path / "root")


def test_files_come_back_as_they_were_written(root: str) -> None:
    host_files.write_file(root, b"a/b/f", b"one", None, False)
    host_files.write_file(root, b"a/b/f", b"two", None, True)
    assert host_files.read_file(root, b"a/b/f", 0, 100) == (b"onetwo", 6)
    assert host_files.read_file(root, b"a/b/f", 4, 1) == (b"w", 6)
    host_files.write_file(root, b"a/b/f", b"x", None, False)
    assert host_files.read_file(root, b"a/b/f", 0, 100) == (b"x", 1)
    assert host_files.read_file(root, b"a/b/f", 9, 100) == (b"", 1)


def test_directories_are_listed_moved_and_removed(root: str) -> None:
    for name in (b"d/b", b"d/a", b"d/e/f/g", b"d/\xff"):
        host_files.write_file(root, name, b"x", None, False)
    host_files.make_dir(root, b"d/c")
    entries, total = host_files.list_files(root, b"d", 3)
    assert [entry.name for entry in entries] == ["a", "b", "c"]
    assert total == 5
    assert host_files.list_files(root, b"d", 0) == ([], 5)
    assert host_files.stat(root, b"d").kind is FileKind.DIRECTORY
    host_files.move(root, b"d/b", b"d/a")
    host_files.move(root, b"d", b"moved")
    host_files.remove(root, b"moved/a")
    host_files.remove(root, b"moved")
    assert os.listdir(root) == []
    host_files.remove_tree(root)
    assert not os.path.exists(root)


def test_what_is_wrong_is_a_typed_error_that_names_the_path(root: str) -> None:
    host_files.write_file(root, b"f", b"x", None, False)
    host_files.write_file(root, b"d/f", b"x", None, False)
    with pytest.raises(FileMissingError, match="'no/f'"):
        host_files.read_file(root, b"no/f", 0, 1)
    with pytest.raises(FileMissingError, match="'no'"):
        host_files.list_files(root, b"no", 1)
    with pytest.raises(FileIsDirectoryError, match="'d'"):
        host_files.read_file(root, b"d", 0, 1)
    with pytest.raises(FileNotDirectoryError, match="'f'"):
        host_files.list_files(root, b"f", 1)
    with pytest.raises(FileNotDirectoryError, match="'f/x'"):
        host_files.write_file(root, b"f/x", b"", None, False)
    with pytest.raises((FileConflictError, FileIsDirectoryError)):
        host_files.move(root, b"f", b"d")
    with pytest.raises(FileMissingError, match="'no/f'"):
        host_files.move(root, b"f", b"no/f")
    for operation in (host_files.remove, lambda at, path: host_files.move(at, path, b"x")):
        with pytest.raises(PathError):
            operation(root, b".")
        with pytest.raises(FileMissingError, match="'no'"):
            operation(root, b"no")


def test_links_lead_nowhere(root: str) -> None:
    outside = os.path.join(os.path.dirname(root), "outside")
    os.symlink(outside, os.path.join(root, "dir"))
    os.symlink(os.path.join(outside, "secret"), os.path.join(root, "file"))
    os.symlink(os.path.join(outside, "made"), os.path.join(root, "dangling"))
    with pytest.raises(PathError):
        host_files.read_file(root, b"dir/secret", 0, 10)
    with pytest.raises(PathError):
        host_files.read_file(root, b"file", 0, 10)
    for path in (b"dangling", b"file", b"dir/made"):
        with pytest.raises(PathError):
            host_files.write_file(root, path, b"x", None, False)
    with pytest.raises(PathError):
        host_files.list_files(root, b"dir", 10)
    with pytest.raises(PathError):
        host_files.make_dir(root, b"dir/made")
    with pytest.raises(PathError), host_files.held_directory(root, b"dir"):
        pass
    host_files.remove_tree(root)
    assert os.listdir(outside) == ["secret"]


def test_what_is_no_file_is_refused(root: str) -> None:
    os.mkfifo(os.path.join(root, "fifo"))
    with pytest.raises(FileKindError):
        host_files.read_file(root, b"fifo", 0, 1)
    with pytest.raises(FileKindError):
        host_files.write_file(root, b"fifo", b"x", None, False)
    assert host_files.stat(root, b"fifo").kind is FileKind.FIFO


def test_a_directory_that_is_filled_as_it_is_emptied_ends(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_files.write_file(root, b"d/f", b"x", None, False)
    monkeypatch.setattr("ringfence.host_paths._REMOVE_SECONDS", -1.0)
    with pytest.raises(WorkspaceError, match="as fast as"):
        host_files.remove(root, b"d")


def test_a_held_directory_stays_the_one_that_was_looked_at(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with host_files.held_directory(str(tmp_path), b"d") as name:
        (tmp_path / "d").rename(tmp_path / "old")
        (tmp_path / "d").symlink_to("/")
        assert os.path.realpath(name) == str(tmp_path / "old")
