"""Failing collectors: missing telemetry is a finding of its own, so that it does not look like health."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from eagle_eye.frames import Frame
from eagle_eye.ranges import Share
from eagle_eye.types import Claim, Entity, Event, Evidence, Finding, Kind

from .features.active_claims import ActiveClaims, ends_epoch

KIND = "collector.failing"
THINGS = 64
"""Of one node; further ones are not named."""
OF_A_LAUNCHER = "launcher of "
"""So begins the name of a collector that is a loop of a launcher."""
_THING = re.compile(r"(worker|job) (\S+?)(?: of (\S+?))?(?=: | is left out by )")


class FailingCollector(NamedTuple):
    """What one line of evidence says: which collector fails, and of which worker or job alone."""

    name: str
    worker: str = ""
    """'': of all workers."""
    job: str = ""
    """'': of all jobs of the node."""
    line: Evidence = Evidence(text="")

    def concerns(self, entity: Entity, job: str) -> bool:
        """Something is missing that this collector would tell of the entity, which is of that job."""
        return self.job in ("", job) and (not self.worker or (entity.kind is Kind.WORKER and entity.name == self.worker))


def failing_collectors(finding: Finding) -> Iterator[FailingCollector]:
    """Those that a finding collector.failing tells of."""
    before, after = _begin("\n", finding.entity).split("\n")
    for line in finding.evidence:
        name, told, reason = line.text.removeprefix(before).partition(after)
        if line.text.startswith(before) and told:
            thing = _THING.match(reason)
            kind, of, job = thing.groups("") if thing else ("", "", "")
            yield FailingCollector(name, of if kind == "worker" else "", of if kind == "job" else job, line)


def _begin(collector: str, node: Entity) -> str:
    """Of a line of its evidence."""
    return f"collector {collector} on {node.name} fails: "


class _Failure(NamedTuple):
    proof: Evidence
    incarnation: str
    """Of who told it."""
    of_launcher: bool

    def is_outlived(self, incarnation: str, *, of_launcher: bool) -> bool:
        """Another process has taken the place of who told it."""
        return self.of_launcher == of_launcher and self.incarnation != incarnation


class _Opened(NamedTuple):
    """The newest session of a node's agent."""

    incarnation: str
    time: float


@dataclass
class CollectorHealth:
    """Claims collector.failing of a node while at least one of its collectors fails, or leaves something out; informs, never accuses.

    What an agent or a launcher told is over when another one is heard in its place, for that begins with collectors that work; and with the end of the job.
    """

    score: Share = 0.9
    """Score of the claim; the agent itself reports the failure."""
    _failing: dict[Entity, dict[tuple[str, str], _Failure]] = field(default_factory=dict, init=False, repr=False)
    """Node → (collector, what alone it leaves out; '': it fails) → what was told of it."""
    _agents: dict[Entity, _Opened] = field(default_factory=dict, init=False, repr=False)
    _over: bool = field(default=False, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name in ("job.finished", "job.failed"):
                self._over = True
                self._failing.clear()
                yield from self._claims.withdraw_all(event.time, ends_epoch(event))
            elif event.name in ("job.started", "epoch.started"):
                self._over = False
            elif event.name == "session.opened":
                yield from self._session_opened(event)
            elif event.name == "collector.failing" and not self._over:
                yield from self._failed(event)
            elif event.name == "collector.recovered":
                yield from self._back(event)

    def _session_opened(self, event: Event) -> Iterator[Claim]:
        incarnation, of_launcher = event.attributes.get("incarnation", ""), event.attributes.get("role") == "launcher"
        if not incarnation:
            return
        if not of_launcher:
            self._agents[event.entity] = _Opened(incarnation, event.time)
        if self._forget_outlived(event.entity, incarnation, of_launcher=of_launcher):
            yield from self._tell_rest(event.entity, event.time, f"another {'launcher' if of_launcher else 'agent'} has taken the place of the one that told it")

    def _forget_outlived(self, node: Entity, incarnation: str, *, of_launcher: bool) -> bool:
        """What was told by those before this one; False: nothing."""
        failing = self._failing.get(node, {})
        old = [key for key, failure in failing.items() if failure.is_outlived(incarnation, of_launcher=of_launcher)]
        for key in old:
            del failing[key]
        return bool(old)

    def _failed(self, event: Event) -> Iterator[Claim]:
        node, collector, thing = event.entity, event.attributes.get("collector", "?"), event.attributes.get("about", "")
        of_launcher, opened = collector.startswith(OF_A_LAUNCHER), self._agents.get(event.entity)
        if not of_launcher and opened is not None and event.incarnation != opened.incarnation and event.time <= opened.time:
            return  # of an agent that was over then, kept on its way
        self._forget_outlived(node, event.incarnation, of_launcher=of_launcher)
        reason = event.attributes.get("reason", "no reason given")
        named = f"{thing}: {reason}" if thing and not reason.startswith(thing) else reason
        failing = self._failing.setdefault(node, {})
        if (collector, thing) in failing or len(failing) < THINGS:
            failing[collector, thing] = _Failure(Evidence(text=f"{_begin(collector, node)}{named}", event=event.id), event.incarnation, of_launcher)
        yield from self._claims.report(self._claim(node, event.time))

    def _back(self, event: Event) -> Iterator[Claim]:
        """The collector works, or does not leave that thing out any more."""
        back = event.attributes.get("collector", "?"), event.attributes.get("about", "")
        if self._failing.get(event.entity, {}).pop(back, None) is not None:
            yield from self._tell_rest(event.entity, event.time, "its collectors work again")

    def _tell_rest(self, node: Entity, time: float, why: str) -> Iterator[Claim]:
        """What still fails, or that nothing does."""
        if self._failing[node]:
            yield from self._claims.report(self._claim(node, time))
            return
        del self._failing[node]
        yield from self._claims.withdraw(node, KIND, time, why)

    def _claim(self, node: Entity, time: float) -> Claim:
        before = self._claims.open.get((node, KIND))
        proofs = tuple(failure.proof for failure in self._failing[node].values())
        return Claim(entity=node, kind=KIND, score=self.score, since=before.since if before else time, evidence=proofs)
