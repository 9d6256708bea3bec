"""How much of a bound is used, as several owners count it together while they use it up.

Whoever joins when nobody is there counts what there is; from then on the sum is kept by all who are
there, each of whom draws some bytes before it uses them and gives back what it did not use. When
the last one is gone the sum is forgotten, so what a dead one has drawn is not missing for long. A
store of leases keeps the ledger and says who is there: who holds a lease under the ledger's name.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from ..errors import LeaseStoreError

__all__ = ("Joined", "Ledger")

_MOST = 1 << 20
_SHARE = 8

Joined = Literal["joined", "count", "wait"]
"""Whether there is a sum already, or is to be counted by who asks, or is being counted."""


@dataclass
class Ledger:
    """One sum and those who are there, by the tokens of their leases.

    Attributes:
        used: Bytes that are used or drawn; None until they have been counted.
        counter: Who counts them.
        members: Who is there.
    """

    used: int | None = None
    counter: int = 0
    members: set[int] = field(default_factory=set)

    @classmethod
    def decode(cls, text: str, live: Collection[int]) -> Ledger:
        """Return what `encode` gave, with those alone whose leases live."""
        if not text:
            return cls()
        used, counter, members = json.loads(text)
        return cls(used, counter, set(members).intersection(live))

    def encode(self) -> str:
        """Return it as text; empty if nobody is there."""
        return json.dumps([self.used, self.counter, sorted(self.members)]) if self.members else ""

    def join(self, token: int) -> Joined:
        """Come to be there, unless the bytes are being counted by another."""
        if self.members and self.used is not None:
            self.members.add(token)
            return "joined"
        if self.members - {token}:
            return "wait"
        self.used, self.counter, self.members = None, token, {token}
        return "count"

    def count(self, token: int, used: int) -> None:
        """Say what was counted."""
        self._check(token)
        self.used = used

    def draw(self, token: int, least: int, bound: int) -> int:
        """Take so many bytes of what is left of the bound, or some more; 0 if that is not there.

        The more is left, the more are taken at a time, so that it is seldom asked for; what one
        has drawn and not used is never much of what is left for the others.
        """
        self._check(token)
        assert self.used is not None
        left = bound - self.used
        if least > left:
            return 0
        taken = max(least, min(_MOST, left // _SHARE))
        self.used += taken
        return taken

    def leave(self, token: int, unused: int) -> None:
        """Be there no more, and give back what was drawn for nothing."""
        if token in self.members and self.used is not None:
            self.used -= unused
        self.members.discard(token)

    def _check(self, token: int) -> None:
        if token not in self.members:
            raise LeaseStoreError(
                "what is left for the tenant is not ours any more: the lease was not renewed",
                hint="try again when the store of leases answers",
            )
