"""The tree of errors."""

from __future__ import annotations

import copy
import pickle
import re

import pytest

from ringfence import errors
from ringfence.errors import LimitError, SandboxError, SandboxLostError, WorkspaceError


def tree(root: type[SandboxError]) -> list[type[SandboxError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in tree(child))]


ALL = sorted(
    (kind for kind in set(tree(SandboxError)) if kind.__module__ == errors.__name__),
    key=lambda kind: kind.__name__,
)


def make(kind: type[SandboxError]) -> SandboxError:
    if issubclass(kind, (WorkspaceError, LimitError)):
        return kind("memory_bytes", "is too much", backend="process", hint="take less")
    if kind is errors.ProtocolError:
        return errors.ProtocolError("is wrong", backend="process")
    return kind("is wrong", backend="process", hint="take less")


def test_every_error_is_public() -> None:
    assert {kind.__name__ for kind in ALL} | {"IsolationWarning"} == set(errors.__all__)


def test_codes_are_stable_unique_names() -> None:
    codes = [kind.code for kind in ALL]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__)) | {"SandboxError"}
    assert drawn == {kind.__name__ for kind in ALL}


@pytest.mark.parametrize("kind", ALL)
def test_the_builtins_in_the_docstring_are_its_bases(kind: type[SandboxError]) -> None:
    """Catches a leaf that callers can't catch by the builtin that the docstring promises."""
    assert errors.__doc__
    drawn = re.search(rf"── {kind.__name__} \((\w+)\)", errors.__doc__)
    if drawn:
        assert drawn[1] in [base.__name__ for base in kind.__mro__]


@pytest.mark.parametrize("kind", ALL)
def test_each_carries_what_a_program_needs(kind: type[SandboxError]) -> None:
    error = make(kind)
    assert isinstance(error, SandboxError)
    assert isinstance(error.retryable, bool)
    assert error.backend == "process"
    assert error.message in str(error)
    if error.hint:
        assert str(error).endswith("(take less)")


@pytest.mark.parametrize("kind", ALL)
def test_each_survives_copying_and_pickling(kind: type[SandboxError]) -> None:
    """Catches an error that can't leave a worker process, and takes the pool down with it."""
    error = make(kind)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert vars(twin) == vars(error)
        assert twin.args == error.args
        assert getattr(twin, "errno", None) == getattr(error, "errno", None)
        assert str(twin) == str(error)


def test_a_file_error_says_which_path_and_why() -> None:
    error = errors.FileMissingError("a/b", "does not exist")
    assert isinstance(error, FileNotFoundError)
    assert (error.path, error.errno) == ("a/b", 2)
    assert str(error) == "'a/b': does not exist"


def test_a_lost_sandbox_says_how_it_died() -> None:
    assert SandboxLostError("gone", cause="out of memory").cause == "out of memory"
    assert isinstance(errors.ProtocolError("bad frame"), SandboxLostError)
