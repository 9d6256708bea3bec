"""The documentation can't point at what is not there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.suites.frameworks import FRAMEWORKS

PROJECT = Path(__file__).parent.parent
PAGES = sorted([*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")])

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```+|~~~+)(.*?)\n(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+\s+(.*?)\s*#*$", re.MULTILINE)

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made as code hosts make them."""
    text = FENCE.sub("", page.read_text("utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in HEADING.findall(text)
    }


def python_blocks(page: Path) -> list[str]:
    blocks = FENCE.findall(page.read_text("utf-8"))
    return [body for _, language, body in blocks if language.strip() in ("python", "py")]


def parse(block: str) -> ast.Module:
    """Parse a block, in which `await` may stand alone as it does in a page."""
    compile(block, "block", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return ast.parse(block)


def missing_names(tree: ast.Module) -> list[str]:
    imported = [
        f"{node.module}:{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ringfence")
        for alias in node.names
    ]
    imported += [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.startswith("ringfence")
    ]
    return [name for name in imported if not exists(name)]


def defined_names(module: str) -> set[str]:
    """Return the names that a module of this project makes, without importing it."""
    source = PROJECT / "src" / f"{module.replace('.', '/')}.py"
    tree = ast.parse(source.read_text("utf-8")) if source.is_file() else ast.Module([], [])
    names = {getattr(node, "name", "") for node in tree.body}
    assigned = [node.targets for node in tree.body if isinstance(node, ast.Assign)]
    return names | {getattr(one, "id", "") for targets in assigned for one in targets}


def exists(name: str) -> bool:
    module, _, attribute = name.partition(":")
    if module.startswith("ringfence.adapters."):  # its framework is not installed here
        return attribute in public_names(module)
    if attribute and hasattr(importlib.import_module(module), attribute):
        return True
    return importlib.util.find_spec(name.replace(":", ".")) is not None


def public_names(module: str) -> list[str]:
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    for node in ast.parse(Path(spec.origin).read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: tuple[str, ...] = ast.literal_eval(node.value)
            return list(names)
    return []


def test_there_are_pages() -> None:
    assert {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"} <= {
        page.name for page in PAGES
    }


@pages
def test_relative_links_lead_somewhere(page: Path) -> None:
    broken = []
    for match in LINK.finditer(FENCE.sub("", page.read_text("utf-8"))):
        link = match[1] or match[2]
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name) if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pages
def test_python_in_the_docs_is_python_and_imports_what_exists(page: Path) -> None:
    missing = [name for block in python_blocks(page) for name in missing_names(parse(block))]
    assert missing == []


def marks(block: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a program that needs more than this machine's kernel."""
    if POD_IMAGE in block:
        return [pytest.mark.kubernetes]
    return [pytest.mark.container] if DEFAULT_IMAGE in block else []


# What makes containers needs an engine, and an image that the tests have.
DEFAULT_IMAGE, TEST_IMAGE = "ringfence-sandbox:latest", "ringfence-test:python"

POD_IMAGE = "python:3.12-slim"

RUNNABLE = [
    pytest.param(
        block.replace(DEFAULT_IMAGE, TEST_IMAGE).replace(POD_IMAGE, TEST_IMAGE),
        id=f"{page.name}-{number}",
        marks=marks(block),
    )
    for page in PAGES
    for number, block in enumerate(python_blocks(page))
    if "async def main()" in block
]


@pytest.mark.parametrize("block", RUNNABLE)
def test_a_whole_program_in_the_docs_runs(block: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{block}\nimport anyio\nanyio.run(main)"],
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_the_page_of_integrations_has_each_framework_at_its_pinned_version() -> None:
    page = (PROJECT / "docs" / "integrations.md").read_text("utf-8")
    missing = [
        f"{name} {version}"
        for framework in FRAMEWORKS.values()
        for name, version in list(framework.pins.items())[:1]
        if f"| {name} | {version} |" not in page
    ]
    assert missing == []


def test_the_readme_has_a_whole_program() -> None:
    assert any(param.id == "README.md-0" for param in RUNNABLE)
