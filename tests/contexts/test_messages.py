"""What comes from a sandbox in a relay's place is taken apart within bounds, or refused."""

from __future__ import annotations

import json
import random

import pytest

from ringfence.contexts._bounds import MAX_PARTS, MAX_TRACEBACK, MESSAGE_BYTES, Run
from ringfence.contexts._messages import MAX_LINE, Message, MessageError, Messages
from ringfence.contexts.outputs import CodeResult, RichOutput, StreamOutput


def sent(about: dict[str, object], parts: dict[str, bytes] | None = None) -> bytes:
    told = [[name, len(data)] for name, data in (parts or {}).items()]
    return json.dumps({**about, "parts": told}).encode() + b"\n" + b"".join((parts or {}).values())


def test_messages_come_whole_however_they_are_cut() -> None:
    parts = {"text/plain": b"\n{}\n", "image/png": bytes(300), "empty": b""}
    stream = sent({"is": "msg", "id": "1"}, parts) + sent({"is": "done"}) + sent({"is": "ready"})
    for size in (1, 2, 7, len(stream)):
        taken = Messages(1000)
        found = [
            message
            for at in range(0, len(stream), size)
            for message in taken.feed(stream[at : at + size])
        ]
        assert [message.kind for message in found] == ["msg", "done", "ready"]
        assert found[0].parts == parts
        assert found[0].size == MESSAGE_BYTES + 304


@pytest.mark.parametrize(
    "line",
    [
        b"no json",
        b"[]",
        b"[" * 20_000,
        b'{"parts": 5}',
        b'{"parts": [5]}',
        b'{"parts": [["a", -1]]}',
        b'{"parts": [["a", 1.5]]}',
        b'{"parts": [["a", true]]}',
        b'{"parts": [["a", 1001]]}',
        b'{"parts": [["a", 600], ["b", 600]]}',
        b'{"parts": [["a", 1000000000000000000000000]]}',
        b'{"parts": [[5, 1]]}',
        b'{"parts": [["' + b"a" * 500 + b'", 1]]}',
        b'{"parts": [' + b'["a", 0],' * MAX_PARTS + b'["a", 0]]}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"x" * (MAX_LINE + 1),
        b"\xff\xfe",
    ],
    ids=lambda line: str(line[:20]),
)
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(MessageError):
        list(Messages(1000).feed(line + b"\n"))


def test_a_line_without_end_is_refused_before_it_is_kept() -> None:
    taken = Messages(1000)
    for _ in range(MAX_LINE // 64):
        assert list(taken.feed(b"x" * 64)) == []
    with pytest.raises(MessageError, match="too long"):
        list(taken.feed(b"x"))


def test_fields_of_the_wrong_kind_are_refused() -> None:
    message = Message("done", {"count": "5", "why": 5, "cut": {"a": "b"}})
    for read in (
        lambda: message.number("count"),
        lambda: message.number("nothing"),
        lambda: message.text("why"),
        lambda: message.text("nothing"),
        message.cut,
        lambda: Message("msg", {"cut": dict.fromkeys(map(str, range(999)), 1)}).cut(),
        lambda: Message("msg", {"why": "w" * 9999}).text("why"),
    ):
        with pytest.raises(MessageError):
            read()
    assert Message("msg", {"why": "\ud800"}).text("why") == "?"


@pytest.mark.fuzz
def test_no_bytes_do_anything_but_messages_and_refusals() -> None:
    chance = random.Random(5)
    whole = sent({"is": "msg", "id": "1", "cut": {"*": 5}}, {"stdout": b"text", "b": b""}) * 3
    refused = 0
    for _ in range(20_000):
        raw = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            raw[chance.randrange(len(raw))] = chance.choice(b'\n{}[]",:0123456789ab\xff')
        try:
            for message in Messages(100).feed(bytes(raw)):
                assert sum(map(len, message.parts.values())) <= 100
        except MessageError:
            refused += 1
    assert refused > 5_000


def test_a_relay_sends_what_there_is_room_for() -> None:
    run = Run("1", "r", item=1000, total=5000)
    content = {"data": {"text/plain": "t" * 2000, "text/html": "h" * 500, "image/png": "p" * 3000}}
    found = run.fitted("execute_result", content)
    assert found is not None
    about, parts = found
    assert {name: len(data) for name, data in parts.items()} == {
        "text/html": 500,
        "text/plain": 500,
    }
    assert about["cut"] == {"text/plain": 1500, "image/png": 3000}
    assert run.left == 5000 - MESSAGE_BYTES - 1000

    found = run.fitted("stream", {"name": "stdout", "text": "ä" * 600})
    assert found is not None
    assert (found[1], run.cut) == ({"stdout": "ä".encode() * 500}, 200)
    run.left = MESSAGE_BYTES
    assert run.fitted("stream", {"name": "stdout", "text": "more"}) is None
    assert run.cut == 204
    run.left = 0
    assert run.omitted("display_data", 7) is None
    assert run.cut == 211


def test_a_relay_cuts_tracebacks_and_forms_without_number() -> None:
    run = Run("1", "r", item=1 << 20, total=1 << 30)
    content = {"ename": "E", "evalue": "v", "traceback": ["t" * MAX_TRACEBACK, "u"]}
    found = run.fitted("error", content)
    assert found is not None
    assert found[0]["cut"] == {"traceback": 2}
    many = {f"application/{number}": {"a": number} for number in range(100)}
    found = run.fitted("display_data", {"data": many})
    assert found is not None
    assert len(found[1]) == MAX_PARTS
    assert found[0]["cut"]["*"] > 0


def test_a_result_gives_what_it_has() -> None:
    value = RichOutput({"text/plain": "5", "image/png": "no base64!", "image/jpeg": "AAAA"}, True)
    result = CodeResult((StreamOutput("stdout", "a"), value, StreamOutput("stdout", "b")))
    assert (result.stdout, result.stderr, result.value, result.displays) == (
        "ab",
        "",
        value,
        (value,),
    )
    assert (value.png, value.jpeg, value.svg, value.json()) == (None, b"\0\0\0", None, None)
    assert RichOutput({"application/json": "{"}).json() is None
    assert RichOutput({"application/json": "[" * 100_000}).json() is None
