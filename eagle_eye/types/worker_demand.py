"""The demand of an elastic job on the cluster that it shares with other jobs."""

from .entity import Noun


class Demand(Noun, frozen=True, kw_only=True):
    """Workers that an elastic job asks for and has; its coordinator reports it with each layout."""

    declared: dict[str, int]
    """Node → workers with which it was started there; it never gets more in total."""
    seats: dict[str, int]
    """Node → workers that it is allowed there now: `declared` less those that cannot be replaced, or the resized number."""
    weight: float = 1.0
    """Weight of its progress in the cluster's objective (WAF)."""
    workers_min: int = 1
    """Fewest workers with which it can run."""

    @property
    def most(self) -> int:
        """Workers that it asked for."""
        return sum(self.declared.values())

    @property
    def now(self) -> int:
        """Workers that it is to have now."""
        return sum(self.seats.values())
