"""Incidents that people have described: what their log lines make of them through the whole chain, as classes and as a repair."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from eagle_eye.types import Event, Incident, Severity

from .figures import Figure
from .log_chain import Judgement, LogChain

EVICT, RESTART, RETRY, ADVISE, NOTHING = "evict", "restart", "retry", "advise", "nothing"
CLASS_GOAL, REPAIR_GOAL = 0.90, 0.85
NAMED = 4
"""Wrong ones in a row's reason."""
OTHERS = "L4 (logs of one company's jobs): F1 0.873"
_REPAIRS = {Severity.SEV1: EVICT, Severity.SEV2: RESTART, Severity.SEV3: RETRY}


class Expectation(NamedTuple):
    """What the label of an incident asks for."""

    classes: frozenset[str]
    """Causes of incidents, codes of log lines, or `xid N`: one of them must be among those told; () = none can be told from lines."""
    repairs: frozenset[str]
    """Which of ours is the one that helped."""

    @classmethod
    def of(cls, classes: Iterable[str], *repairs: str) -> "Expectation":
        return cls(frozenset(classes), frozenset(repairs))


class Case(NamedTuple):
    """One incident."""

    name: str
    label: str
    lines: tuple[str, ...]
    acted: bool
    """It is known what helped."""


class CaseVerdict(NamedTuple):
    """What was made of one."""

    case: Case
    classes: frozenset[str]
    repair: str


def verdict_of(case: Case, chain: LogChain) -> CaseVerdict:
    """Lines that no kernel writes are the job's; those that end a traceback are an exception, too."""
    events: list[Event] = []
    for line in case.lines:
        events += chain.kernel_events([line]) or [*chain.job_events([line]), *chain.raised([line])]
    judged = chain.judge(events)
    return CaseVerdict(case, frozenset(_classes(judged)), _repair(judged))


def figures_of_cases(verdicts: Sequence[CaseVerdict], table: Mapping[str, Expectation], hardware: frozenset[str]) -> list[Figure]:
    """Class, repair and false evictions. `hardware`: labels whose culprit is a machine's part, so that to evict is right."""
    nothing = Expectation(frozenset(), frozenset())
    wrong_class = [each for each in verdicts if not each.classes & table.get(each.case.label, nothing).classes]
    acted = [each for each in verdicts if each.case.acted]
    wrong_repair = [each for each in acted if each.repair not in table.get(each.case.label, nothing).repairs]
    innocent = [each for each in verdicts if each.case.label not in hardware]
    evicted = [each for each in innocent if each.repair == EVICT]
    silent = sum(not each.case.lines for each in verdicts)
    return [
        _figure(f"class from log lines and symptoms ({silent} have none)", verdicts, wrong_class, CLASS_GOAL, lambda each: "told: " + (", ".join(sorted(each.classes)) or "nothing")),
        _figure("repair that helped", acted, wrong_repair, REPAIR_GOAL, lambda each: each.repair),
        _figure("hardware was not the cause: nobody evicted", innocent, evicted, 1.0, lambda each: ", ".join(sorted(each.classes))),
    ]


def _figure(what: str, asked: Sequence[CaseVerdict], wrong: Sequence[CaseVerdict], goal: float, words: Callable[[CaseVerdict], str]) -> Figure:
    right = len(asked) - len(wrong)
    share = f" ({right / len(asked):.0%})" if asked else ""
    reason = "; ".join(f"{each.case.label}: {words(each)}" for each in wrong[:NAMED]) + (f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else "")
    return Figure(what=what, figure=f"{right} of {len(asked)}{share}", goal=f"≥ {goal:.0%}" if goal < 1.0 else "all", met=right >= goal * len(asked), others=OTHERS if goal == CLASS_GOAL else "", reason=reason)


def _classes(judged: Judgement) -> Iterable[str]:
    yield from (each.cause for each in judged.incidents)
    for event in judged.events:
        if event.name == "gpu.xid":
            yield f"xid {event.attributes.get('code', '')}"
        elif event.name.startswith(("log.", "kernel.")):
            yield event.attributes.get("code", "")


def _repair(judged: Judgement) -> str:
    """Of the incident with the strongest one; where none asks for any, whether a line's advice is told."""
    strongest = min((_REPAIRS.get(each.severity, NOTHING) for each in judged.incidents if _may_act(each)), key=list(_REPAIRS.values()).index, default=NOTHING)
    advised = any(event.attributes.get("advice") for event in judged.events)
    return ADVISE if strongest == NOTHING and advised else strongest


def _may_act(incident: Incident) -> bool:
    """An incident that isolates needs somebody to isolate."""
    return incident.severity in _REPAIRS and (incident.severity is not Severity.SEV1 or bool(incident.culprits))
