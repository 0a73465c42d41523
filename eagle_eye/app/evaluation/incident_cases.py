"""Incidents that people have described: what `eagle-eye explain` and the chain that runs live make of them, as a class and as a repair.

The class is the failure that is named first; a right one behind it does not count. Nobody may be evicted by either of the two.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from eagle_eye.app.report_reader import FailureExplanation, ReportReader
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
    """Known failures (detectors/failures/known) of which one must be named first; () = none of ours is the same."""
    repairs: frozenset[str]
    """Which of ours is the one that helped."""

    @classmethod
    def of(cls, classes: Iterable[str], *repairs: str) -> "Expectation":
        return cls(frozenset(classes), frozenset(repairs))


_NOTHING_ASKED = Expectation(frozenset(), frozenset())
_PROGRAM = (NOTHING, ADVISE, RESTART)
"""What may be done where a person has to change the program: nothing is lost by starting it anew."""
_PLACE = (ADVISE, RETRY, RESTART)
"""What may be done where a network, a storage or a site was at fault."""
COMMON = {
    "gpu_oom": Expectation.of(("gpu_out_of_memory",), *_PROGRAM),
    "cuda_oom": Expectation.of(("gpu_out_of_memory",), *_PROGRAM),
    "oom": Expectation.of(("gpu_out_of_memory", "host_out_of_memory"), *_PROGRAM),
    "nan": Expectation.of(("loss_not_finite", "divergence"), *_PROGRAM),
    "loss_nan": Expectation.of(("loss_not_finite", "divergence"), *_PROGRAM),
    "hw_network": Expectation.of(("link_down", "fabric_peer_unreachable", "network_error", "broken_hardware"), *_PLACE, EVICT),
    "network": Expectation.of(("link_down", "fabric_peer_unreachable", "network_error", "rendezvous_unreachable", "peer_gone", "collective_timeout"), *_PLACE),
    "ib_link_flap": Expectation.of(("link_down", "network_error"), *_PLACE),
    "link_flap": Expectation.of(("link_down", "network_error"), *_PLACE),
    "nccl_timeout": Expectation.of(("collective_timeout",), *_PLACE),
    "collective_order_mismatch": Expectation.of(("collective_mismatch", "ranks_out_of_step"), *_PROGRAM),
    "desync": Expectation.of(("ranks_out_of_step", "collective_mismatch"), *_PROGRAM),
    "nccl_version_mismatch": Expectation.of(("nccl_version_mismatch",), ADVISE),
    "wrong_interface": Expectation.of(("wrong_interface", "rendezvous_unreachable"), ADVISE),
    "slow_preprocessing": Expectation.of(("long_work_on_one_rank",), *_PROGRAM),
    "unused_parameters": Expectation.of(("unused_parameters",), *_PROGRAM),
    "illegal_memory_access": Expectation.of(("program_error_on_gpu",), *_PROGRAM),
    "storage": Expectation.of(("storage_full", "storage_unavailable", "storage_slow", "checkpoint_save_late", "checkpoint_damaged"), *_PLACE),
    "storage_full": Expectation.of(("storage_full",), *_PLACE),
    "disk_full": Expectation.of(("storage_full",), *_PLACE),
    "checkpoint_corruption": Expectation.of(("checkpoint_damaged",), *_PLACE),
    "data_bug": Expectation.of(("data_defect",), *_PROGRAM),
    "config_error": Expectation.of(("wrong_setting",), *_PROGRAM),
    "human_error": Expectation.of(("wrong_setting", "cancelled"), *_PROGRAM),
    "software_bug": Expectation.of(("program_exception", "software_change", "library_defect", "replicas_differ"), *_PROGRAM),
    "preemption": Expectation.of(("preempted",), *_PLACE, NOTHING),
    "time_limit": Expectation.of(("time_limit",), *_PLACE),
    "silent_data_corruption": Expectation.of(("silent_corruption", "replicas_differ"), ADVISE, EVICT),
    "hw_slow": Expectation.of(("slow_hardware", "throttled_gpu"), ADVISE, EVICT, NOTHING),
    "straggler": Expectation.of(("slow_hardware", "throttled_gpu"), ADVISE, EVICT, NOTHING),
    "power": Expectation.of(("power_or_cooling", "maintenance"), *_PLACE),
}
"""Labels that data sets of this kind commonly have, for those that an adapter's own table lacks."""


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
    explanations: tuple[FailureExplanation, ...]
    """The strongest first."""
    live: str
    """The repair that the chain asks for that runs live."""

    @property
    def name(self) -> str:
        """The failure that is named first; '' for none."""
        return self.explanations[0].name if self.explanations else ""

    @property
    def repair(self) -> str:
        """That of the failure that is named first, else of the chain."""
        return self.explanations[0].repair if self.explanations else self.live

    @property
    def evicts(self) -> bool:
        """Somebody would be."""
        return EVICT in (self.live, self.repair)


