"""Every name has one key, every key one name, and no key is more than a name."""

from __future__ import annotations

import os
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ringfence.errors import ObjectKeyError
from ringfence.storage import (
    check_key,
    escape_name,
    escape_path,
    key_prefix,
    unescape_name,
    unescape_path,
)
from ringfence.storage.keys import DRAFT_PREFIX, MAX_KEY_BYTES, MAX_PART_BYTES

NAMES = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.text(min_size=1, max_size=40).map(lambda text: text.encode("utf-8", "replace")),
    st.text("%.-_ A\u0301\u00e1\u212b2Ee/\\", min_size=1, max_size=8).map(str.encode),
).filter(lambda name: b"/" not in name and b"\0" not in name)


@settings(deadline=None)
@given(NAMES)
@example(b"l\nb")
@example(b"a\\b")
@example(b"bad\xff")
@example(b"..x")
@example(b"%2F")
@example(b"..")
@example(b".")
@example(b" ")
@example(b"+")
@example(b"--")
@example("ünï".encode())
@example("\u202egnp.exe".encode())
@example(DRAFT_PREFIX.encode() + b"0123456789abcdef")
def test_a_name_comes_back_from_its_key(name: bytes) -> None:
    part = escape_name(name)
    assert unescape_name(part) == name
    assert part not in (".", "..")
    assert not set(part) & set("/\\?#&+ <>\"'`|*:;$!{}[]^~\r\n\0")
    assert part.isprintable()
    part.encode()  # no surrogates
    if len(part.encode()) <= MAX_PART_BYTES:
        assert check_key(f"tenant/{part}") == f"tenant/{part}"


@settings(deadline=None)
@given(st.lists(NAMES, min_size=2, max_size=6, unique=True))
@example([b"a%0A", b"a\n"])
@example(["á".encode(), "a\u0301".encode()])
@example(["\u212b".encode(), "\u00c5".encode()])
@example([b"\xff", b"%FF"])
@example([b".", b"%2E"])
def test_no_two_names_have_one_key_also_where_unicode_is_made_equal(names: list[bytes]) -> None:
    parts = [escape_name(name) for name in names]
    assert len({unicodedata.normalize("NFC", part) for part in parts}) == len(names)


@settings(deadline=None)
@given(st.text(min_size=1, max_size=30))
def test_what_is_no_key_of_a_name_is_refused_and_not_guessed(text: str) -> None:
    try:
        name = unescape_name(text)
    except ObjectKeyError:
        return
    assert escape_name(name) == text


@pytest.mark.parametrize(
    "part", ["%41", "%2f", "%2F", "%00", "%", "a b", "", "..", "%2e%2e", "a\n"]
)
def test_another_way_to_write_a_name_is_refused(part: str) -> None:
    """Catches two keys that lead to one file, or one that leads to none."""
    with pytest.raises(ObjectKeyError):
        unescape_name(part)


def test_ordinary_names_stay_readable() -> None:
    for name in ("report-1_final.csv", "übersicht.txt", "日本語.md", ".bashrc", "a=b@c,d"):
        assert escape_name(name) == name
    assert escape_path(b"a b/c") == "a%20b/c"
    assert escape_name("a b", plain=" ") == "a b"
    assert escape_name("50%", plain="%") == "50%25"


@settings(deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=4))
def test_a_path_comes_back_from_its_key(parts: list[bytes]) -> None:
    path = b"/".join(parts)
    assert unescape_path(escape_path(path)) == path
    assert unescape_path(escape_path(os.fsdecode(path))) == path


@pytest.mark.parametrize("name", ["", "a/b", "nul\0"])
def test_what_is_no_name_has_no_key(name: str) -> None:
    with pytest.raises(ObjectKeyError):
        escape_name(name)


def test_a_tenant_can_not_reach_into_another_ones_prefix() -> None:
    assert key_prefix("acme", "run 7") == "acme/run%207"
    assert key_prefix("..", "x") == "%2E./x"
    for names in ((), ("a/b",), ("",), ("a", "")):
        with pytest.raises(ObjectKeyError):
            key_prefix(*names)


@pytest.mark.parametrize(
    "key",
    [
        *("", "/", "/abs", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\nb", "a\0b", "a\x7f"),
        *("a\ud800", "a\u2028b", f"a/{DRAFT_PREFIX}x"),
        *("x" * (MAX_PART_BYTES + 1), "é" * 128, "/".join(["x" * 250] * 5)),
    ],
)
def test_a_key_that_leads_elsewhere_or_that_some_store_refuses_is_refused(key: str) -> None:
    with pytest.raises(ObjectKeyError) as caught:
        check_key(key)
    assert len(str(caught.value)) < 2 * MAX_KEY_BYTES
    str(caught.value).encode("utf-8", "backslashreplace")


def test_a_key_is_text() -> None:
    with pytest.raises(ObjectKeyError, match="text, not bytes"):
        check_key(b"a")  # type: ignore[arg-type]


def test_a_key_of_exactly_the_limits_is_fine() -> None:
    assert check_key("x" * MAX_PART_BYTES)
    longest = "/".join(["x" * 204] * 5)
    assert len(check_key(longest)) == MAX_KEY_BYTES
