"""Hostile tests of this folder run in a second net too."""

from ..second_net import second_net

__all__ = ("second_net",)
