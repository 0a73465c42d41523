"""Debounce of an incident: no node is evicted on the first finding; planning waits until no new cause or culprit is added."""

from dataclasses import dataclass

from eagle_eye.types import Incident


def _claim(incident: Incident) -> tuple[str, frozenset[str]]:
    return incident.cause, frozenset(str(culprit.entity) for culprit in incident.culprits)


@dataclass(slots=True)
class Debounce:
    """Counts from the last new cause or culprit; evidence that says the same again does not prolong it."""

    opened: float
    changed: float
    claim: tuple[str, frozenset[str]]

    @classmethod
    def of(cls, incident: Incident, now: float) -> "Debounce":
        """Begin with the first revision."""
        return cls(opened=now, changed=now, claim=_claim(incident))

    def revise(self, incident: Incident, now: float) -> bool:
        """Take a later revision; True if it names another cause or culprit."""
        claim = _claim(incident)
        if claim == self.claim:
            return False
        self.claim, self.changed = claim, now
        return True

    def due(self, debounce_s: float, debounce_max_s: float) -> float:
        """When it has settled."""
        return min(self.changed + debounce_s, self.opened + debounce_max_s)
