"""What the kernel's log says of a node beside its GPUs: disks, file systems, network, PCIe, memory, NVSwitch, hung tasks.

It informs: a line of the log shows that something is broken, not that training is hurt. Whoever looks at an incident of the
same node finds it there as a consequence or as the reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.frames import Frame
from eagle_eye.ranges import Seconds
from eagle_eye.types import Claim, Entity, Event, Evidence

from .features.active_claims import ActiveClaims

KIND = "kernel.error"
_SCORE = 0.5
_MOST_EVIDENCE = 8
RECOVERIES = {
    ("network", "link_up"): ("network", "link_down"),
    ("network", "firmware_recovered"): ("network", "firmware"),
    ("network_filesystem", "recovered"): ("network_filesystem", ""),
    ("cpu", "thermal_normal"): ("cpu", "thermal"),
    ("disk", "path_restored"): ("disk", "path_failed"),
}
"""(component, code) of a notice → what it ends: the same component and code ('' = any) of the same device."""


@dataclass
class KernelErrors:
    """Claims kernel.error of the node, or of the worker that the kernel names."""

    withdraw_after_s: Seconds = 600.0
    """Withdrawn so many seconds after the last message, since the kernel seldom says that something works again."""
    _newest: dict[Entity, float] = field(default_factory=dict, init=False, repr=False)
    _open: dict[Entity, dict[tuple[str, str, str], Evidence]] = field(default_factory=dict, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == "kernel.error":
                yield from self._error(event)
            elif event.name == "kernel.notice":
                yield from self._recovered(event)
        if frame.tick:
            yield from self._forget(frame.time)

    def _error(self, event: Event) -> Iterator[Claim]:
        entity, key = event.entity, _key(event)
        lines = self._open.setdefault(entity, {})
        self._newest[entity] = event.time
        if key in lines or len(lines) >= _MOST_EVIDENCE:
            return
        lines[key] = Evidence(text=_words(event), event=event.id)
        before = self._claims.open.get((entity, KIND))
        since = before.since if before else event.time
        yield from self._claims.report(
            Claim(entity=entity, kind=KIND, score=_SCORE, since=since, evidence=tuple(lines.values()))
        )

    def _recovered(self, event: Event) -> Iterator[Claim]:
        ended = RECOVERIES.get(_key(event)[:2])
        lines = self._open.get(event.entity, {})
        if ended is None or not lines or event.attributes.get("written_by"):
            return
        component, code = ended
        for key in list(lines):
            if key[0] == component and code in ("", key[1]) and key[2] == _key(event)[2]:
                del lines[key]
        if not lines:
            yield from self._end(event.entity, event.time, "the kernel says that it works again")

    def _forget(self, now: float) -> Iterator[Claim]:
        for entity in [entity for entity, newest in self._newest.items() if now - newest > self.withdraw_after_s]:
            yield from self._end(entity, now, f"no further message for {self.withdraw_after_s:.0f} s")

    def _end(self, entity: Entity, time: float, why: str) -> Iterator[Claim]:
        self._open.pop(entity, None)
        self._newest.pop(entity, None)
        if (entity, KIND) in self._claims.open:
            yield from self._claims.withdraw(entity, KIND, time, why)


def _key(event: Event) -> tuple[str, str, str]:
    attributes = event.attributes
    return attributes.get("component", ""), attributes.get("code", ""), attributes.get("device", "") or attributes.get("pci", "")


def _words(event: Event) -> str:
    component, code, _ = _key(event)
    number = event.attributes.get("number", "")
    advice = event.attributes.get("advice", "")
    gpu = f" of GPU {uuid}" if (uuid := event.attributes.get("gpu", "")) else ""
    sender = f" (written by {by})" if (by := event.attributes.get("written_by", "")) else ""
    return f"kernel log of {event.node}: {component} {code.replace('_', ' ')}{f' {number}' if number else ''}{gpu}: {event.message}{sender}" + (f"; remedy: {advice}" if advice else "")
