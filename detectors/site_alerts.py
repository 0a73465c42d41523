"""Alerts of the site's own monitoring, as Alertmanager tells them: they inform, and stand beside our own findings."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Entity, Event, Evidence

from .features.active_claims import ActiveClaims

KIND = "site.alert"
ENTITIES_KEPT = 1024
ALERTS_KEPT = 16
"""Of one entity: a flood of them says no more."""


@dataclass
class SiteAlerts:
    """Claims site.alert about the node, GPU or job that firing alerts name, until the last of them is resolved.

    An alert of which nothing is heard any more (its Alertmanager is gone) is over after `forget_s`.
    """

    score: float = 0.5
    """How sure: the site's rules are not ours."""
    forget_s: float = 86_400.0
    """An alert that was never resolved is over so long after it began."""
    _firing: dict[Entity, dict[str, tuple[float, Evidence]]] = field(default_factory=dict, init=False, repr=False)
    """Entity → id of the alert → when it began, and what it says."""
    _standing: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == "alert.firing":
                yield from self._fires(event)
            elif event.name == "alert.resolved":
                yield from self._ends(event.entity, event.attributes.get("id", ""), event.time, "the alert is resolved")
        if frame.tick:
            yield from self._forget(frame.time)

    def _fires(self, event: Event) -> Iterator[Claim]:
        name = event.attributes.get("id", "")
        alerts = self._firing.get(event.entity, {})
        full = len(alerts) >= ALERTS_KEPT or (not alerts and len(self._firing) >= ENTITIES_KEPT)
        if not name or name in alerts or full:
            return
        words = ": ".join(text for text in (event.attributes.get("alert", "alert"), event.attributes.get("summary", "")) if text)
        severity = event.attributes.get("severity", "")
        text = f"the site's own monitoring about {event.entity}: {words}" + (f" ({severity})" if severity else "")
        self._firing.setdefault(event.entity, {})[name] = (event.time, Evidence(text=text, event=event.id))
        yield from self._tell(event.entity)

    def _ends(self, entity: Entity, name: str, time: float, why: str) -> Iterator[Claim]:
        alerts = self._firing.get(entity, {})
        if alerts.pop(name, None) is None:
            return
        if alerts:
            yield from self._tell(entity)
        else:
            del self._firing[entity]
            yield from self._standing.withdraw(entity, KIND, time, why)

    def _tell(self, entity: Entity) -> Iterator[Claim]:
        alerts = self._firing[entity].values()
        since = min(began for began, _ in alerts)
        yield from self._standing.tell(
            Claim(entity=entity, kind=KIND, score=self.score, since=since, evidence=tuple(line for _, line in alerts))
        )

    def _forget(self, now: float) -> Iterator[Claim]:
        for entity, alerts in list(self._firing.items()):
            for name, (began, _) in list(alerts.items()):
                if now - began > self.forget_s:
                    yield from self._ends(entity, name, now, "nothing more was heard of it")
