"""What a tenant may have in a store, over all of its executions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from ringfence import FakeBackend, LimitError, Plan, Policy, SessionManager
from ringfence.export import ExportReport
from ringfence.leases import MemoryLeases
from ringfence.storage import ArtifactStore, LocalStore, open_store

pytestmark = pytest.mark.anyio

PLANS = {
    "free": Plan("free", storage_bytes=10),
    "large": Plan("large", storage_bytes=900_000),
    "open": Plan("open"),
}


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    return open_store("memory:") if request.param == "memory" else LocalStore(tmp_path)


@asynccontextmanager
async def manager() -> AsyncIterator[SessionManager]:
    backend = FakeBackend()
    sessions = SessionManager(backend, leases=MemoryLeases(), policy=Policy(PLANS))
    async with backend, sessions:
        yield sessions


async def export(
    sessions: SessionManager,
    store: ArtifactStore,
    name: str,
    files: dict[str, int],
    *,
    tenant: str = "acme",
    plan: str = "free",
) -> ExportReport:
    session = sessions.session(name, tenant_id=tenant, plan=plan)
    for path, size in files.items():
        await session.write_file(path, bytes([len(name)]) * size)
    return await sessions.export(name, store, tenant_id=tenant)


async def stored(store: ArtifactStore, tenant: str = "acme") -> int:
    """Return the bytes of a tenant's files, without the lists of them."""
    return sum([one.size async for one in store.list(tenant) if "/files/" in one.key])


async def test_all_executions_of_a_tenant_share_its_storage(store: ArtifactStore) -> None:
    async with manager() as sessions:
        await export(sessions, store, "first", {"a": 2, "b": 5})
        session = sessions.session("second", tenant_id="acme", plan="free")
        await session.write_file("c", b"x" * 9)
        # The list of the first one's files counts too, so nothing is left.
        with pytest.raises(LimitError, match="storage_bytes of 10 of plan 'free'") as caught:
            await sessions.export("second", store, tenant_id="acme")
        assert (caught.value.limit, caught.value.plan) == ("storage_bytes", "free")
        other = await export(sessions, store, "second", {"c": 9}, tenant="other")
        assert other.total_bytes == 9
    assert await stored(store) == 7


async def test_what_does_not_fit_is_skipped_and_named(store: ArtifactStore) -> None:
    async with manager() as sessions:
        report = await export(sessions, store, "run", {"a": 4, "b": 7, "c": 6})
    assert [file.path for file in report.files] == ["a", "c"]
    assert report.total_bytes == await stored(store) == 10
    assert [item.path for item in report.skipped] == ["b"]


async def test_exporting_again_needs_no_second_room_and_objects_that_stay_count(
    store: ArtifactStore,
) -> None:
    async with manager() as sessions:
        await export(sessions, store, "run", {"a": 4, "b": 4}, plan="free")
        again = await sessions.export("run", store, tenant_id="acme")
        assert all(file.unchanged for file in again.files)
        assert not again.skipped
        # The objects of files that are gone stay: a new name finds no room beside them.
        session = sessions.session("run", tenant_id="acme")
        await session.remove("a")
        await session.remove("b")
        await session.write_file("c", b"12")
        report = await sessions.export("run", store, tenant_id="acme")
        assert "storage_bytes" in report.skipped[0].reason
        assert await stored(store) == 8
        await store.delete("acme/run/files/a")
        await store.delete("acme/run/manifest.json")
        assert not (await sessions.export("run", store, tenant_id="acme")).skipped
    assert await stored(store) == 6


async def test_exports_at_one_time_share_what_is_left(store: ArtifactStore) -> None:
    files = {str(number): 50_000 for number in range(10)}
    async with manager() as sessions, anyio.create_task_group() as group:
        for name in ("a", "bb", "ccc"):
            group.start_soon(lambda name: export(sessions, store, name, files, plan="large"), name)
    assert 850_000 <= await stored(store) <= 900_000


async def test_a_large_file_is_broken_off_where_the_room_ends(store: ArtifactStore) -> None:
    async with manager() as sessions:
        report = await export(sessions, store, "run", {"x": 1_200_000, "y": 890_000}, plan="large")
        assert [file.path for file in report.files] == ["y"]
        assert await stored(store) == 890_000
        report = await export(sessions, store, "run", {"y": 880_000}, plan="large")
        assert (report.files[0].size, await stored(store)) == (880_000, 880_000)


async def test_a_plan_without_a_bound_asks_no_store(store: ArtifactStore) -> None:
    async with manager() as sessions:
        report = await export(sessions, store, "run", {"a": 5_000_000}, plan="open")
    assert report.total_bytes == 5_000_000
