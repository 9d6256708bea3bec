"""What the tests of scale run in."""

from ..own_places import own_places
from ..second_net import second_net

__all__ = ("own_places", "second_net")
