"""What an elastic job asks of the cluster it shares with others."""

from .entity import Noun


class Demand(Noun, frozen=True, kw_only=True):
    """What an elastic job asks of the cluster, and what it has: its coordinator tells it with each layout."""

    declared: dict[str, int]
    """Node → workers with which it was started there: it is never given more in all."""
    seats: dict[str, int]
    """Node → workers that it is to have there now: `declared` less those that cannot be replaced, or what it was resized to."""
    weight: float = 1.0
    """Its progress counts so many times."""
    workers_min: int = 1
    """Fewest workers on which it runs."""

    @property
    def most(self) -> int:
        """Workers that it asked for."""
        return sum(self.declared.values())

    @property
    def now(self) -> int:
        """Workers that it is to have now."""
        return sum(self.seats.values())
