"""What a job may do to itself: `--heal none | restart:N`, and how much of it is left."""

import msgspec

from eagle_eye.errors import ConfigError


class Budget(msgspec.Struct, kw_only=True):
    """Restarts that the job may spend on its own faults."""

    heal: str
    """As given on the command line."""
    limit: int
    spent: int = 0

    @property
    def left(self) -> int:
        return max(0, self.limit - self.spent)

    def take(self) -> bool:
        """Spend one restart; False if there is none left."""
        if self.left == 0:
            return False
        self.spent += 1
        return True


def parse_heal(text: str) -> Budget:
    """`none` or `restart:N`. Raises ConfigError."""
    word, _, number = text.partition(":")
    if word == "none" and not number:
        return Budget(heal=text, limit=0)
    if word == "restart" and number.isdecimal():
        return Budget(heal=text, limit=int(number))
    raise ConfigError(f"--heal {text!r} is not understood: use none or restart:N, e.g. restart:3")
