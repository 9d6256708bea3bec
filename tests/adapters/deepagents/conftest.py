"""What of the suite can't pass, and why; docs/integrations.md has the same."""

from __future__ import annotations

from importlib.metadata import version

import pytest

GLOB = "deepagents answers with absolute paths from 0.7 on; the suite expects relative ones"
GAPS = {
    "test_glob": GLOB,
    "test_glob_basic_pattern": GLOB,
    "test_glob_with_directories": GLOB,
    "test_glob_hidden_files_explicitly": GLOB,
    "test_glob_with_character_class": GLOB,
    "test_glob_with_question_mark": GLOB,
    "test_write_existing_file_fails": "deepagents replaces an existing file from 0.7 on; the suite "
    "expects a refusal",
}
"""What the suite of langchain-tests 1.1 and deepagents 0.7 say differently. An adapter that did as
the suite says would break what deepagents builds on: its rules about paths need absolute ones."""

IS_LATER = tuple(map(int, version("deepagents").split(".")[:2])) >= (0, 7)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = getattr(item, "originalname", item.name)
        if IS_LATER and item.path.name == "test_standard.py" and name in GAPS:
            item.add_marker(pytest.mark.xfail(reason=GAPS[name], strict=True))
