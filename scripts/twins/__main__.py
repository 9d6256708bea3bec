"""Writes src/ringfence/sync.py, the synchronous twins of the async classes, from their source.

    python -m scripts.twins            write it
    python -m scripts.twins --check    say whether it is up to date: 0 if so, else 1

Every public method, property and attribute gets a twin with the same signature and docstring that
waits for the async one. What differs is in `tables`.
"""

import argparse
import ast
import difflib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from .tables import (
    BASES,
    BODIES,
    CALLS,
    CLASSES,
    HEAD,
    INITS,
    LEFT_OUT,
    MAKERS,
    PARTS,
    RENAMED,
    SPECIAL,
    TAIL,
    WORDS,
)

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "ringfence"
TARGET = PACKAGE / "sync.py"
TARGET_KIND = "str | os.PathLike[str] | ArtifactStore"

Definition: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def main() -> int:
    """Write the file, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    wanted = formatted(generated())
    found = TARGET.read_text() if TARGET.exists() else ""
    if not check:
        TARGET.write_text(wanted)
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(
            found.splitlines(keepends=True), wanted.splitlines(keepends=True), "found", "wanted"
        )
    )
    return int(found != wanted)


def formatted(source: str) -> str:
    """Return the source as ruff formats it."""
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(ruff, input=source, text=True, check=True, stdout=subprocess.PIPE).stdout


def generated() -> str:
    """Return the whole module."""
    parts = [HEAD.strip()]
    parts += [twin_class(name, parsed(file)) for name, file in CLASSES.items()]
    parts += [twin_maker(find(parsed(file), name), *how) for name, (file, *how) in MAKERS.items()]
    parts += [twin_call(parsed(file), name, room) for name, (file, room) in CALLS.items()]
    parts.append(TAIL.strip())
    return "\n\n\n".join(parts) + "\n"


def parsed(file: str) -> ast.Module:
    """Parse one module of the package."""
    return ast.parse((PACKAGE / file).read_text())


def find(module: ast.Module, name: str) -> Definition:
    """Return the class or function of a name."""
    for node in module.body:
        if isinstance(node, Definition) and node.name == name:
            return node
    raise SystemExit(f"there is no {name} in the source")


def members(module: ast.Module, name: str) -> Iterator[tuple[ast.stmt, str]]:
    """Yield what a class and its bases that have no twin define, with the attributes' texts."""
    node = find(module, name)
    assert isinstance(node, ast.ClassDef)
    for statement, after in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = str(after.value.value)
        yield statement, text
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id.startswith("_"):
            yield from members(module, base.id)
        elif isinstance(base, ast.Name) and base.id in PARTS:
            yield from members(parsed(PARTS[base.id]), base.id)


def twin_class(name: str, module: ast.Module) -> str:
    """Return the synchronous class."""
    doc = indented(docstring(find(module, name)))
    enters = "Entered(" in SPECIAL.get(f"{name}.__aenter__", "")
    state = "    self._entered: Entered | None = None\n" if enters else ""
    init = f"def __init__(self, inner: Async{name}) -> None:\n    self._inner = inner\n" + state
    if name in INITS:
        init = textwrap.dedent(INITS[name]).strip() + "\n"
    base = f"({BASES[name]})" if name in BASES else ""
    parts = [f"class {name}{base}:\n{doc}\n", init]
    done = set()
    for node, text in members(module, name):
        made = twin_member(name, node, text)
        if made and made[0] not in done:
            done.add(made[0])
            parts.append(made[1])
    parts.append("def __repr__(self) -> str:\n    return repr(self._inner)\n")
    return parts[0] + "\n" + "\n".join(indented(part) for part in parts[1:])


