"""Guards: each lets a plan pass, holds it or refuses it, with its reason. One file = one stage."""

POLICY = (
    "duplicates",  # is it being done already?
    "breaker",  # did it fail to help before? What operators have commanded comes first ...
    "silence",
    "maintenance",
    "telemetry_distrust",  # ... then what we know ...
    "weak_evidence",
    "minimum_workers",  # ... then how much may be done ...
    "cooldown",
    "blast_radius",
    "approval",  # ... and last, who has to agree.
)
"""Every guard that is asked, in this order. All are asked, so that the ledger holds every reason; the first refusal is the one that is reported."""
