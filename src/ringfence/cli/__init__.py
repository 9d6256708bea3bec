"""The `ringfence` command."""

import signal

__all__ = ("main",)


def main() -> int:
    """Run the command and return its exit code."""
    # While there is nothing to clean up Ctrl-C may end us at once. Python's own way, an exception
    # in the midst of whatever runs, can be swallowed by what is being imported.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .app import main as run

    return run()
