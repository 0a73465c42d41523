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
COMMON = (
    ("preproc|tokeni|first_step|compil|main_process|rank_?0", Expectation.of(("long_work_on_one_rank",), *_PROGRAM)),
    ("order|desync|conditional|branch|mismatch_of_coll|collective_mismatch", Expectation.of(("ranks_out_of_step", "collective_mismatch", "collective_deadlock"), *_PROGRAM)),
    ("shape|size_mismatch", Expectation.of(("collective_mismatch", "checkpoint_does_not_fit"), *_PROGRAM)),
    ("unused_param", Expectation.of(("unused_parameters",), *_PROGRAM)),
    ("interface|ifname", Expectation.of(("wrong_interface", "rendezvous_unreachable"), *_PLACE)),
    ("host_oom|cpu_oom|host_mem", Expectation.of(("host_out_of_memory",), *_PROGRAM)),
    ("oom|out_of_mem", Expectation.of(("gpu_out_of_memory", "host_out_of_memory"), *_PROGRAM)),
    ("nan|not_finite|overflow", Expectation.of(("loss_not_finite", "divergence"), *_PROGRAM)),
    ("version|mismatch", Expectation.of(("nccl_version_mismatch", "driver_mismatch", "cuda_build_mismatch", "library_defect"), *_PROGRAM)),
    ("illegal|assert|kernel_bug", Expectation.of(("program_error_on_gpu",), *_PROGRAM)),
    ("sdc|silent_data|bit_?flip", Expectation.of(("silent_corruption", "replicas_differ"), ADVISE, EVICT)),
    ("xid|hw_gpu|gpu_(?:error|fault|lost|hang)|gsp", Expectation.of(("gpu_off_the_bus", "gpu_halted", "gpu_memory_error", "gpu_internal_error", "broken_gpu"), EVICT, RESTART)),
    ("thermal|throttl|power_cap", Expectation.of(("throttled_gpu",), ADVISE, EVICT, NOTHING)),
    ("slow_input|data_?load|starv", Expectation.of(("slow_input", "data_loader_hang", "data_loader_failed", "storage_slow"), *_PROGRAM)),
    ("slow|straggl|throughput", Expectation.of(("slow_hardware", "throttled_gpu", "common_slowdown"), ADVISE, EVICT, NOTHING)),
    ("power|cool", Expectation.of(("power_or_cooling", "maintenance"), *_PLACE)),
    ("ckpt|checkpoint", Expectation.of(("checkpoint_damaged", "checkpoint_does_not_fit", "checkpoint_save_late", "resume_state_defect", "storage_full"), *_PLACE)),
    ("storage|disk|file_?system|nfs|lustre|gpfs|quota", Expectation.of(("storage_full", "storage_unavailable", "storage_slow", "files_deleted"), *_PLACE)),
    ("network|link|flap|switch|fabric|nic|(?:\\A|_)ib(?:_|\\Z)|roce|socket|connection", Expectation.of(("link_down", "fabric_peer_unreachable", "network_error", "rendezvous_unreachable", "peer_gone"), *_PLACE, EVICT)),
    ("preempt", Expectation.of(("preempted",), *_PLACE, NOTHING)),
    ("time_?limit|wall", Expectation.of(("time_limit",), *_PLACE)),
    ("sched|queue|slurm|alloc", Expectation.of(("nothing_scheduled", "time_limit", "preempted", "not_started", "job_does_not_end"), *_PLACE, NOTHING)),
    ("config|human|operator|setting|typo", Expectation.of(("wrong_setting", "cancelled", "files_deleted"), *_PROGRAM)),
    ("data", Expectation.of(("data_defect",), *_PROGRAM)),
    ("hang|deadlock|stall", Expectation.of(("collective_deadlock", "data_loader_hang", "evaluation_hang", "teardown_hang", "watchdog_stuck", "collective_timeout"), *_PROGRAM)),
    ("timeout", Expectation.of(("collective_timeout",), *_PLACE)),
    ("bug|software|code", Expectation.of(("program_defect", "program_exception", "software_change", "library_defect", "replicas_differ"), *_PROGRAM)),
    ("spike", Expectation.of(("loss_spike",), NOTHING, ADVISE)),
    ("diverg|instab", Expectation.of(("divergence",), *_PROGRAM)),
)
"""Words in a label that an adapter's own table lacks → what it asks for; the first that fits counts."""


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
    innocent = [each for each in verdicts if each.case.label not in hardware and not each.case.label.startswith("hw_")]
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
    label = verdict.case.label
    return table.get(label) or next((asked for words, asked in COMMON if re.search(words, label)), _NOTHING_ASKED)


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