def twin_member(owner: str, node: ast.stmt, text: str) -> tuple[str, str] | None:
    """Return the name and source of one member's twin, or None if it has none."""
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        name = node.target.id
        if name.startswith("_") or f"{owner}.{name}" in LEFT_OUT:
            return None
        kind = ast.unparse(node.annotation).removeprefix("ClassVar[").removesuffix("]")
        return name, twin_property(name, kind, text)
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    if special := SPECIAL.get(f"{owner}.{node.name}"):
        return node.name, textwrap.dedent(special).strip() + "\n"
    if node.name.startswith("_") or f"{owner}.{node.name}" in LEFT_OUT:
        return None
    if any(isinstance(item, ast.Name) and item.id == "property" for item in node.decorator_list):
        assert node.returns
        return node.name, twin_property(
            node.name, ast.unparse(node.returns), ast.get_docstring(node) or ""
        )
    return node.name, twin_method(owner, node)


def twin_property(name: str, kind: str, text: str) -> str:
    """Return a property that reads the async one's attribute."""
    doc = indented(quoted(text)) if text else ""
    return f"@property\ndef {name}(self) -> {kind}:\n{doc}    return self._inner.{name}\n"


def twin_method(owner: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return a method that waits for the async one."""
    assert node.returns
    kind = ast.unparse(node.returns).rpartition(".")[2].replace("Async", "")
    name = RENAMED.get(node.name, node.name)
    body = textwrap.dedent(BODIES.get(f"{owner}.{node.name}", "")).strip()
    if not body:
        arguments = list(passed(node.args))
        if isinstance(node, ast.AsyncFunctionDef):
            body = f"call({', '.join([f'self._inner.{node.name}', *arguments])})"
        else:
            body = f"self._inner.{node.name}({', '.join(arguments)})"
        if kind in CLASSES:
            body = f"{kind}({body})"
        if kind != "None":
            body = f"return {body}"
    head = f"def {name}({signature(node.args)}) -> {kind}:\n"
    if kind.startswith("Iterator["):
        head = f"@contextmanager\n{head}"
    return head + indented(docstring(node)) + indented(body) + "\n"


def twin_maker(node: Definition, room: str, made: str) -> str:
    """Return a function that wraps what the other one makes."""
    assert isinstance(node, ast.FunctionDef)
    arguments = ", ".join(passed(node.args))
    head = f"def {node.name}({ast.unparse(node.args)}) -> {made}:\n"
    body = f"    return {made}({room}.{node.name}({arguments}))"
    return head + indented(docstring(node)) + body


def twin_call(module: ast.Module, name: str, room: str) -> str:
    """Return a function that hands the async sandbox to the other one, and waits or wraps."""
    node = find(module, name)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    assert node.returns
    _, *rest = passed(node.args)
    kind = ast.unparse(node.returns)
    head = f"def {name}({signature(node.args)}) -> {kind}:\n"
    given = f"sandbox._inner, {', '.join(rest)}"
    if isinstance(node, ast.FunctionDef):
        body = f"    return {kind}({room}.{name}({given}))"
    else:
        body = f"    return call({room}.{name}, {given})"
    return head + indented(docstring(node)) + body


def passed(arguments: ast.arguments) -> Iterator[str]:
    """Yield the arguments as a call passes them on."""
    for item in [*arguments.posonlyargs, *arguments.args]:
        if item.annotation is not None and ast.unparse(item.annotation) == TARGET_KIND:
            yield f"_place({item.arg})"
        elif item.arg != "self":
            yield item.arg
    for item in arguments.kwonlyargs:
        yield f"{item.arg}={item.arg}"


def signature(arguments: ast.arguments) -> str:
    """Return the arguments as they are declared; an export goes to either kind of store."""
    return ast.unparse(arguments).replace(TARGET_KIND, "_Target")


def docstring(node: Definition) -> str:
    """Return a docstring as source, in the words of synchronous code."""
    return quoted(ast.get_docstring(node) or "")


def quoted(text: str) -> str:
    """Return a text as a docstring."""
    for old, new in WORDS:
        text = text.replace(old, new)
    end = "\n" if "\n" in text else ""
    return f'"""{text}{end}"""\n'


def indented(text: str) -> str:
    """Indent by one level."""
    return textwrap.indent(text, "    ")


if __name__ == "__main__":
    sys.exit(main())
