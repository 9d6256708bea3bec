"""The suite attacks what it tests, so it runs in a second net."""

from ..second_net import second_net

__all__ = ("second_net",)
