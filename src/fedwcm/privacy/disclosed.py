"""Which sums the server has seen, and what a further one would tell it by subtraction."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Disclosed:
    """The contributors of all sums seen so far, in parts: the clients of a part are in the same sums.

    Whatever is added to and subtracted from these sums, all clients of a part get the same factor. So no result
    concerns fewer clients than the smallest part has.
    """

    parts: tuple[frozenset[str], ...] = ()

    def with_sum(self, contributors: Iterable[str]) -> "Disclosed":
        """The parts after a sum over these contributors as well."""
        added = frozenset(contributors)
        pieces = [piece for part in self.parts for piece in (part & added, part - added)]
        pieces.append(added.difference(*self.parts))
        return Disclosed(tuple(piece for piece in pieces if piece))

    @property
    def smallest(self) -> int:
        """The number of clients in the smallest part; 0 if no sum was seen."""
        return min(map(len, self.parts), default=0)
