"""S3 by a real service: what it takes, what it refuses, and what it is left with."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from ringfence import FakeBackend, export_workspace, read_manifest
from ringfence.errors import (
    ObjectMissingError,
    StoreAccessError,
    StoreError,
    StoreUnreachableError,
)
from ringfence.storage import (
    ArtifactStore,
    S3StoreConfig,
    StoredObject,
    escape_name,
    open_store,
)

from .contract import CHECKS, HARD_NAMES, MIB, keys, whole

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def fetch(url: str, method: str = "GET") -> tuple[int, bytes, dict[str, str]]:
    """Fetch a URL as a stranger would, and return status, body and headers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=20) as done:
            return done.status, done.read(), {k.lower(): v for k, v in done.headers.items()}
    except urllib.error.HTTPError as error:
        return error.code, error.read(), {}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_it_does_what_every_store_does(
    s3_store: ArtifactStore, check: Callable[[ArtifactStore], Awaitable[None]]
) -> None:
    await check(s3_store)


async def test_a_large_object_goes_in_parts_and_comes_back_the_same(
    s3_store: ArtifactStore,
) -> None:
    sha256 = hashlib.sha256()

    async def content() -> AsyncIterator[bytes]:
        for _ in range(40):
            part = os.urandom(MIB)
            sha256.update(part)
            yield part

    stored = await s3_store.put("large", content())
    assert (stored.size, stored.sha256) == (40 * MIB, sha256.hexdigest())
    back = hashlib.sha256()
    async for part in s3_store.get("large"):
        assert len(part) <= 8 * MIB
        back.update(part)
    assert back.hexdigest() == sha256.hexdigest()
    assert await s3_store.head("large") == replace(
        stored, modified=(await s3_store.head("large")).modified
    )


async def test_an_object_that_is_replaced_while_it_is_read_is_an_error_and_no_mixture(
    s3_store: ArtifactStore,
) -> None:
    await s3_store.put("a", b"1" * (9 * MIB))
    parts = s3_store.get("a")
    assert set(await anext(parts)) == {ord("1")}
    await s3_store.put("a", b"2" * (9 * MIB))
    async with aclosing(parts):
        with pytest.raises(StoreError, match="replaced meanwhile"):
            await anext(parts)


async def test_a_link_downloads_the_object_and_nothing_else(s3_store: ArtifactStore) -> None:
    await s3_store.put("t/report.html", b"<script>", media_type="text/html")
    await s3_store.put("t/other", b"other")
    link = await s3_store.link("t/report.html", expires_in=60)
    status, body, headers = fetch(link)
    assert (status, body) == (200, b"<script>")
    assert headers["content-type"] == "text/html"
    assert headers["content-disposition"] == "attachment"  # a browser saves it, and runs nothing
    tampered = {
        "path": link.replace("report.html", "other"),
        "expiry": re.sub("Expires=60", "Expires=6000", link),
        "date": re.sub(r"Date=(\d{4})", "Date=2030", link),
        "key": re.sub("Credential=.", "Credential=Z", link),
        "signature": link[:-1] + ("0" if link[-1] != "0" else "1"),
        "none": link.partition("?")[0],
    }
    assert {what: fetch(url)[0] for what, url in tampered.items()} == dict.fromkeys(tampered, 403)
    for method in ("PUT", "DELETE"):
        assert fetch(link, method)[0] == 403
    assert await whole(s3_store, "t/other") == b"other"


async def test_a_link_expires(s3_store: ArtifactStore) -> None:
    await s3_store.put("a", b"x")
    link = await s3_store.link("a", expires_in=1)
    deadline = time.monotonic() + 20
    while (status := fetch(link)[0]) == 200 and time.monotonic() < deadline:
        await anyio.sleep(0.2)
    assert status == 403
    assert fetch(await s3_store.link("a", expires_in=60))[0] == 200


async def test_links_work_for_names_that_are_hard_to_write(s3_store: ArtifactStore) -> None:
    for name in HARD_NAMES:
        key = f"t/{escape_name(name)}"
        await s3_store.put(key, name)
        assert fetch(await s3_store.link(key))[:2] == (200, name)


async def test_a_wrong_secret_is_refused_for_everything_and_shown_by_nothing(
    s3_store: ArtifactStore, stranger: ArtifactStore, s3_config: S3StoreConfig
) -> None:
    await s3_store.put("a", b"mine")
    for call in (
        stranger.put("a", b"theirs"),
        stranger.put("b", b"theirs"),
        stranger.head("a"),
        whole(stranger, "a"),
        stranger.delete("a"),
        keys(stranger),
    ):
        with pytest.raises(StoreAccessError) as caught:
            await call
        shown = f"{caught.value} {caught.value!r} {caught.value.__cause__} {vars(caught.value)}"
        assert s3_config.secret_access_key not in shown
        assert s3_config.access_key_id not in shown
        assert caught.value.__suppress_context__
    assert fetch(await stranger.link("a"))[0] == 403
    assert await keys(s3_store) == ["a"]
    assert await whole(s3_store, "a") == b"mine"


