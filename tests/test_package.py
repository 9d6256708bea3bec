"""What the package promises to those who import it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from importlib import resources
from types import ModuleType

import pytest

import ringfence
from ringfence.errors import MissingDependencyError

# What comes with an extra, what only an entrance needs, and what is for development.
NOT_ON_IMPORT = (
    *(
        "matplotlib",
        "numpy",
        "obstore",
        "docker",
        "wasmtime",
        "kubernetes",
        "kubernetes_asyncio",
        "fastapi",
        "temporalio",
    ),
    *("typer", "click", "rich", "ringfence.cli", "ringfence.testing"),
    *("pytest", "hypothesis", "trio"),
    *("psycopg", "structlog", "opentelemetry", "prometheus_client"),
)
NOT_INSTALLED = (
    "matplotlib",
    "numpy",
    "obstore",
    "hypothesis",
    "trio",
    "mypy",
    "hatchling",
    "build",
    *("mcp", "mcp_types", "jupyter_client", "zmq"),
    *("psycopg", "structlog", "opentelemetry", "prometheus_client"),
)


def public_modules() -> list[str]:
    found = [
        module.name
        for module in pkgutil.walk_packages(ringfence.__path__, "ringfence.")
        if not any(part.startswith("_") for part in module.name.split("."))
        # Each imports a framework, and is tested where that is installed: scripts/suites.
        and not module.name.startswith("ringfence.adapters.")
    ]
    return ["ringfence", *sorted(found)]


def in_rooms(rooms: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{room}." for room in rooms)


def defined_names(module: ModuleType) -> set[str]:
    """Return the public classes and functions that the module's own source defines."""
    assert module.__file__
    with open(module.__file__, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in tree.body if isinstance(node, kinds) and node.name[0] != "_"}


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_marker_of_a_typed_package_is_shipped() -> None:
    assert resources.files("ringfence").joinpath("py.typed").is_file()


@pytest.mark.parametrize("name", public_modules())
def test_all_is_a_tuple_of_what_the_module_defines(name: str) -> None:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", ())
    assert isinstance(names, tuple)
    assert [entry for entry in names if not hasattr(module, entry)] == []
    assert len(set(names)) == len(names)
    assert defined_names(module) - set(names) == set()


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = run_python("import sys, ringfence; print(*sys.modules)").split()
    assert set(NOT_ON_IMPORT) & set(loaded) == set()


def test_every_module_imports_without_the_extras() -> None:
    """Catches an optional or a development package that is imported at the top of a module."""
    needy = ("ringfence.testing", "ringfence.mcp", "ringfence.cli.mcp")  # and say so
    modules = [name for name in public_modules() if not f"{name}.".startswith(in_rooms(needy))]
    run_python(
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({(*NOT_INSTALLED, 'pytest')!r}))\n"
        f"for name in {modules!r}: importlib.import_module(name)"
    )


@pytest.mark.parametrize(
    "name",
    [
        "inspect",
        "deepagents",
        "pydantic_ai",
        "strands",
        "google_adk",
        "harbor",
        "openai_agents",
        "smolagents",
    ],
)
def test_an_adapter_without_its_framework_names_the_extra(name: str) -> None:
    extra = name.replace("_", "-")
    with pytest.raises(MissingDependencyError, match=f"the adapter for {extra} needs") as caught:
        importlib.import_module(f"ringfence.adapters.{name}")
    assert caught.value.hint == f"pip install 'ringfence[{extra}]'"
