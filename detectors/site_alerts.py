"""Alerts of the site's own monitoring, received from Alertmanager; they inform only and cause no action."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.frames import Frame
from eagle_eye.ranges import Seconds, Share
from eagle_eye.types import Claim, Entity, Event, Evidence

from .features.active_claims import ActiveClaims

KIND = "site.alert"
ENTITIES_KEPT = 1024
ALERTS_KEPT = 16
"""Of one entity; further ones are dropped."""


@dataclass
class SiteAlerts:
    """Claims site.alert about the node, GPU or job that firing alerts name, until the last of them is resolved.

    An alert that is never resolved (its Alertmanager may be gone) is withdrawn after `withdraw_after_s`.
    """

    score: Share = 0.5
    """Score of the claim: the site's rules are not ours."""
    withdraw_after_s: Seconds = 86_400.0
    """An alert that was never resolved is withdrawn so many seconds after it began."""
    _firing: dict[Entity, dict[str, tuple[float, Evidence]]] = field(default_factory=dict, init=False, repr=False)
    """Entity → id of the alert → its start and its line of evidence."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

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
        yield from self._report(event.entity)

    def _ends(self, entity: Entity, name: str, time: float, why: str) -> Iterator[Claim]:
        alerts = self._firing.get(entity, {})
        if alerts.pop(name, None) is None:
            return
        if alerts:
            yield from self._report(entity)
        else:
            del self._firing[entity]
            yield from self._claims.withdraw(entity, KIND, time, why)

    def _report(self, entity: Entity) -> Iterator[Claim]:
        alerts = self._firing[entity].values()
        since = min(began for began, _ in alerts)
        yield from self._claims.report(
            Claim(entity=entity, kind=KIND, score=self.score, since=since, evidence=tuple(line for _, line in alerts))
        )

    def _forget(self, now: float) -> Iterator[Claim]:
        for entity, alerts in list(self._firing.items()):
            for name, (began, _) in list(alerts.items()):
                if now - began > self.withdraw_after_s:
                    yield from self._ends(entity, name, now, "nothing more was heard of it")
