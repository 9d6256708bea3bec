"""The parts of the MCP server that need neither a sandbox nor a client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.errors import ConfigError, LimitError
from ringfence.mcp import HttpAccess, McpOptions, read_tokens
from ringfence.mcp.access import listen, parse_address
from ringfence.mcp.admission import Admission
from ringfence.mcp.images import recognize

HEADS = [
    b"\x89PNG\r\n\x1a\n",
    b"GIF89a",
    b"RIFF\0\0\0\0WEBPVP8X",
    b"RIFF\0\0\0\0WEBPVP8L",
    b"RIFF\0\0\0\0WEBPVP8 ",
    b"\xff\xd8\xff",
]


@given(st.sampled_from(HEADS), st.binary(max_size=200))
def test_whatever_follows_an_images_first_bytes_is_read_without_a_fault(
    head: bytes, rest: bytes
) -> None:
    found = recognize(head + rest)
    assert found is not None
    assert 0 <= found.width < 2**32
    assert 0 <= found.height < 2**32


@given(st.binary(max_size=64))
def test_what_is_no_image_is_none(data: bytes) -> None:
    starts = (b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"\xff\xd8\xff", b"RIFF")
    if not data.startswith(starts):
        assert recognize(data) is None


def test_a_jpeg_whose_segments_lead_nowhere_ends() -> None:
    """Catches a walk that goes round in segments of no length."""
    assert recognize(b"\xff\xd8" + b"\xff\xe0\0\0" * 100_000) is not None
    assert recognize(b"\xff\xd8" + b"\xff" * 100_000) is not None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("[::1]:8000", ("::1", 8000)),
        (":0", ("127.0.0.1", 0)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_an_address(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "8000", "localhost", "host:", "host:http", "host:65536", "h:-1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no address"):
        parse_address(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "sandbox.example"])
def test_nobody_listens_to_other_machines_without_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="no token"):
        listen(host, 0, HttpAccess())


def test_a_port_that_is_taken_is_said() -> None:
    with listen("127.0.0.1", 0, HttpAccess()) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match="nobody can listen"):
            listen("127.0.0.1", port, HttpAccess())


def test_tokens_of_a_variable_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# two of them\n\n{'b' * 20}\n  {'c' * 20}  \n")
    path.chmod(0o600)
    monkeypatch.setenv("A_TOKEN", "a" * 20)
    found = read_tokens("A_TOKEN", str(path))
    assert found == {"a" * 20: "token1", "b" * 20: "token2", "c" * 20: "token3"}


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [
        ("short\n", 0o600, "fewer than 16"),
        ("has spaces in it, many\n", 0o600, "printable ASCII"),
        ("# none\n", 0o600, "no token in it"),
        ("a" * 20, 0o644, "others may read"),
        (b"\xff" * 20, 0o600, "can't be read"),
    ],
)
def test_tokens_that_protect_nothing_are_refused(
    tmp_path: Path, content: str | bytes, mode: int, said: str
) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.chmod(path, mode)
    with pytest.raises(ConfigError, match=said) as caught:
        read_tokens(None, str(path))
    assert "short" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["idle_timeout", "gone_timeout", "max_sessions", "max_contexts", "calls_at_once"]
)
def test_an_option_that_allows_nothing_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        McpOptions(**{name: 0})  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_places_are_given_in_turn_and_given_back() -> None:
    admission = Admission(2, 1)
    order: list[int] = []
    refused = anyio.Event()

    async def one(number: int) -> None:
        async with admission.place():
            order.append(number)
            await refused.wait()

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(one, number)
            await anyio.sleep(0)
        with pytest.raises(LimitError, match="2 calls run and 1 wait"):
            async with admission.place():
                pass
        refused.set()
    assert order == [0, 1, 2]
    with anyio.move_on_after(0):
        async with admission.place():
            await anyio.sleep(5)
    async with admission.place(), admission.place():
        order.append(3)


@pytest.mark.parametrize("program", ["import ringfence.mcp", "import ringfence.cli.mcp"])
def test_without_the_sdk_it_says_what_to_install(program: str) -> None:
    hidden = "import sys; sys.modules.update(dict.fromkeys(['mcp', 'mcp_types'])); "
    done = subprocess.run(
        [sys.executable, "-c", hidden + program], capture_output=True, text=True, timeout=30
    )
    assert "MissingDependencyError" in done.stderr
    assert "ringfence[mcp]" in done.stderr


def test_the_other_commands_do_without_the_sdk() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['mcp', 'mcp_types'])); "
        "from ringfence.cli import main; sys.argv = ['ringfence', *sys.argv[1:]]; sys.exit(main())"
    )
    for words, code, said in (
        (["--version"], 0, "ringfence"),
        (["mcp"], 125, "pip install 'ringfence[mcp]'"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=30
        )
        assert done.returncode == code
        assert said in done.stdout + done.stderr
