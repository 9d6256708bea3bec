"""The command that starts a relay in a sandbox: its program travels as arguments."""

from __future__ import annotations

from importlib import resources

from ..models import Command

__all__ = ("relay_command",)

# Stands in for the package's own importer: nothing of the package is in the sandbox. The directory
# that it starts in goes from the path, for a file there may have the name of a module.
_BOOT = """
import sys, types
sys.path[:] = [place for place in sys.path if place]
names, texts = ["ringfence", "ringfence.contexts"] + sys.argv[1::2], ["", ""] + sys.argv[2::2]
for name, text in zip(names, texts):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__, module.__package__ = [], name.rpartition(".")[0]
    exec(compile(text, name, "exec"), module.__dict__)
module.main()
"""
_MODULES = ("_bounds", "_outbox", "_relay")


def relay_command(python: str) -> Command:
    """Return the command that starts a relay and its kernel.

    Args:
        python: The sandbox's interpreter, a name or a path.
    """
    argv = [python, "-c", _BOOT]
    for name in _MODULES:
        text = resources.files(__package__).joinpath(f"{name}.py").read_text("utf-8")
        argv += [f"{__package__}.{name}", text]
    return Command(tuple(argv), leftovers="kill")