def verdict_of(case: Case, chain: LogChain, reader: ReportReader) -> CaseVerdict:
    """Live: lines that no kernel writes are the job's; those that end a traceback are an exception, too."""
    events: list[Event] = []
    for line in case.lines:
        events += chain.kernel_events([line]) or [*chain.job_events([line]), *chain.raised([line])]
    return CaseVerdict(case, reader.explain(case.lines), _repair(chain.judge(events)))


def figures_of_cases(verdicts: Sequence[CaseVerdict], table: Mapping[str, Expectation], hardware: frozenset[str]) -> list[Figure]:
    """Class, also of both halves, repair and false evictions. `hardware`: labels whose culprit is a machine's part, so that to evict is right."""
    wrong_class = [each for each in verdicts if each.name not in _asked(each, table).classes]
    near = [each for each in verdicts if {named.name for named in each.explanations} & _asked(each, table).classes]
    acted = [each for each in verdicts if each.case.acted]
    wrong_repair = [each for each in acted if each.repair not in _asked(each, table).repairs]
    innocent = [each for each in verdicts if each.case.label not in hardware]
    evicted = [each for each in innocent if each.evicts]
    named = len(verdicts) - len(wrong_class)
    return [
        _figure("class named first", verdicts, wrong_class, CLASS_GOAL, lambda each: f"told: {each.name or 'nothing'}"),
        _half("class: those with an odd number, from which rules were derived", verdicts, wrong_class, odd=True),
        _half("class: those with an even number, held out", verdicts, wrong_class, odd=False),
        Figure(what="class among the first three", figure=_share(max(named, len(near)), len(verdicts))),
        _figure("repair that helped", acted, wrong_repair, REPAIR_GOAL, lambda each: each.repair),
        _figure("hardware was not the cause: nobody evicted", innocent, evicted, 1.0, lambda each: each.name),
    ]


def _asked(verdict: CaseVerdict, table: Mapping[str, Expectation]) -> Expectation:
    return table.get(verdict.case.label) or COMMON.get(verdict.case.label, _NOTHING_ASKED)


def is_odd(name: str) -> bool:
    """Whether the last number in an incident's name is odd, which decides the half that it belongs to.

    >>> is_odd("bloom-03"), is_odd("NVIDIA/nccl#342")
    (True, False)
    """
    numbers = re.findall(r"\d+", name)
    return bool(numbers) and int(numbers[-1]) % 2 == 1


def _half(what: str, verdicts: Sequence[CaseVerdict], wrong: Sequence[CaseVerdict], *, odd: bool) -> Figure:
    asked = [each for each in verdicts if is_odd(each.case.name) is odd]
    return Figure(what=what, figure=_share(len(asked) - sum(is_odd(each.case.name) is odd for each in wrong), len(asked)))


def _share(right: int, asked: int) -> str:
    return f"{right} of {asked}" + (f" ({right / asked:.0%})" if asked else "")


def _figure(what: str, asked: Sequence[CaseVerdict], wrong: Sequence[CaseVerdict], goal: float, words: Callable[[CaseVerdict], str]) -> Figure:
    right = len(asked) - len(wrong)
    reason = "; ".join(f"{each.case.label}: {words(each)}" for each in wrong[:NAMED]) + (f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else "")
    return Figure(what=what, figure=_share(right, len(asked)), goal=f"≥ {goal:.0%}" if goal < 1.0 else "all", met=right >= goal * len(asked), others=OTHERS if goal == CLASS_GOAL else "", reason=reason)


def _repair(judged: Judgement) -> str:
    """Of the incident with the strongest one; where none asks for any, whether a line's advice is told."""
    strongest = min((_REPAIRS.get(each.severity, NOTHING) for each in judged.incidents if _may_act(each)), key=list(_REPAIRS.values()).index, default=NOTHING)
    advised = any(event.attributes.get("advice") for event in judged.events)
    return ADVISE if strongest == NOTHING and advised else strongest


def _may_act(incident: Incident) -> bool:
    """An incident that isolates needs somebody to isolate."""
    return incident.severity in _REPAIRS and (incident.severity is not Severity.SEV1 or bool(incident.culprits))
