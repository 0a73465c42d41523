"""Rules over metrics, from packs of TOML (detectors/rules/packs/, and those of the site): thresholds, states and counters of GPUs, links, mounts, workers and nodes.

A rule informs: its incident asks for nothing and accuses nobody, whatever its severity. A number above a limit shows that something is wrong with a part, not
that training is hurt.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from eagle_eye.durations import duration_text
from eagle_eye.frames import Frame
from eagle_eye.ranges import Seconds
from eagle_eye.types import Claim, Entity, Evidence, Kind

from .features.active_claims import ActiveClaims
from .rules.condition import HAS, RISES
from .rules.pack import RuleSet, rule_set
from .rules.rule import SCORES, MetricRule
from .rules.rule_state import Fired, RuleReading, RuleState

CLAIMS_KEPT = 8192
FIRED_A_TICK = 2000
"""Of a storm the others come a second later: a tick must not wait for them."""


@dataclass
class MetricRules:
    """Claims rule.NAME about each entity of which a rule's conditions have been true for as long as the rule says.

    A pack that cannot be read, or a rule with a mistake, is told (notice rules.invalid) and leaves the others as they are.
    """

    packs: tuple[Path, ...] = ()
    """Packs of the site; a rule in them takes the place of the one of its name, and enabled = false switches one off. `eagle-eye rules check` reads one."""
    stale_s: Seconds = 600.0
    """A finding is withdrawn when its metric was not read for so many seconds."""
    _rules: RuleSet | None = field(default=None, repr=False)
    """Given for tests of rules alone."""
    _states: dict[Kind, list[RuleState]] = field(default_factory=dict, init=False, repr=False)
    _names: dict[Kind, tuple[str, ...]] = field(default_factory=dict, init=False, repr=False)
    _gone: dict[tuple[Entity, str], float] = field(default_factory=dict, init=False, repr=False)
    """Claims about entities that are in no frame any more → since when."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def __post_init__(self) -> None:
        chosen = rule_set(self.packs) if self._rules is None else self._rules
        self.problems = tuple(map(str, chosen.problems))
        """What is wrong with the packs, each with its file and line."""
        for rule in chosen.rules:
            self._states.setdefault(rule.table.entity, []).append(RuleState(rule))

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        if not frame.tick:
            return
        most = min(FIRED_A_TICK, CLAIMS_KEPT - len(self._claims.open))
        for kind, states in self._states.items():
            names = frame.entities.get(kind, ())
            if names is not self._names.get(kind, ()):
                self._follow(kind, names, frame.time)
            columns = frame.metrics.get(kind, {})
            for state in states:
                change = state.update(frame.time, columns, len(names), self.stale_s, most)
                most -= len(change.fired)
                for fired in change.fired:
                    yield from self._fire(state, Entity(kind=kind, name=names[fired.place]), fired)
                for place in change.cleared:
                    state.clear(place)
                    yield from self._claims.withdraw(Entity(kind=kind, name=names[place]), state.rule.kind, frame.time, _why_over(state.rule))
        yield from self._forget(frame.time)

    def _fire(self, state: RuleState, entity: Entity, fired: Fired) -> Iterator[Claim]:
        state.fire(fired.place)
        rule = state.rule
        claim = Claim(entity=entity, kind=rule.kind, score=SCORES[rule.table.severity], since=fired.since, evidence=tuple(_evidence(rule, entity, fired)))
        yield from self._claims.report(claim, revise=False)

    # --- entities that come and go

    def _follow(self, kind: Kind, names: tuple[str, ...], now: float) -> None:
        """The columns of this frame are others than those of the frame before. By name: some ticks of a node without a job are not seen."""
        before, self._names[kind] = self._names.get(kind, ()), names
        if names == before:
            return
        place = {name: number for number, name in enumerate(before)}
        moved = np.array([place.get(name, -1) for name in names], np.int64)
        for state in self._states[kind]:
            state.move(moved)
        self._find_open(kind, names, now)

    def _find_open(self, kind: Kind, names: tuple[str, ...], now: float) -> None:
        """Claims about entities that are gone, and about those that are back."""
        mine = [key for key in self._claims.open if key[0].kind is kind]
        if not mine:
            return
        place = {name: number for number, name in enumerate(names)}
        states = {state.rule.kind: state for state in self._states[kind]}
        for key in mine:
            entity, claimed = key
            if entity.name not in place:
                self._gone.setdefault(key, now)
            elif self._gone.pop(key, None) is not None:
                states[claimed].resume(place[entity.name], len(names), now)

    def _forget(self, now: float) -> Iterator[Claim]:
        for (entity, kind), since in list(self._gone.items()):
            if now - since > self.stale_s:
                del self._gone[entity, kind]
                yield from self._claims.withdraw(entity, kind, now, "nothing is read of it any more")


def _evidence(rule: MetricRule, entity: Entity, fired: Fired) -> Iterator[Evidence]:
    """What the rule says, then each further number that it read."""
    first, *more = fired.readings
    table = rule.table
    lasting = f" for {duration_text(table.for_s)}" if table.for_s else ""
    text = f"{entity}: {table.summary}: {_told(rule, first)}{lasting}; remedy: {table.advice}{f'; see {table.runbook}' if table.runbook else ''}"
    yield _line(f"{text} (rule {rule.name}, {table.severity})", first)
    for reading in more:
        yield _line(_told(rule, reading), reading)


def _told(rule: MetricRule, reading: RuleReading) -> str:
    condition, value = reading.condition, reading.value
    if condition.op == RISES:
        return f"{condition.metric} rose from {reading.limit:.6g} to {value:.6g}"
    if condition.op == HAS:
        return f"{condition.metric} is {int(value):#x}, which has {int(reading.limit):#x}"
    what = f"the mean of {condition.metric} in {duration_text(rule.table.mean_s)}" if rule.table.mean_s else condition.metric
    beside = " of its peers" if condition.of_peers else ""
    return f"{what} is {value:.6g} ({condition.op} {reading.limit:.6g}{beside})"


def _line(text: str, reading: RuleReading) -> Evidence:
    return Evidence(text=text, metric=reading.condition.metric, value=reading.value, threshold=reading.limit)


def _why_over(rule: MetricRule) -> str:
    return f"{rule.when}: not any more"