async def test_a_prefix_is_a_store_of_its_own(
    s3_store: ArtifactStore, s3_config: S3StoreConfig
) -> None:
    other = open_store(replace(s3_config, prefix=f"{s3_config.prefix}-other"))
    await s3_store.put("a", b"1")
    with pytest.raises(ObjectMissingError):
        await other.head("a")
    assert await keys(other) == []


async def test_a_service_that_is_not_there_is_said_so_in_time(s3_config: S3StoreConfig) -> None:
    nowhere = open_store(replace(s3_config, endpoint="http://127.0.0.1:9", timeout=10))
    with anyio.fail_after(60), pytest.raises(StoreUnreachableError) as caught:
        await nowhere.put("a", b"x")
    assert caught.value.retryable
    assert s3_config.access_key_id not in str(caught.value)


async def test_an_export_and_its_manifest_come_back(s3_store: ArtifactStore) -> None:
    async with FakeBackend() as backend:
        sandbox = await backend.create()
        for name in HARD_NAMES:
            if name not in (b".", b"..") and len(name) < 255:
                await sandbox.write_file(b"d/" + name, name)
        await sandbox.write_file("large", b"x" * (20 * MIB))
        report = await export_workspace(sandbox, s3_store, prefix="acme/run")
    assert report.skipped == ()
    back = await read_manifest(s3_store, "acme/run")
    assert back == report
    for file in back.files:
        found = await whole(s3_store, file.key)
        assert (len(found), hashlib.sha256(found).hexdigest()) == (file.size, file.sha256)
    assert await keys(s3_store) == sorted([*(file.key for file in back.files), back.manifest])


EXPORTER = """
import json, sys
import anyio
from ringfence import FakeBackend, S3StoreConfig, export_workspace, open_store

async def main():
    store = open_store(S3StoreConfig(**json.load(sys.stdin)))
    async with FakeBackend() as backend:
        sandbox = await backend.create()
        for number in range(200):
            await sandbox.write_file(f"f/{number}", b"%d" % number * 20_000)
        def tell(event):
            print(event.outcome, event.path, flush=True)
        await export_workspace(sandbox, store, prefix="acme/run", on_progress=tell)

anyio.run(main)
"""


async def _settled(store: ArtifactStore, prefix: str) -> list[StoredObject]:
    """What is there once the service has done with what it had got before its caller died."""
    there: list[StoredObject] = []
    for _ in range(20):
        before, there = there, [item async for item in store.list(prefix)]
        if before == there and there:
            return there
        await anyio.sleep(0.5)
    raise AssertionError("objects still come to be 10 s after their writer was killed")


async def test_an_export_that_was_killed_in_the_middle_goes_on_where_it_was(
    s3_store: ArtifactStore, s3_config: S3StoreConfig, tmp_path: Path
) -> None:
    settings = json.dumps(vars(s3_config))

    def run(kill_after: int | None) -> list[str]:
        program = subprocess.Popen(
            [sys.executable, "-c", EXPORTER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with program:
            assert program.stdin
            assert program.stdout
            program.stdin.write(settings)
            program.stdin.close()
            told = []
            for line in program.stdout:
                told.append(line.split()[0])
                if len(told) == kill_after:
                    program.send_signal(signal.SIGKILL)
                    break
        return told

    run(50)
    with pytest.raises(ObjectMissingError):
        await read_manifest(s3_store, "acme/run")
    there = await _settled(s3_store, "acme/run/files")
    assert 50 <= len(there) < 200
    assert {item.size for item in there} <= {20_000, 40_000, 60_000}  # whole, each of them
    told = run(None)
    assert told.count("unchanged") == len(there)
    assert told.count("exported") == 200 - len(there)
    assert len((await read_manifest(s3_store, "acme/run")).files) == 200
    assert run(None).count("unchanged") == 200


async def test_the_service_is_asked_nothing_by_a_name_that_smuggles_a_header(
    s3_store: ArtifactStore,
) -> None:
    """Catches a name or type that ends a header and begins another."""
    link = await s3_store.link(f"t/{escape_name(b'a' + bytes([13, 10]) + b'X: y')}")
    parts = urlsplit(link)
    assert "\r" not in link
    assert "\n" not in link
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    connection.request("GET", f"{parts.path}?{parts.query}")
    assert connection.getresponse().status == 404
    connection.close()
