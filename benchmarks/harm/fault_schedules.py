"""Schedules of faults of the user's program or data, drawn from a seed, each with what is true of it."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.harm.plan import AT_START, Plan, PlannedFault

SCRIPTS = ("marked", "unmarked", "elastic")
WORKERS, MICRO_BATCHES = 4, 16
EARLIEST, LATEST, AFTER = 12, 30, 40
"""Steps: one of which the fault is drawn from, and how many an innocent job does after it."""
OLDER = 120
"""Steps later in a script without marks: one that lives for less than 5 s counts as one that fails before its first step, and is not restarted."""
ENDLESS = 100_000
NOTHING: Mapping[str, str] = {}
WITHOUT_MOUNTS = {"full_disk_save": "full_device", "full_disk_write": "full_device", "read_only_save": "file_limit", "read_only_write": "file_limit"}
WITHOUT_CGROUPS = {"kernel_kill": "host_memory"}
"""What stands in for faults that need root."""

EXCEPTION, MEMORY, STORAGE, EXIT = frozenset({"exception"}), frozenset({"out of memory"}), frozenset({"storage error"}), frozenset({"worker exited"})
TRUTHS = {
    **dict.fromkeys(("bad_value", "assertion", "wrong_shape", "missing_key", "path_missing"), EXCEPTION),
    **dict.fromkeys(("kernel_kill", "host_memory", "gpu_memory"), MEMORY),
    **dict.fromkeys(("full_disk_save", "full_disk_write", "full_device", "read_only_save", "read_only_write", "file_limit"), STORAGE),
    **dict.fromkeys(("exit_3", "exit_at_once", "segfault"), EXIT),
    "exit_0": frozenset({"worker ended early"}),
    **dict.fromkeys(("caught", "caught_refusal", "thread_raises", "child_fails", "all_done"), frozenset[str]()),
}
"""Kind of fault → causes of which the incident has to have one; none: there is to be no incident."""
RAISED = frozenset({*EXCEPTION, *STORAGE, "out of memory"})
SILENT = frozenset({"kernel_kill"})
"""Nobody sees an exception there, though the cause could be one's."""


@dataclass(frozen=True, slots=True)
class FaultCase:
    """One row of the table below: a kind, and whom it strikes."""

    name: str
    kinds: tuple[str, str, str]
    """For a script with marks, one without, an elastic one."""
    whom: str
    """one: a rank, in each life; step: the same, of an elastic job whoever does the step; all: all ranks; sample: whoever gets the sample; start: all, before the first step;
    wanders: a rank, in another step of each life."""


def _same(name: str, kind: str, whom: str) -> FaultCase:
    return FaultCase(name, (kind, kind, kind), whom)


CASES = (
    _same("exception in one step", "bad_value", "step"),
    _same("exception for one sample", "bad_value", "sample"),
    _same("exception of one rank", "bad_value", "wanders"),
    _same("assertion", "assertion", "all"),
    _same("shape that does not fit", "wrong_shape", "all"),
    _same("key that is missing", "missing_key", "sample"),
    _same("path that is missing at the start", "path_missing", "start"),
    _same("path that is missing later", "path_missing", "one"),
    _same("exit code 3", "exit_3", "one"),
    _same("os._exit(1)", "exit_at_once", "one"),
    _same("exit code 0 of one worker", "exit_0", "one"),
    _same("segmentation fault", "segfault", "one"),
    _same("killed for want of memory", "kernel_kill", "one"),
    _same("memory limit of the process", "host_memory", "one"),
    FaultCase("memory of the GPU", ("gpu_memory", "gpu_memory", "gpu_memory"), "sample"),
    FaultCase("full disk", ("full_disk_save", "full_disk_write", "full_disk_save"), "one"),
    FaultCase("read-only file system", ("read_only_write", "read_only_save", "read_only_write"), "one"),
    _same("file size limit", "file_limit", "one"),
    FaultCase("innocent: what the script does without", ("caught", "thread_raises", "child_fails"), "one"),
    FaultCase("innocent: caught, and all end with 0", ("thread_raises", "caught_refusal", "all_done"), "all"),
    _same("exit code 3 for one sample", "exit_3", "sample"),
    _same("os._exit(1) for one sample", "exit_at_once", "sample"),
)


@dataclass(frozen=True, kw_only=True)
class FaultSchedule:
    """One job, its fault, and the truth about it."""

    number: int
    script: str
    case: FaultCase
    kind: str
    plan: Plan

    @property
    def truth(self) -> frozenset[str]:
        """Causes, of which the incident has to have one; empty: innocent."""
        return TRUTHS[self.kind]

    @property
    def innocent(self) -> bool:
        return not self.truth

    @property
    def raises(self) -> bool:
        """A traceback is to be had."""
        return bool(self.truth & RAISED) and self.kind not in SILENT

    @property
    def on_disk(self) -> bool:
        """It needs file systems of its own."""
        return self.kind in {"full_disk_save", "full_disk_write", "read_only_save", "read_only_write"}

    @property
    def in_memory_cgroup(self) -> bool:
        """It needs a limit of its own."""
        return self.kind == "kernel_kill"

    def __str__(self) -> str:
        return f"schedule {self.number} ({self.script}), {self.case.name}: {', '.join(map(str, self.plan.faults))}"


def drawn(number: int, seed: int, replaced: Mapping[str, str] = NOTHING) -> FaultSchedule:
    """A schedule depends on its number and the seed alone; cases and scripts come by turns.

    `replaced`: kind of fault that this machine cannot do for real → what is done instead.
    """
    chance = random.Random(f"{seed}/{number}")
    case = CASES[number % len(CASES)]
    place = (number % len(CASES) + number // len(CASES)) % len(SCRIPTS)
    script, kind = SCRIPTS[place], replaced.get(case.kinds[place], case.kinds[place])
    step = chance.randint(EARLIEST, LATEST) + OLDER * (script == "unmarked")
    ranks = (chance.randrange(WORKERS),)
    sample = chance.randrange(MICRO_BATCHES)
    innocent, goes_on = not TRUTHS[kind], script == "elastic" and kind == "exit_0"
    fault = _fault(kind, case.whom, step, ranks, sample, elastic=script == "elastic")
    return FaultSchedule(
        number=number, script=script, case=case, kind=kind, plan=Plan(steps=step + AFTER if innocent or goes_on else ENDLESS, faults=(fault,))
    )


def _fault(kind: str, whom: str, step: int, ranks: tuple[int, ...], sample: int, *, elastic: bool) -> PlannedFault:
    """An elastic job does not do a step again that is done: what strikes one of its ranks strikes at the first step from there on."""
    if whom in {"all", "start"} or (whom == "step" and elastic):
        return PlannedFault(kind=kind, step=AT_START if whom == "start" else step, ranks=tuple(range(WORKERS)))
    if whom == "sample":
        return PlannedFault(kind=kind, step=step, sample=sample) if elastic else PlannedFault(kind=kind, step=step, ranks=ranks, moves=True)
    if TRUTHS[kind] and elastic:
        return PlannedFault(kind=kind, step=step, ranks=ranks, onwards=True)
    return PlannedFault(kind=kind, step=step, ranks=ranks, earlier=2 * (whom == "wanders"))
