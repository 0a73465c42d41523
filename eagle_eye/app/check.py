"""One line of `eagle-eye doctor`."""

from typing import NamedTuple


class Check(NamedTuple):
    """One check. `needed`: Eagle Eye does not work on this machine without it."""

    name: str
    works: bool
    needed: bool
    found: str
    remedy: str
