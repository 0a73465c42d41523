"""Healthy jobs that pause in every way that a healthy job does: nobody may be accused, nothing may be done.

    python -m benchmarks.harm.healthy_life [--schedules 12] [--seed 0] [--at-once 4] [--only NUMBER ...] [--json]

Each schedule is a job of its own: two nodes, four workers of a plain script with marks, of one that makes none, or of an
elastic one. Drawn from the seed, one rank or all of them compute for 5 to 90 s (in many functions, in one line), sleep,
read and write files, wait for a thread or a child process that computes, compile, collect garbage, wait for data or
save to a slow disk; alike or unevenly, with or without a mark for it; some have a slow first step, some compete with other
processes for the processor, and of some the clock of one node or of both jumps by 30 s and back. The server is in auto mode with default settings, so that a wrong accusation does act.

Whoever reads from a socket for longer than stall.standing_s (30 s) is accused by design; such waits are drawn up to
25 s. The full goal is `--schedules 200`.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chain.soak import BUSY
from benchmarks.harm.clock_jump import ClockJump
from benchmarks.harm.deployment import START_S, Deployment, HarmJob, Turns, leftovers, results_of, say, until
from benchmarks.harm.healthy_schedules import Schedule, drawn
from benchmarks.report import Row, report
from eagle_eye.types import Incident, Severity

NO_RESTART = frozenset({"join", "rebalance"})
"""Reasons of an elastic job's epochs in which every worker lives on; a rebalance counts as an action."""
SLACK = 4.0
"""A schedule may take so many times as long as it should, on a machine that is busy; then it has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What came of one schedule."""

    schedule: Schedule
    restarts: tuple[str, ...] = ()
    """Epochs after the first one of all workers, with their reasons, but for those below."""
    evictions: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    """Actions that change something."""
    accusing: tuple[Incident, ...] = ()
    """The last revision with a culprit of each incident."""
    informing: tuple[str, ...] = ()
    """Causes of incidents that accuse nobody."""
    seconds: float = 0.0
    trouble: str = ""
    """Why it did not come to its end."""

    @property
    def harmed(self) -> bool:
        return bool(self.restarts or self.evictions or self.repairs or self.accusing or self.trouble)

    def story(self) -> str:
        """For a person: what the schedule did, and what was done to it."""
        what = [f"restart: {each}" for each in self.restarts] + [f"evicted: {each}" for each in self.evictions]
        what += [f"action: {each}" for each in self.repairs] + ([self.trouble] if self.trouble else [])
        for incident in self.accusing:
            names = ", ".join(culprit.entity.name for culprit in incident.culprits)
            what += [f"{incident.severity} {incident.cause}, accused {names}", *(f"    {evidence.text}" for evidence in incident.evidence)]
        return "\n".join([f"HARM {self.schedule}", *(f"  {line}" for line in what)])


def life(deployment: Deployment, schedule: Schedule) -> Turns[Life]:
    """One job, from its start to its end."""
    job = HarmJob(deployment, f"life{schedule.number}", schedule.script, schedule.plan)
    began, loads = time.monotonic(), list[subprocess.Popen[bytes]]()
    jump = schedule.jump
    job.start(jumping=0 if jump is None else 1 + jump.both)
    try:
        yield from until(lambda: bool(job.notes) or job.over, START_S)
        loads += [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(schedule.load)]
        if jump is not None:
            yield from _jumps(job, jump)
        ended = yield from until(lambda: job.over, START_S + SLACK * schedule.seconds)
        trouble = "" if ended and job.succeeded else f"did not end well: {job.tail()}"
    finally:
        for load in loads:
            load.kill()
            load.wait()
        yield from job.stop()
    return _judged(job, schedule, time.monotonic() - began, trouble)


def _jumps(job: HarmJob, jump: ClockJump) -> Turns[None]:
    """While the job trains."""
    for wait_s, seconds in ((jump.after_s, jump.seconds), (jump.lasts_s, 0.0)):
        yield from until(lambda: job.over, wait_s)
        job.clock.shift(seconds)


