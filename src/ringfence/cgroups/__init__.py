"""Limits on the memory, CPU time and processes of a sandbox as a whole, by Linux cgroups.

`places` finds where groups can be made, `group` is the group of one sandbox, and `files` is what
they both do to the kernel's files.
"""

from .files import destroy
from .group import Group
from .places import Unavailable, probe
from .values import CONTROLLERS, Hierarchy

__all__ = ("CONTROLLERS", "Group", "Hierarchy", "Unavailable", "destroy", "probe")
