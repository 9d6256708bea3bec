"""What the standard tests don't look at: agents, threads and loops, limits and ends."""

from __future__ import annotations

import asyncio
import re

import pytest

from ringfence import SessionManager, open_backend, sync
from ringfence.adapters.deepagents import RingfenceBackend
from ringfence.errors import ConfigError, SandboxLostError, UnsupportedError

from ..backends import on_each_backend, settings


@on_each_backend
def test_what_was_cut_and_what_took_too_long_is_said(backend: str) -> None:
    with sync.open_backend(settings(backend)) as opened, opened.create() as sandbox:
        adapter = RingfenceBackend(sandbox)
        cut = adapter.execute("head -c 2000000 /dev/zero; echo end >&2")
        assert (cut.exit_code, cut.truncated) == (0, True)
        assert re.search(r"end\n", cut.output)
        assert "of 2000000 bytes of stdout only the first 1048576 were kept" in cut.output
        late = adapter.execute("echo so far; sleep 60", timeout=4)
        assert late.exit_code == 124
        assert late.output.startswith("so far\n[TIMEOUT")
        lost = adapter.execute("echo out; echo err >&2; exit 3")
        assert (sorted(lost.output.split()), lost.exit_code) == (["err", "out"], 3)


@on_each_backend
async def test_a_session_of_this_loop_is_awaited_here_and_called_from_threads(backend: str) -> None:
    async with open_backend(settings(backend)) as opened, SessionManager(opened) as sessions:
        adapter = RingfenceBackend(sessions.session("one"))
        assert (await adapter.aexecute("echo here")).output == "here\n"
        assert (await asyncio.to_thread(adapter.execute, "echo there")).output == "there\n"
        with pytest.raises(UnsupportedError, match=r"ringfence\.sync"):
            adapter.execute("echo stuck")
        (answer,) = await adapter.aupload_files([("/workspace/x/../../usr/y", b"")])
        assert answer.error in ("permission_denied", "invalid_path")


def test_a_sandbox_that_died_is_an_error_of_its_own() -> None:
    with sync.open_backend("bubblewrap") as opened, opened.create() as sandbox:
        adapter = RingfenceBackend(sandbox)
        adapter.execute("true")
        sandbox.close()
        with pytest.raises(Exception, match="closed") as caught:
            adapter.execute("true")
        assert not isinstance(caught.value, SandboxLostError)


def test_what_is_no_sandbox_is_refused() -> None:
    with pytest.raises(ConfigError, match="sandbox or a session"):
        RingfenceBackend("bubblewrap")  # type: ignore[arg-type]
