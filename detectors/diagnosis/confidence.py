"""How sure an incident says that it is of its culprit: how often such an accusation was right in drills, as far as its findings are sure.

    confidence = (right + PRIOR · ((1 − OF_SCORE) · all + OF_SCORE · score)) / (told + PRIOR)

`told` and `right` count accusations of the same cause in drills (confidence_counts.toml: `eagle-eye evaluate drills --counts`), `all` is the share of all accusations that were right, (right + 1) / (told + 2), and
`score` that of the findings: the mean of a Beta distribution that begins with what holds for all causes, and less where the findings are less sure. It rises with the score, never says 1.0, and comes near to what
was right where there were many. A cause that was never drilled keeps its score. The drills are synthetic: the counts say how often the chain is right about faults as these have them, and a site's own may differ.

Where the telemetry is in doubt that the findings rest on, the incident says less than that (telemetry_doubt.py). So it does of a node all of whose workers were ended by a signal while nobody was heard who
does that: a preemption, a shutdown or a person looks the same where the notice did not come, as it does not from an agent that is gone.

Nothing acts on it alone: what evicts asks the findings' score, too (`Culprit.score`).
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

import msgspec

KILLED = "worker killed"
HALF = 0.5
"""Of the confidence where a whole node's workers were killed and nobody was heard who did it."""
PRIOR = 5.0
"""Accusations that the beginning counts for."""
OF_SCORE = 0.25
"""Share of the score in it."""


class AccusationCounts(NamedTuple):
    """Of one cause, or of all."""

    told: int
    """Incidents with a culprit."""
    right: int
    """Of these, with the true cause and exactly the true culprits."""


def calibrated(cause: str, score: float, *, unheard: bool = False) -> float:
    """0 to 1. unheard: a whole node's workers were killed, and nobody was heard who did it."""
    return round((HALF if unheard else 1.0) * confidence_of(accusation_counts(), cause, score), 3)


def confidence_of(counts: Mapping[str, AccusationCounts], cause: str, score: float) -> float:
    """The mean of the Beta distribution.

    >>> counts = {"worker killed": AccusationCounts(told=40, right=40), "slow worker": AccusationCounts(told=20, right=10)}
    >>> [round(confidence_of(counts, cause, 0.9), 2) for cause in ("worker killed", "slow worker", "a new one")]
    [0.98, 0.57, 0.9]
    """
    if cause not in counts:
        return score
    told, right = counts[cause]
    of_all = (sum(each.right for each in counts.values()) + 1.0) / (sum(each.told for each in counts.values()) + 2.0)
    return (right + PRIOR * ((1.0 - OF_SCORE) * of_all + OF_SCORE * score)) / (told + PRIOR)


@cache
def accusation_counts() -> dict[str, AccusationCounts]:
    """Cause → its counts, as they came with this release."""
    text = resources.files(__package__).joinpath("confidence_counts.toml").read_text(encoding="utf-8")
    return {cause: AccusationCounts(row["told"], row["right"]) for cause, row in msgspec.toml.decode(text)["causes"].items()}
