"""What code in a context gives back: what it writes, shows and raises, and all of it together."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ("CodeResult", "ErrorOutput", "Output", "RichOutput", "StreamOutput")


@dataclass(frozen=True)
class StreamOutput:
    """Text that the code, or a program that it started, has written.

    Attributes:
        stream: `stdout` or `stderr`.
        text: What was written, decoded.
    """

    stream: Literal["stdout", "stderr"]
    text: str


@dataclass(frozen=True)
class RichOutput:
    """Something that the code shows: the value of its last line, a figure, a data frame.

    It comes in several forms, of which whoever shows it takes the best that it can. All of it is
    from the sandbox: HTML and SVG may hold scripts, and a picture may be none.

    Attributes:
        data: Its forms by MIME type, as texts: pictures in base64, JSON as its text.
        is_result: Whether it is the value of the last line.
        cut: Bytes that were left out, by MIME type, or under `*` where that is not known.
    """

    data: Mapping[str, str] = field(repr=False)
    is_result: bool = False
    cut: Mapping[str, int] = field(default_factory=dict)

    @property
    def text(self) -> str | None:
        """It as plain text."""
        return self.data.get("text/plain")

    @property
    def html(self) -> str | None:
        """It as HTML; data frames have that."""
        return self.data.get("text/html")

    @property
    def svg(self) -> str | None:
        """It as an SVG picture."""
        return self.data.get("image/svg+xml")

    @property
    def png(self) -> bytes | None:
        """It as a PNG picture; None also where the sandbox has sent no base64."""
        return self.picture("image/png")

    @property
    def jpeg(self) -> bytes | None:
        """It as a JPEG picture; None also where the sandbox has sent no base64."""
        return self.picture("image/jpeg")

    def picture(self, form: str) -> bytes | None:
        """Return the bytes of a form that is base64, or None."""
        try:
            text = "".join(self.data[form].split())  # some kernels break it into lines
            return base64.b64decode(text, validate=True)
        except KeyError:
            return None
        except (binascii.Error, ValueError):
            return None

    def json(self) -> Any:
        """Return its `application/json` as a value, or None if there is none, or none that parses.

        A few bytes of JSON can be a hundred times as much in memory.
        """
        try:
            return json.loads(self.data.get("application/json", "null"))
        except (ValueError, RecursionError):
            return None


@dataclass(frozen=True)
class ErrorOutput:
    """An exception that has ended the code.

    Attributes:
        name: Its class, such as `ZeroDivisionError`.
        value: What it says.
        traceback: As text, of several lines.
        cut: Bytes that were left out, by `evalue` and `traceback`.
    """

    name: str
    value: str
    traceback: str = field(repr=False)
    cut: Mapping[str, int] = field(default_factory=dict)


Output = StreamOutput | RichOutput | ErrorOutput


@dataclass(frozen=True)
class CodeResult:
    """What one piece of code did in a context.

    Attributes:
        outputs: All that it gave, in the order in which it came.
        error: The exception that ended it, or None.
        timed_out: Whether its time was up: it was interrupted then.
        interrupted: Whether it was interrupted by `interrupt_context`.
        kernel_lost: Whether it did not heed the interrupt, so that its kernel was killed: the
            variables are gone, and the context is to be restarted.
        execution_count: How many pieces of code this kernel has run.
        cut_bytes: Bytes of streams, and of whole outputs, that were left out beyond the limits.
        duration_s: Seconds that it took.
        timeout: Seconds that it had.
    """

    outputs: tuple[Output, ...]
    error: ErrorOutput | None = None
    timed_out: bool = False
    interrupted: bool = False
    kernel_lost: bool = False
    execution_count: int = 0
    cut_bytes: int = 0
    duration_s: float = 0.0
    timeout: float | None = None

    @property
    def ok(self) -> bool:
        """Whether it ran to its end without an exception."""
        return self.error is None and not self.timed_out and not self.kernel_lost

    @property
    def stdout(self) -> str:
        """What it has written to stdout."""
        return self._written("stdout")

    @property
    def stderr(self) -> str:
        """What it has written to stderr."""
        return self._written("stderr")

    @property
    def value(self) -> RichOutput | None:
        """The value of its last line, or None if that has none."""
        found = [one for one in self.displays if one.is_result]
        return found[-1] if found else None

    @property
    def displays(self) -> tuple[RichOutput, ...]:
        """What it has shown: figures, tables, and the value of its last line."""
        return tuple(one for one in self.outputs if isinstance(one, RichOutput))

    def _written(self, stream: str) -> str:
        return "".join(
            one.text
            for one in self.outputs
            if isinstance(one, StreamOutput) and one.stream == stream
        )
