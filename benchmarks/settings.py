"""How a run is made."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("Settings",)


@dataclass(frozen=True)
class Settings:
    """What was asked for on the command line.

    Attributes:
        quick: A few rounds of everything: enough to see that it works, too few to judge by.
        peers: Whether to install and measure other packages.
    """

    quick: bool = False
    peers: bool = True

    def rounds(self, whole: int, quick: int = 3) -> int:
        """Return how many rounds to run."""
        return quick if self.quick else whole

    @property
    def pause(self) -> float:
        """Seconds between two sandboxes or jails that are made one after the other."""
        return 0.02 if self.quick else 0.06
