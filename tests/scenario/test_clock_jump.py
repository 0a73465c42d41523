"""The machine's clock is set in the middle of a fault: what is told of it are durations that were."""

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.harm.clock_jump import JumpingClock
from eagle_eye.app import drills
from eagle_eye.app.cli import main
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.clock import SystemClock
from eagle_eye.ledger import Ledger

LOOP = Path(__file__).with_name("loop.py")
DEADLINE_S = 120.0
LONGEST_S = 20.0
"""No heal here takes as long on any machine, and each jump is longer."""
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""

[history]
enabled = false
"""


@pytest.fixture(scope="module")
def clock_of_all() -> Iterator[tuple[DemoJob, JumpingClock]]:
    """A job with its server, agents and launchers, on one machine whose clock a test may set."""
    with tempfile.TemporaryDirectory(prefix="jump") as folder:  # short: paths of unix sockets are limited
        clock = JumpingClock(file=Path(folder) / "clock")
        clock.shift(0.0)
        command = (sys.executable, str(LOOP))
        made = DemoJob(folder=Path(folder), config=CONFIG, command=command, job="test/loop", launch=("--preload", "none"), clock=SystemClock())
        try:
            with clock.inherited():
                made.start()
            assert made.wait(lambda: "leading in term" in made.cluster.tail("server"), DEADLINE_S)  # a jump while it starts is none to it
            yield made, clock
        finally:
            made.stop()


@pytest.mark.parametrize("before", [False, True], ids=["behind_the_kill", "before_the_kill"])
@pytest.mark.parametrize("jump", [30.0, -30.0], ids=["forward", "back"])
def test_durations_across_a_jump_are_those_that_passed(clock_of_all: tuple[DemoJob, JumpingClock], jump: float, before: bool) -> None:
    """`before`: the exit has a time of the new clock, and no batch has told of that clock yet."""
    demo_job, clock = clock_of_all
    assert demo_job.wait(demo_job.full, DEADLINE_S)
    assert demo_job.wait_steps(20, DEADLINE_S)
    known = {kept.incident.id for kept in demo_job.record.kept}
    victim = demo_job.workers()[3]
    if before:
        clock.shift(clock.seconds + jump)
    drills.kill(victim, demo_job.clock)
    if not before:
        clock.shift(clock.seconds + jump)
    assert demo_job.wait(lambda: any(kept.incident.id not in known and kept.incident.culprits and kept.state == "healed" for kept in demo_job.record.kept), DEADLINE_S)
    (kept,) = [kept for kept in demo_job.record.kept if kept.incident.id not in known and kept.incident.culprits]
    assert [culprit.entity.name for culprit in kept.incident.culprits] == [victim.name]
    state = demo_job.cluster.state_dir
    shown = CliRunner().invoke(main, ["incidents", kept.incident.id, "--state-dir", str(state)]).output
    (found,) = re.findall(r"found (\S+) s later", shown)
    assert 0.0 <= float(found) < LONGEST_S, shown
    with contextlib.closing(Ledger.open(state / "ledger.sqlite", read_only=True)) as ledger:
        outcomes = ledger.outcomes(incident=kept.incident.id)
        downtimes = [outcome.actual["downtime_s"] for outcome in outcomes if "downtime_s" in outcome.actual]
        assert downtimes, outcomes
        assert all(0.0 <= seconds < LONGEST_S for seconds in [*downtimes, *(outcome.detection_s for outcome in outcomes)]), outcomes
        assert demo_job.wait(lambda: ledger.notices(name="clock.slewed"), DEADLINE_S)
