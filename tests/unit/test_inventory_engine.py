"""What an engine keeps for us, as the inventory sees it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ringfence import inventory
from ringfence.inventory.entries import parse_entry


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RINGFENCE_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_store_has_one_name_whoever_asks_first(place: Path) -> None:
    names: set[str] = set()
    threads = [threading.Thread(target=lambda: names.add(inventory.store_id())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (name,) = names
    assert len(name) == 16
    assert inventory.store_id() == name
    assert [path.name for path in place.iterdir()] == ["store"]


def test_stores_do_not_share_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = inventory.store_id()
    monkeypatch.setenv("RINGFENCE_STATE_DIR", str(tmp_path / "other"))
    assert inventory.store_id() != first


def test_an_entry_names_its_engine_and_older_ones_have_none() -> None:
    entry = inventory.Entry("rf-1", "container", engine="unix:///x")
    assert parse_entry(entry.to_json()) == entry
    older = entry.to_json().replace(b'"engine": "unix:///x", ', b"")
    assert b"engine" not in older
    parsed = parse_entry(older)
    assert parsed is not None
    assert parsed.engine is None
