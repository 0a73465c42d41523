"""What came of one run: what was done to the training without a cause, and what was told."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.elastic.commits import Commit
from benchmarks.faults.parts_away.outage import ON_DISK, Outage
from benchmarks.faults.parts_away.parts import Watchers
from benchmarks.harm.deployment import WORKERS, HarmJob
from eagle_eye.types import Incident, Kind, Severity

SPEED = frozenset({"slow worker", "slow node", "host contended", "cpu quota", "slow communication", "throughput lost", "job slow", "unusual node", "unusual GPU", "unusual worker", "unequal compute", "slow input"})
"""Causes that come from a machine with fewer cores than processes. They have a row of their own."""
NO_RESTART = frozenset({"join", "rebalance"})
"""Reasons of epochs in which every worker lives on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """The fault that happened."""

    worker: str
    at: float
    """CLOCK_MONOTONIC, as the workers' commits have it."""
    alive: Mapping[str, int]
    """Workers that lived until then, with their pids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwayRun:
    """What came of one run. All but the last three are empty, 0 or False where Eagle Eye did no harm."""

    outage: Outage
    steps_lost: int = 0
    """Steps that a worker did again, or that nobody did, for which no training fault is the reason."""
    workers_ended: tuple[str, ...] = ()
    """Those that ended for which none is the reason."""
    restarts: tuple[str, ...] = ()
    """Epochs for which none is the reason."""
    told: int = 0
    """Incidents that name the worker which the fault struck."""
    missing: bool = False
    """None of them came."""
    beside: tuple[str, ...] = ()
    """Other incidents that ask for a repair."""
    waits: tuple[str, ...] = ()
    """Those that are true and accuse nobody: what a job waits for that needs to heal itself, and a save that the full disk refuses."""
    accused: tuple[str, ...] = ()
    """Anybody else who was named in an incident."""
    slow: tuple[str, ...] = ()
    """The same, for being slow."""
    repairs: tuple[str, ...] = ()
    """Actions that change something, but for what was done about the fault."""
    evictions: tuple[str, ...] = ()
    parts_ended: tuple[str, ...] = ()
    """Processes of Eagle Eye that ended by themselves."""
    stuck: bool = False
    """Not all workers did a step afterwards."""
    trouble: str = ""
    """Why it was no run at all."""
    gap_s: float = 0.0
    """Longest time without a step of anybody while the part was away, up to the fault."""
    told_s: float | None = None
    """From the later of the fault and the end of the outage until another process could read the incident in the ledger."""
    notes: tuple[str, ...] = field(default=())
    """For a person who looks into it."""

    @property
    def kept(self) -> bool:
        """All that is asked of a run."""
        harmed = self.steps_lost or self.workers_ended or self.restarts or self.evictions or self.repairs or self.parts_ended or self.stuck
        return not (harmed or self.missing or self.told > 1 or self.beside or self.accused or self.trouble)

    def __str__(self) -> str:
        """For a person who watches."""
        found = {
            "STEPS LOST": self.steps_lost or "", "WORKERS ENDED": ", ".join(self.workers_ended), "RESTARTS": "; ".join(self.restarts),
            "NOT TOLD": "the fault" if self.missing else "", "TOLD TWICE": self.told if self.told > 1 else "", "TOLD BESIDE": "; ".join(self.beside),
            "ACCUSED": "; ".join(self.accused), "slow": "; ".join(self.slow), "ACTIONS": "; ".join(self.repairs), "EVICTED": ", ".join(self.evictions),
            "PARTS ENDED": ", ".join(self.parts_ended), "STUCK": "no step of all workers afterwards" if self.stuck else "", "TROUBLE": self.trouble,
        }  # fmt: skip
        told = f", told after {self.told_s:.1f} s" if self.told_s is not None else ""
        lines = [f"{'kept' if self.kept else 'MISSED'} {self.outage}: longest gap {self.gap_s:.1f} s{told}"]
        lines += [f"{word}: {what}" for word, what in found.items() if what]
        lines += [] if self.kept else [*self.notes, f"again: {self.outage.replay}"]
        return "\n  ".join(lines)


def judged(
    outage: Outage, watchers: Watchers, *, before: Mapping[str, int], began: float, back: float, strike: Strike | None, told_at: float | None,
    parts_ended: Mapping[str, int | None],
) -> AwayRun:  # fmt: skip
    """`before`: worker → pid as the outage began; `began`, `back`: its times; `told_at`: when the incident was there to be read."""
    job = watchers.job
    commits, revisions = job.commits.look(), watchers.deployment.incidents(job.name)
    ours = naming(revisions, strike.worker) if strike is not None else []
    last = {each.id: each for each in revisions}
    asking = [
        each for each in last.values()
        if each.id not in ours and each.severity is not Severity.INFO and each.cause not in SPEED and not each.part_of
    ]  # fmt: skip
    true = ({"job waiting"} if strike is not None else set[str]()) | ({"storage error"} if outage.part in ON_DISK else set[str]())
    since = max(back, strike.at) if strike is not None else back
    return AwayRun(
        outage=outage, steps_lost=_steps_lost(outage, commits, strike), workers_ended=_ended(outage, commits, before, strike), restarts=_restarts(job, strike),
        told=len(ours), missing=strike is not None and not ours,
        beside=tuple(f"{each.severity} {each.cause}" for each in asking if each.cause not in true),
        waits=tuple(each.cause for each in asking if each.cause in true),
        accused=_accused(revisions, strike, slow=False), slow=_accused(revisions, strike, slow=True),
        repairs=tuple(f"{each.action} {each.state}" for each in watchers.deployment.repairs(job.name) if each.incident not in ours),
        evictions=tuple(dict.fromkeys(node for layout in job.record.layouts for node in layout.excluded)),
        parts_ended=tuple(f"{name} ({code})" for name, code in parts_ended.items()),
        stuck=len({commit.worker for commit in commits if commit.at > since}) < WORKERS,
        gap_s=_longest_gap(commits, began, min(back, strike.at) if strike is not None else back), told_s=told_at - since if told_at is not None else None, notes=_notes(job, revisions),
    )  # fmt: skip


def naming(revisions: Sequence[Incident], worker: str) -> list[str]:
    """Ids of the incidents that name a worker, but for those that another one explains and those about speed."""
    last = {each.id: each for each in revisions}
    named = {each.id for each in revisions if each.cause not in SPEED and any(culprit.entity.name == worker for culprit in each.culprits)}
    return [each for each in last if each in named and not last[each].part_of]


def running(pid: int) -> bool:
    """It is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _accused(revisions: Sequence[Incident], strike: Strike | None, *, slow: bool) -> tuple[str, ...]:
    guilty = strike.worker if strike is not None else ""
    named = [
        f"{each.severity} {each.cause}: {culprit.entity.name}" for each in revisions if (each.cause in SPEED) is slow
        for culprit in each.culprits if culprit.entity.name != guilty and culprit.entity.kind is not Kind.JOB
    ]  # fmt: skip
    return tuple(dict.fromkeys(named))


