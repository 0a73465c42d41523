"""What a ledger and a stream must say after a fault and a kill: each fault told once and over, nothing done twice, nothing left open. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from eagle_eye.app.demo.step_trace import StepTrace
from eagle_eye.app.drills import GroundTruth
from eagle_eye.config import StallConfig
from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.topology import node_of_worker
from eagle_eye.types import Event, IncidentState, Outcome, Plan, Progress, Severity

from .moment import Moment

MOST = 10_000
NO_REPAIR = frozenset({"notify", "dump"})
"""Actions that change nothing."""
SPEED = frozenset({"slow worker", "slow node", "workload imbalance", "job slow"})
"""Causes that a busy machine has."""
WAITING = "job waiting"
"""Cause of what a coordinator tells that waits for a launcher which was killed; it accuses nobody."""
UNUSED = "node unused"
"""Cause of what is told as long as a job that may not heal itself trains without a launcher that is back: nobody is accused, and a person decides."""
PROOF_S = StallConfig().stopped_s
"""A process that is ended sooner after it was stopped shows that to nobody: no look of its agent falls on it twice."""
OVER = frozenset({IncidentState.HEALED, IncidentState.CLOSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """All that was written down."""

    struck: GroundTruth
    incidents: Sequence[IncidentRecord]
    """The oldest first, those for slowness left out."""
    outcomes: Sequence[Outcome]
    plans: Mapping[str, Plan]
    progress: Mapping[str, Sequence[Progress]]
    """Plan → its steps."""
    epochs: Sequence[Event]
    """epoch.started since the fault, each epoch once."""

    @classmethod
    def read(cls, ledger: Ledger, trace: StepTrace, struck: GroundTruth) -> Self:
        """Raises LedgerError."""
        plans = {plan.id: plan for plan in ledger.plans(limit=MOST)}
        begun = {event.attributes["epoch"]: event for event in trace.events if event.name == "epoch.started" and event.time >= struck.time}
        return cls(
            struck=struck,
            incidents=[kept for kept in reversed(ledger.incidents(limit=MOST)) if kept.incident.cause not in SPEED],
            outcomes=list(reversed(ledger.outcomes(limit=MOST))),
            plans=plans, progress={name: ledger.progress(name) for name in plans}, epochs=list(begun.values()),
        )  # fmt: skip

    def lines(self) -> list[str]:
        """For a person."""
        begun = self.struck.time
        told = [f"incident {_verdict(kept)}, {kept.incident.severity}: {kept.state}, opened {kept.opened - begun:+.1f} s" for kept in self.incidents]
        done = [f"{'own ' * self._own(outcome)}{outcome.action} {outcome.state} {outcome.time - begun:+.1f} s{': ' * bool(outcome.detail)}{outcome.detail}" for outcome in self.outcomes]
        epochs = [f"epoch {event.attributes['epoch']} {event.attributes.get('reason')} {event.time - begun:+.1f} s, plan {event.attributes.get('plan') or '-'}" for event in self.epochs]
        return [*told, *done, *epochs]

    def tells_of(self, node: str) -> bool:
        """Some incident accuses the node, or a worker there."""
        return any(_of_node(kept, node) for kept in self.incidents)

    def _own(self, outcome: Outcome) -> bool:
        plan = self.plans.get(outcome.plan)
        return plan is not None and plan.own


def violations_of(books: Books, moment: Moment) -> list[str]:
    """What is not as it must be; nothing if all is."""
    return [*_incidents(books, moment), *_outcomes(books), *_twice(books), *_epochs(books, moment)]


def _verdict(kept: IncidentRecord) -> str:
    return f"{kept.incident.cause} ({', '.join(culprit.entity.name for culprit in kept.incident.culprits) or 'nobody'})"


def _accused(kept: IncidentRecord) -> set[str]:
    return {culprit.entity.name for culprit in kept.incident.culprits}


def _incidents(books: Books, moment: Moment) -> Iterator[str]:
    waits = [kept for kept in books.incidents if kept.incident.cause == WAITING] if moment.part == "launcher" else []
    asking = [kept for kept in books.incidents if kept.incident.severity is not Severity.INFO and kept not in waits]
    of_fault = [kept for kept in asking if books.struck.worker in _accused(kept)]
    of_kill = [kept for kept in asking if kept not in of_fault and moment.part == "launcher" and _of_node(kept, moment.node)]
    absorbed = moment.part == "launcher" and moment.node == books.struck.node  # its workers have ended with it
    if len(of_fault) > 1 and absorbed:  # the fault, and the end with its launcher of the worker that was started again since
        of_kill, of_fault = [*of_kill, of_fault[-1]], of_fault[:-1]
    too_short = moment.part == "launcher" and moment.fault == "stop" and not moment.elastic and moment.after_s < PROOF_S  # all workers of such a job end with a launcher
    if not (of_fault or ((absorbed or too_short) and of_kill)):
        yield f"incident lost: nobody is accused of {books.struck.kind} but {', '.join(map(_verdict, asking)) or 'nobody'}"
    for what, found in (("fault", of_fault), ("lost launcher", of_kill), ("coordinator that waits", waits)):
        if len(found) > 1:
            yield f"one {what}, {len(found)} incidents: {', '.join(map(_verdict, found))}"
    for kept in asking:
        if kept not in of_fault and kept not in of_kill:
            yield f"told beside the fault: {_verdict(kept)}"
    for kept in books.incidents:
        if not is_over(kept, moment):
            yield f"incident {kept.state}: {_verdict(kept)}"


def is_over(kept: IncidentRecord, moment: Moment) -> bool:
    """Nothing is to be done for it any more, but what a person may decide."""
    return kept.state in OVER or (kept.incident.cause == UNUSED and moment.part == "launcher" and moment.heal == "none")


def _of_node(kept: IncidentRecord, node: str) -> bool:
    """It accuses the node or a worker there: the workers of a launcher that was killed end with it."""
    return any(name == node or node_of_worker(name) == node for name in _accused(kept))


def _outcomes(books: Books) -> Iterator[str]:
    for outcome in books.outcomes:
        if outcome.state == "intended":
            yield f"outcome left open: {outcome.action} of plan {outcome.plan}"


def _twice(books: Books) -> Iterator[str]:
    done = Counter((outcome.incident, outcome.action) for outcome in books.outcomes if outcome.state == "done" and outcome.action not in NO_REPAIR)
    yield from (f"{action} was done {count} times for incident {incident}" for (incident, action), count in done.items() if count > 1)
    for plan, steps in books.progress.items():
        times = Counter(step.step for step in steps if step.state == "done")
        yield from (f"step {step} of plan {plan} was done {count} times" for step, count in times.items() if count > 1)
    for word in ("plan", "cause"):
        begun = Counter(value for event in books.epochs if (value := event.attributes.get(word)))
        yield from (f"{count} epochs for one {word}: {value}" for value, count in begun.items() if count > 1)


def _epochs(books: Books, moment: Moment) -> Iterator[str]:
    """A fault costs one epoch, an elastic job a second one when the worker is back; a lost launcher the same again."""
    each = 2 if moment.elastic else 1
    allowed = each + (2 if moment.part == "launcher" else 0)
    if len(books.epochs) > allowed:
        yield f"{len(books.epochs)} epochs begun where {allowed} are enough: {', '.join(event.attributes.get('reason', '?') for event in books.epochs)}"
