"""Which frameworks there are adapters for, and what each one's environment needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """A framework that has an adapter.

    Attributes:
        name: The adapter's module in `ringfence.adapters`, and its directory in `tests/adapters`.
        extra: The extra of ringfence that installs it; its range is what `newest` may be.
        pins: The distributions that are pinned, the framework's own first. Those that are not in
            the extra, as a suite that is published by itself, come newest within the same major.
            A change here takes `python -m scripts.suites lock NAME`.
        also: What else its tests need.
        also_pinned: What else they need at the pinned version alone.
        suite: The module of its tests that has the framework's own published suite, if it has one.
        examples: Files in `examples` that run in its environment.
        options: Options of pytest.
        python: The oldest Python that it runs on. Where there is none, it is listed as not run.
        extras: Extras of ringfence that its tests need beside its own.
        is_typed: Whether it says that its types count; if not, they do here all the same.
    """

    name: str
    extra: str
    pins: Mapping[str, str]
    also: tuple[str, ...] = ()
    also_pinned: tuple[str, ...] = ()
    suite: str = ""
    examples: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    python: str = "3.11"
    extras: tuple[str, ...] = ("container",)
    is_typed: bool = True

    @property
    def distribution(self) -> str:
        """The distribution that is the framework."""
        return next(iter(self.pins))


FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework(
            "inspect",
            extra="inspect",
            pins={"inspect-ai": "0.3.285"},
            suite="test_self_check",
            examples=("inspect_task.py",),
        ),
        Framework(
            "deepagents",
            extra="deepagents",
            pins={"deepagents": "0.6.12", "langchain-tests": "1.1.9"},
            options=("-o", "asyncio_mode=auto"),
            suite="test_standard",
            examples=("deepagents_agent.py",),
        ),
        Framework(
            "pydantic_ai",
            extra="pydantic-ai",
            pins={"pydantic-ai-slim": "2.68.0"},
            suite="test_conformance",
            examples=("pydantic_ai_agent.py",),
        ),
        Framework(
            "strands",
            extra="strands",
            pins={"strands-agents": "1.62.0"},
            examples=("strands_agent.py",),
        ),
        Framework(
            "google_adk",
            extra="google-adk",
            pins={"google-adk": "2.13.0"},
            examples=("google_adk_agent.py",),
        ),
        Framework(
            "openai_agents",
            extra="openai-agents",
            pins={"openai-agents": "0.22.3"},  # the newest that Temporal's plugin for it takes
            also_pinned=("temporalio-openai-agents==1.1.0",),
            examples=("openai_agents_agent.py",),
        ),
        Framework(
            "smolagents",
            extra="smolagents",
            pins={"smolagents": "1.26.0"},
            examples=("smolagents_agent.py",),
            extras=("container", "contexts"),
            is_typed=False,
        ),
        Framework(
            "harbor",
            extra="harbor",
            pins={"harbor": "0.26.0"},
            python="3.12",
            is_typed=False,
        ),
    )
}
