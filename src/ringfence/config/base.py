"""What the settings of all backends have in common: refusals of our own, and the limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from ..errors import ConfigError, LimitError, SandboxError
from ..models import Limits, Mount

__all__ = ("MountSetting", "PathSetting", "Settings", "TextSetting")


def _mount(value: object) -> object:
    """Make a `Mount` of a mapping or a path; leave anything else for pydantic to refuse."""
    if isinstance(value, (str, Path)):
        return Mount(str(value))
    if isinstance(value, Mapping):
        if value.keys() - {"source", "target"} or "source" not in value:
            raise ConfigError(
                f"a mount has a source and may have a target, not {sorted(map(str, value))}"
            )
        if not all(isinstance(path, str) for path in value.values()):
            raise ConfigError(f"a mount's source and target are texts, not {dict(value)!r}")
        return Mount(**value)
    return value


def _no_nul(value: object) -> object:
    if isinstance(value, (str, Path)) and "\0" in str(value):
        raise ConfigError(f"a path may not contain NUL: {str(value)!r}")
    return value


PathSetting = Annotated[Path, BeforeValidator(_no_nul)]
TextSetting = Annotated[StrictStr, BeforeValidator(_no_nul)]
MountSetting = Annotated[Mount, BeforeValidator(_mount)]


_CPU_PERIOD = 100_000
_ENGINE_NAMES = {  # of container engines, for what we call otherwise
    "cpu_quota": "cpus",
    "network_mode": "network",
    "nofile_limit": "open_files",
    "nproc_limit": "nproc",
    "pids_limit": "pids",
}


class Settings(BaseModel):
    """A frozen model whose refusals are our own errors, and the limits that every backend has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_bytes: StrictInt | None = None
    cpus: StrictFloat | None = None
    pids: StrictInt | None = None
    open_files: StrictInt | None = None
    workspace_bytes: StrictInt | None = None
    workspace_files: StrictInt | None = None
    tmp_bytes: StrictInt | None = None
    output_bytes: StrictInt | None = None
    timeout: StrictFloat | None = None
    max_timeout: StrictFloat | None = None
    kill_grace: StrictFloat | None = None
    start_timeout: StrictFloat | None = None
    max_age: StrictFloat | None = None

    if not TYPE_CHECKING:  # a type checker shall see the fields as arguments, not this signature

        def __init__(self, /, **settings: Any) -> None:
            try:
                super().__init__(**settings)
            except ValidationError as error:
                raise _refusal(type(self), error) from None

    def __hash__(self) -> int:
        # What pydantic would make of the fields fails on those that are mappings.
        return hash(self.model_dump_json())

    @classmethod
    def parse(cls, settings: Mapping[str, Any] | str | bytes) -> Self:
        """Make one from a mapping or from JSON text.

        Raises:
            ConfigError: A key is unknown, a value is of a wrong type, or the text is not JSON.
            LimitError: A limit is not a number above zero.
        """
        if isinstance(settings, (str, bytes)):
            try:
                settings = json.loads(settings)
            except ValueError as error:
                raise ConfigError(f"the settings are not JSON: {error}") from None
        if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
            raise ConfigError(f"the settings must be an object with names, not {settings!r:.80}")
        return cls(**settings)

    @model_validator(mode="before")
    @classmethod
    def _engine_names(cls, settings: Any) -> Any:
        if not isinstance(settings, Mapping):
            return settings
        found = dict(settings)
        for other, name in _ENGINE_NAMES.items():
            if other not in found or name not in cls.model_fields:
                continue
            if found.get(name) is not None:
                raise ConfigError(f"{other} and {name} are the same setting; give one of them")
            value = found.pop(other)
            if other == "cpu_quota":
                if type(value) is not int:
                    raise ConfigError(f"cpu_quota: microseconds in each 100 ms, not {value!r:.80}")
                value = value / _CPU_PERIOD
            found[name] = value
        return found

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        assert self.limits is not None  # making them checks them
        return self

    @property
    def limits(self) -> Limits:
        """The limits that were given; those that were not are None."""
        return Limits(**{item.name: getattr(self, item.name) for item in fields(Limits)})


def _refusal(model: type[BaseModel], error: ValidationError) -> SandboxError:
    """Say what pydantic found in our own words: each key, and the mend for the first."""
    faults = error.errors(include_url=False)
    for fault in faults:
        cause = fault.get("ctx", {}).get("error")
        if isinstance(cause, SandboxError):
            return cause
    first = faults[0]
    key = str(first["loc"][0])
    message = "; ".join(
        f"unknown setting {'.'.join(map(str, fault['loc']))!r}"
        if fault["type"] == "extra_forbidden"
        else f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}, not {fault['input']!r:.80}"
        for fault in faults
    )
    backend = model.model_fields["backend"].default or None
    if first["type"] == "extra_forbidden":
        return ConfigError(message, backend=backend, hint=_nearest(key, list(model.model_fields)))
    if key in {item.name for item in fields(Limits)}:
        return LimitError(key, message, backend=backend, hint=f"give {_unit(key)} above zero")
    return ConfigError(message, backend=backend)


def _nearest(key: str, known: list[str]) -> str:
    close = get_close_matches(key, known, 1)
    return f"did you mean {close[0]!r}?" if close else "known are " + ", ".join(sorted(known))


def _unit(limit: str) -> str:
    if limit.endswith("_bytes"):
        return "a whole number of bytes"
    if limit == "cpus":
        return "a number of CPU cores"
    if limit in ("pids", "open_files", "workspace_files"):
        return "a whole number"
    return "a number of seconds"
