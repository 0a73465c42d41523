"""Links of the fabric that go down, run at a lower rate than before or than the same port of other nodes, or count errors; it informs only, and asks for nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from eagle_eye.event_attributes import float_attribute
from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio, Seconds
from eagle_eye.types import Claim, Entity, Event, Evidence, Floats, Kind

from .features.active_claims import ActiveClaims
from .features.link_rates import ROUNDING, LinkRates, SlowPort

DOWN, DEGRADED, ERRORS = "link.down", "link.degraded", "link.errors"
BAD = {
    "symbol_errors_per_s": "symbol errors",
    "receive_errors_per_s": "packets received with errors",
    "integrity_errors_per_s": "integrity and buffer errors",
    "recoveries_per_s": "recoveries of the link",
}
"""What a healthy cable does not show. Discards, retries and congestion have innocent causes: they are evidence beside these, and no claim."""
BESIDE = {"discards_per_s": "packets discarded", "retries_per_s": "retries", "send_waits_per_s": "waits to send", "pauses_per_s": "pauses", "congestion_marks_per_s": "congestion marks"}
SETTLED_S = 10.0
"""A reading of the moment before the event may come after it: a reading ends a claim only so long after it began."""
LINKS_KEPT = 8192
GBIT_BYTES = 1e9 / 8


@dataclass
class FabricErrors:
    """Claims link.down and link.degraded as the agents report them, and link.errors of a link that counts errors all the time."""

    errors_per_s: Ratio = 1.0
    """More errors a second than this in `sustained` readings in a row. The best cables show some in an hour: InfiniBand allows one wrong bit in 10¹²."""
    sustained: Count = 3
    """Readings; the agent counts every 5 s."""
    quiet_s: Seconds = 60.0
    """Errors are over after so many seconds without."""
    stale_s: Seconds = 3600.0
    """The claim about a link is withdrawn when nothing was read of the link for so many seconds."""
    _above: dict[str, int] = field(default_factory=dict, init=False, repr=False)
    """Link → readings in a row with too many errors."""
    _last: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    """Link with an open claim of errors → when it counted too many last."""
    _rates: LinkRates = field(default_factory=LinkRates, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.entity.kind is not Kind.LINK:
                continue
            if event.name in (DOWN, DEGRADED):
                yield from self._broken(event)
            elif event.name == "link.up":
                yield from self._up(event)
        if frame.tick:
            yield from self._count(frame)
            yield from self._compare(frame)
            yield from self._look(frame)

    def _broken(self, event: Event) -> Iterator[Claim]:
        if len(self._claims.open) >= LINKS_KEPT:
            return
        now, former = float_attribute(event, "rate_gbit_per_s"), float_attribute(event, "former_rate_gbit_per_s")
        text = f"{event.entity} on {event.node}: {event.message or event.name}"
        proof = Evidence(text=text, event=event.id, metric="rate_gbit_per_s", value=now, threshold=former or None)
        claim = Claim(entity=event.entity, kind=event.name, score=0.9, since=event.time, evidence=(proof,))
        yield from self._claims.report(claim, revise=event.name == DEGRADED)

    def _up(self, event: Event) -> Iterator[Claim]:
        for kind in (DOWN, DEGRADED):
            yield from self._claims.withdraw(event.entity, kind, event.time, "the agent reports that it is up again")

    def _compare(self, frame: Frame) -> Iterator[Claim]:
        """Ports that were slow before anybody looked, beside those of other nodes."""
        names, read = frame.entities.get(Kind.LINK, ()), frame.metrics.get(Kind.LINK, {})
        if "link_rate_bytes_per_s" not in read or "port_active" not in read:
            return
        for port in self._rates.read(names, read["link_rate_bytes_per_s"], read["port_active"]):
            if port.readings >= self.sustained and len(self._claims.open) < LINKS_KEPT:
                yield from self._slow(frame, names[port.place], float(read["link_rate_bytes_per_s"][port.place]), port)

    def _slow(self, frame: Frame, name: str, rate: float, port: SlowPort) -> Iterator[Claim]:
        now, usual = rate / GBIT_BYTES, port.usual / GBIT_BYTES
        text = f"link {name} runs at {now:g} Gbit/s; the same port of {port.peers} other nodes of the job runs at {usual:g}, and so do others of its node at theirs"
        proof = Evidence(text=text, metric="rate_gbit_per_s", value=now, threshold=usual)
        claim = Claim(entity=Entity(kind=Kind.LINK, name=name), kind=DEGRADED, score=0.7, since=frame.time, evidence=(proof,))
        yield from self._claims.report(claim, revise=False)

    # --- errors

    def _count(self, frame: Frame) -> Iterator[Claim]:
        names, read = frame.entities.get(Kind.LINK, ()), frame.metrics.get(Kind.LINK, {})
        columns = [read[name] for name in BAD if name in read]
        if not names or not columns:
            return
        stacked = np.stack(columns)
        errors: Floats = np.where(np.isfinite(stacked).any(axis=0), np.nansum(stacked, axis=0), np.nan)
        high = errors > self.errors_per_s
        if self._above:
            waiting = {names[index] for index in np.flatnonzero(np.isnan(errors) | high).tolist()}
            self._above = {name: count for name, count in self._above.items() if name in waiting}
        for index in np.flatnonzero(high).tolist():
            yield from self._high(frame, index, float(errors[index]))

    def _high(self, frame: Frame, index: int, errors: float) -> Iterator[Claim]:
        name = frame.entities[Kind.LINK][index]
        count = self._above[name] = self._above.get(name, 0) + 1
        if count < self.sustained or len(self._last) >= LINKS_KEPT:
            return
        self._last[name] = frame.time
        read = {metric: float(values[index]) for metric, values in frame.metrics[Kind.LINK].items()}
        told = [f"{read[metric]:.3g} {words}" for metric, words in (BAD | BESIDE).items() if read.get(metric, 0.0) > 0]
        rail = f" (rail {read['rail']:.0f})" if np.isfinite(read.get("rail", np.nan)) else ""
        text = f"link {name}{rail} counts errors in {count} readings in a row; per second: {', '.join(told)}"
        proof = Evidence(text=text, metric="errors_per_s", value=errors, threshold=self.errors_per_s)
        claim = Claim(entity=Entity(kind=Kind.LINK, name=name), kind=ERRORS, score=0.7, since=frame.time, evidence=(proof,))
        yield from self._claims.report(claim, revise=False)

    # --- what is over

    def _look(self, frame: Frame) -> Iterator[Claim]:
        if not self._claims.open:
            return
        column = {name: index for index, name in enumerate(frame.entities.get(Kind.LINK, ()))}
        read = frame.metrics.get(Kind.LINK, {})
        for (entity, kind), claim in list(self._claims.open.items()):
            if why := self._over(frame.time, claim, column.get(entity.name, -1), read):
                if kind == ERRORS:
                    self._last.pop(entity.name, None)
                yield from self._claims.withdraw(entity, kind, frame.time, why)

    def _over(self, now: float, claim: Claim, index: int, read: Mapping[str, Floats]) -> str:
        """Why a claim is over; '' while it is not. A link.up may be lost with the agent that would have told it: what is read ends a claim, too."""
        if claim.kind == ERRORS:
            last = self._last.get(claim.entity.name, claim.since)
            return f"no errors for {self.quiet_s:.0f} s" if now - last > self.quiet_s else ""
        if now - claim.since > self.stale_s and index < 0:
            return "nothing is read of it any more"
        if now - claim.since <= SETTLED_S or index < 0:
            return ""
        if claim.kind == DOWN:
            return "its port is active" if _value(read, "port_active", index) == 1.0 else ""
        former = (claim.evidence[0].threshold or 0.0) * GBIT_BYTES
        return "it runs at its former rate" if _value(read, "link_rate_bytes_per_s", index) >= former * (1 - ROUNDING) > 0 else ""


def _value(read: Mapping[str, Floats], name: str, index: int) -> float:
    """NaN where nothing was read."""
    return float(read[name][index]) if name in read else float("nan")