def _steps_lost(outage: Outage, commits: Sequence[Commit], strike: Strike | None) -> int:
    """A plain job begins anew, once, after a fault: it saves no checkpoints. An elastic one never does a step again and leaves none out."""
    lives = 2 if strike is not None and not outage.elastic else 1
    times = Counter((commit.worker, commit.step) for commit in commits)
    again = {step for (_, step), count in times.items() if count > lives}
    done = {commit.step for commit in commits}
    return len(again) + len(set(range(max(done, default=0))) - done)


def _ended(outage: Outage, commits: Sequence[Commit], before: Mapping[str, int], strike: Strike | None) -> tuple[str, ...]:
    if strike is None:
        return tuple(f"{worker} (pid {pid})" for worker, pid in before.items() if not running(pid))
    early = [f"{worker} (pid {pid}) before the fault" for worker, pid in before.items() if strike.alive.get(worker) != pid]
    pids: dict[str, list[int]] = {}
    for commit in commits:
        if commit.pid not in pids.setdefault(commit.worker, []):
            pids[commit.worker].append(commit.pid)
    again = [worker for worker in pids if not outage.elastic or worker == strike.worker]
    late = [f"{worker} lived {len(found)} times" for worker, found in pids.items() if len(found) > 1 + (worker in again)]
    gone = [f"{worker} (pid {found[-1]}) at the end" for worker, found in pids.items() if len(found) == 1 + (worker in again) and not running(found[-1])]
    return (*early, *late, *gone)


def _restarts(job: HarmJob, strike: Strike | None) -> tuple[str, ...]:
    """Beyond one for the fault; those in which a replacement joins end nobody."""
    found = [f"epoch {layout.epoch}, {layout.reason}" for layout in job.record.later_epochs if layout.reason not in NO_RESTART]
    return tuple(found[1:] if strike is not None else found)


def _longest_gap(commits: Sequence[Commit], began: float, end: float) -> float:
    inside = [began, *(commit.at for commit in commits if began < commit.at < end), end]
    return max(later - earlier for earlier, later in itertools.pairwise(inside))


def _notes(job: HarmJob, revisions: Sequence[Incident]) -> tuple[str, ...]:
    told = [f"    {each.id[:8]} {each.severity} {each.cause} {', '.join(culprit.entity.name for culprit in each.culprits)}" for each in revisions]
    layouts = [f"    epoch {layout.epoch}, {layout.reason}, {len(layout.placements)} workers" for layout in job.record.layouts]
    return (*dict.fromkeys(told), *dict.fromkeys(layouts), f"    logs: {job.deployment.folder}")
