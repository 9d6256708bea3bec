"""The command: see the package."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from .cost import measure
from .environments import CACHE, Environment, environments, has_python, make
from .frameworks import FRAMEWORKS, Framework
from .locks import lock
from .npm import lock_conformance
from .running import Outcome, check
from .table import markdown, text
from .uv import SuiteError

LAST = CACHE / "last.json"
"""What the last complete run came to."""

MADE_AT_ONCE = 4
RUN_AT_ONCE = 2
"""Environments, of which most of the one and much of the other is waiting."""


def main(argv: Sequence[str]) -> int:
    """Do what the words say and return the exit code."""
    words, options = list(argv), []
    if "--" in words:
        where = words.index("--")
        words, options = words[:where], words[where + 1 :]
    parser = argparse.ArgumentParser(prog="python -m scripts.suites")
    parser.add_argument("verb", choices=("run", "make", "lock", "table", "cost"))
    parser.add_argument("framework", nargs="*", choices=[*FRAMEWORKS, []])
    version = parser.add_mutually_exclusive_group()
    version.add_argument("--pinned", action="store_true", help="the pinned version alone")
    version.add_argument("--newest", action="store_true", help="the newest version alone")
    wanted = parser.parse_args(words)
    if wanted.verb == "table":
        print(markdown([Outcome(**row) for row in json.loads(LAST.read_text("utf-8"))]))
        return 0
    frameworks = [FRAMEWORKS[name] for name in wanted.framework or FRAMEWORKS]
    if wanted.verb == "lock":
        for framework in frameworks:
            print(f"{framework.name:14} {lock(framework)}")
        if not wanted.framework:
            lock_conformance()
        return 0
    kinds = [kind for kind in ("pinned", "newest") if getattr(wanted, kind)]
    made, not_run = made_environments(frameworks, kinds or ["pinned", "newest"])
    if wanted.verb == "make":
        return 0
    if wanted.verb == "cost":
        for environment in made:
            for operation, added in measure(environment).items():
                print(f"{environment.framework.name:14} {operation:32} {added:+.3f} ms")
        return 0
    with ThreadPoolExecutor(1 if options else RUN_AT_ONCE) as pool:
        outcomes = list(pool.map(partial(check, options=options), made))
    if not (options or kinds or wanted.framework):
        LAST.write_text(json.dumps([outcome.to_dict() for outcome in outcomes]), "utf-8")
    print(text(outcomes))
    for framework in not_run:
        print(f"not run: {framework.name} needs Python {framework.python}, and there is none here")
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def made_environments(
    frameworks: Sequence[Framework], kinds: Sequence[str]
) -> tuple[list[Environment], list[Framework]]:
    """Make the environments, and return them with the frameworks that can't have one here."""
    began = time.monotonic()
    able = [framework for framework in frameworks if has_python(framework)]
    wanted = [one for framework in able for one in environments(framework, kinds)]
    with ThreadPoolExecutor(MADE_AT_ONCE) as pool:
        list(pool.map(make, wanted))
    print(f"suites: {len(wanted)} environments: {time.monotonic() - began:.1f} s", flush=True)
    return wanted, [framework for framework in frameworks if framework not in able]


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except SuiteError as error:
        print(f"suites: {error}", file=sys.stderr)
        sys.exit(1)
