"""Rails: which port of a node is the first, second, … of those that the fabric joins with the same ports of other nodes."""

import math
from collections.abc import Mapping, Sequence

from .link_ports import LinkPort


def rails_of(rates: Mapping[LinkPort, float], configured: Sequence[str]) -> dict[str, int]:
    """Port → index of its rail: as the configuration lists them, else those of the highest rate by PCI address.

    `rates`: the highest rate of each port so far, in bytes per second, so that a port that is down keeps its rail; NaN: not known.
    """
    if configured:
        return {name: index for index, name in enumerate(configured)}
    highest = max((rate for rate in rates.values() if rate > 0), default=math.nan)
    chosen = sorted((port for port, rate in rates.items() if rate == highest), key=lambda port: port.order)
    return {port.name: index for index, port in enumerate(chosen)}
