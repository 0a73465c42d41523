"""What a job may do to itself: `--heal none | restart:N | in-place[:N]`, and how much of it is left."""

import msgspec

from eagle_eye.errors import ConfigError

DEFAULT = "restart:3"
"""Of a script that does not call eagle_eye.elastic."""
FAILURES = 100
"""That a job may heal in place unless a number is given: each costs a fraction of a second."""


class HealBudget(msgspec.Struct, kw_only=True):
    """Restarts, or transitions in place, that the job may spend on its own faults."""

    heal: str
    """As given on the command line."""
    limit: int
    spent: int = 0
    in_place: bool = False
    """Elastic workers go on without those that are lost; other workers are restarted."""
    chosen: bool = True
    """Somebody asked for it; else the job's workers decide by what they can."""

    @property
    def left(self) -> int:
        return max(0, self.limit - self.spent)

    def take(self) -> bool:
        """Spend one restart; False if there is none left."""
        if self.left == 0:
            return False
        self.spent += 1
        return True

    def suit_elastic_workers(self) -> None:
        """The workers can heal in place: so they do, unless somebody chose otherwise."""
        if not self.chosen and not self.in_place:
            self.heal, self.limit, self.in_place = "in-place", FAILURES, True


def parse_heal(text: str) -> HealBudget:
    """`none`, `restart:N`, `in-place` or `in-place:N`; empty: whatever suits the workers. Raises ConfigError."""
    word, colon, number = (text or DEFAULT).partition(":")
    if word == "none" and not colon:
        return HealBudget(heal=text, limit=0)
    if word == "restart" and number.isdecimal():
        return HealBudget(heal=text or DEFAULT, limit=int(number), chosen=bool(text))
    if word == "in-place" and (number.isdecimal() or not colon):
        return HealBudget(heal=text, limit=int(number) if colon else FAILURES, in_place=True)
    raise ConfigError(f"--heal {text!r} is not understood: use none, restart:N (e.g. restart:3) or in-place[:N]")