def _judged(job: HarmJob, schedule: Schedule, seconds: float, trouble: str) -> Life:
    revisions = job.deployment.incidents(job.name)
    accusing = {each.id: each for each in revisions if each.culprits}
    last = {each.id: each for each in revisions}
    return Life(
        schedule=schedule, seconds=seconds, trouble=trouble,
        restarts=tuple(f"epoch {layout.epoch}, {layout.reason}" for layout in job.record.later_epochs if layout.reason not in NO_RESTART),
        evictions=tuple({node for layout in job.record.layouts for node in layout.excluded}),
        repairs=tuple(f"{outcome.action} {outcome.state}" for outcome in job.deployment.repairs(job.name)),
        accusing=tuple(accusing.values()), informing=tuple(each.cause for key, each in last.items() if key not in accusing),
    )  # fmt: skip


# --- the figures -------------------------------------------------------------------------------------------------


def rows_of(lives: Sequence[Life]) -> list[Row]:
    """What must not have happened, and what did."""
    accusing = [incident for each in lives for incident in each.accusing]
    severe = [incident for incident in accusing if incident.severity is not Severity.INFO]
    evictions, restarts = sum(len(each.evictions) for each in lives), sum(len(each.restarts) for each in lives)
    repairs, troubles = sum(len(each.repairs) for each in lives), sum(bool(each.trouble) for each in lives)
    scripts = Counter(each.schedule.script for each in lives)
    informing = Counter(cause for each in lives for cause in each.informing)
    acts = [act for each in lives for act in each.schedule.plan.acts]
    jumps = sum(each.schedule.jump is not None for each in lives)
    return [
        Row("schedules; acts; seconds of them", f"{len(lives)} ({', '.join(f'{count} {name}' for name, count in sorted(scripts.items()))}); {len(acts)}; {sum(act.seconds for act in acts):.0f} s"),
        Row("of them with a clock that jumps by 30 s and back", str(jumps)),
        Row("restarts (epochs after the first of all workers)", str(restarts), "0", restarts == 0),
        Row("evictions", str(evictions), "0", evictions == 0),
        Row("actions that change something", str(repairs), "0", repairs == 0),
        Row("incidents that name a culprit", f"{len(severe)}{_causes(severe)}", "0", not severe),
        Row("incidents that name somebody and ask for nothing (INFO)", f"{len(accusing) - len(severe)}{_causes([each for each in accusing if each not in severe])}", "0", len(accusing) == len(severe)),
        Row("jobs that did not come to their end", str(troubles), "0", troubles == 0),
        Row("pauses that were told", str(informing["pause"])),
        Row("other incidents that accuse nobody", ", ".join(f"{count} {cause}" for cause, count in sorted(informing.items()) if cause != "pause") or "0"),
    ]  # fmt: skip


def _causes(incidents: Sequence[Incident]) -> str:
    found = Counter(incident.cause for incident in incidents)
    return f": {', '.join(f'{count} {cause}' for cause, count in sorted(found.items()))}" if found else ""


def main() -> int:
    """Live and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=12, help="default 12; 200 for the full goal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=4, help="jobs beside one another")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these schedules of the seed, to look at one again")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended then, too
    with tempfile.TemporaryDirectory(prefix="harm") as name:
        deployment = Deployment(Path(name))
        try:
            schedules = (drawn(number, options.seed) for number in options.only or range(options.schedules))
            lives = results_of(
                deployment, (life(deployment, schedule) for schedule in schedules), options.at_once,
                lambda each: each.story() if each.harmed else f"calm, {each.seconds:.0f} s: {each.schedule}",
            )  # fmt: skip
        finally:
            deployment.close()
        left = leftovers(Path(name))
    say("\n".join(left))
    rows = [*rows_of(lives), Row("processes left behind", str(len(left)), "0", not left)]
    return report(rows, options.json, f"a healthy life, seed {options.seed}")


if __name__ == "__main__":
    sys.exit(main())
