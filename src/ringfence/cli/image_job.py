"""Building images, with what is going on shown on stderr, and listing them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import cast

from ..config import ContainerConfig
from ..image import BuiltImage, Step, Way, build_image, list_images
from . import words
from .interrupts import unless_interrupted

__all__ = ("Order", "build_one", "list_all")

_LINE_WIDTH = 60


@dataclass(frozen=True)
class Order:
    """What `ringfence image build` was asked for."""

    tag: str
    way: str
    with_data: bool
    base: str
    timeout: float
    host: str


async def build_one(order: Order) -> int:
    """Build an image, say what came of it, and return the exit code."""
    return await unless_interrupted(partial(_build, order))


async def _build(order: Order) -> int:
    began = time.monotonic()
    with _shown(f"building {order.tag}") as show:
        built = await build_image(
            way=cast("Way", order.way),
            with_data=order.with_data,
            tag=order.tag,
            base=order.base,
            engine=_engine(order.host),
            timeout=order.timeout,
            on_step=show,
        )
    took = words.span(time.monotonic() - began)
    print(f"{built.tag}: {words.size(built.size_bytes)}, built in {took}")
    return 0


async def list_all(host: str, as_json: bool) -> None:
    """Print the images that were made of the recipe."""
    found = await list_images(engine=_engine(host))
    if as_json:
        print(json.dumps([_row(image) for image in found], indent=2))
        return
    if not found:
        words.say("there is none yet: ringfence image build makes one")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("image", "size", "age", "data packages", "recipe", box=None, pad_edge=False)
    for image in found:
        age = (datetime.now(UTC) - image.created_at).total_seconds()
        table.add_row(
            image.tag,
            words.size(image.size_bytes),
            words.span(max(age, 0)),
            "yes" if image.with_data else "no",
            "current" if image.is_current else "older",
        )
    Console().print(table)


def _row(image: BuiltImage) -> dict[str, object]:
    return {**asdict(image), "created_at": image.created_at.isoformat()}


def _engine(host: str) -> ContainerConfig:
    return ContainerConfig(host=host)


@contextmanager
def _shown(title: str) -> Iterator[Callable[[Step], None]]:
    """Yield what shows the steps: a bar on a terminal, else a line for each."""
    if not sys.stderr.isatty():
        yield _say
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn(title, markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns,
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("", total=None)

        def show(step: Step) -> None:
            text = words.one_line(step.text)[:_LINE_WIDTH]
            progress.update(task, description=escape(text))
            if step.number is not None and step.count is not None:
                progress.update(task, completed=step.number - 1, total=step.count)

        yield show


def _say(step: Step) -> None:
    if step.is_detail:
        return
    place = f"[{step.number}/{step.count}] " if step.number and step.count else ""
    words.say(f"{place}{step.text}")
