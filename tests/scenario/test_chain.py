"""The whole chain with real processes: a job on two nodes is broken from outside, and the ledger is read."""

import contextlib
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from eagle_eye.app import drills
from eagle_eye.app.cli import main
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.app.demo.deployment_reader import OVER
from eagle_eye.app.drills import DrillTarget
from eagle_eye.app.local_cluster import LocalCluster
from eagle_eye.clock import SystemClock
from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.stream import OUTCOMES
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.training.ring_buffer import RingReader
from eagle_eye.types import Notice, Outcome

LOOP = Path(__file__).with_name("loop.py")
DEADLINE_S = 120.0
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""
lease_s = 1.5

[engine]
mode = "recommend"
relapse_s = 5.0

[guards.blast_radius]
nodes = 10
"""


# --- one job for all tests on a living one ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running() -> Iterator[DemoJob]:
    with tempfile.TemporaryDirectory(prefix="chain") as folder:  # short: paths of unix sockets are limited
        command = (sys.executable, str(LOOP))
        made = DemoJob(folder=Path(folder), config=CONFIG, command=command, job="test/loop", launch=("--preload", "none"), clock=SystemClock())
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture
def stage(running: DemoJob) -> DemoJob:
    """The job in good health: nothing is open, all four workers train."""
    wait(running, "a healthy job", lambda: running.full() and all(kept.state in OVER for kept in running.record.kept))
    go_on(running, 20)
    return running


def wait(stage: DemoJob, what: str, condition: Callable[[], bool]) -> None:
    assert stage.wait(condition, DEADLINE_S), f"waited {DEADLINE_S:g} s for: {what}\n{told(stage)}"


def told(stage: DemoJob) -> str:
    """What to look at when a test fails."""
    kept = [f"{each.incident.cause} {each.incident.culprits} {each.state}" for each in stage.record.kept]
    return "\n".join([*kept, stage.cluster.tail("server"), stage.cluster.tail("launcher-node-a")])


def go_on(stage: DemoJob, steps: int) -> None:
    assert stage.wait_steps(steps, DEADLINE_S), f"no {steps} further steps\n{told(stage)}"


def accused_since(stage: DemoJob, moment: float) -> list[IncidentRecord]:
    return [kept for kept in stage.record.kept if kept.opened >= moment and kept.incident.culprits]


def healed(stage: DemoJob, struck: drills.ActiveDrill, cause: str) -> IncidentRecord:
    """Wait until the only accused is the one who was struck, and the job has healed and goes on."""
    wait(stage, f"{cause} to be healed", lambda: stage.record.settled(struck.truth.time))
    (kept,) = accused_since(stage, struck.truth.time)
    assert kept.incident.cause == cause
    assert [culprit.entity.name for culprit in kept.incident.culprits] == [struck.truth.worker or struck.truth.node]
    assert kept.state == "healed"
    go_on(stage, 10)
    return kept


def epoch(stage: DemoJob) -> int:
    layout = stage.record.trace.layout
    assert layout is not None
    return layout.epoch


def notices(stage: DemoJob, since: float) -> list[Notice]:
    with contextlib.closing(Ledger.open(stage.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        return list(ledger.notices(since=since, limit=10_000))


def actions(stage: DemoJob, kept: IncidentRecord) -> list[str]:
    """What was done and held, oldest first; letters are no repairs."""
    with contextlib.closing(Ledger.open(stage.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        outcomes = sorted(ledger.outcomes(incident=kept.incident.id), key=lambda outcome: outcome.time)
        return [outcome.action for outcome in outcomes if outcome.state == "done" and outcome.action != "notify"]


def cli(stage: DemoJob, *words: str) -> Result:
    """A command of a person, at this deployment."""
    return CliRunner().invoke(main, [*words, "--config", str(stage.folder / "eagle-eye.toml"), "--state-dir", str(stage.cluster.state_dir)])


def step_of(stage: DemoJob, worker: DrillTarget) -> int:
    """The step that a worker is in, past stream and server."""
    listing = msgspec.json.decode((stage.cluster.run_dir(worker.node) / "jobs" / "run-1.json").read_bytes())
    ring = next(each["ring"] for each in listing["workers"] if each["worker"] == worker.name)
    with RingReader.open(ring) as reader:
        return reader.now().step


def test_a_killed_worker_is_named_and_the_job_goes_on_beyond(stage: DemoJob) -> None:
    before, highest = epoch(stage), stage.record.trace.highest()
    kept = healed(stage, drills.kill(stage.workers()[1], stage.clock), "worker killed")
    assert epoch(stage) == before + 1
    assert stage.record.trace.highest() > highest
    assert actions(stage, kept) == ["restart_worker"]
    wait(stage, "the outcome in its topic", lambda: "done" in published(stage, kept.incident.id))


def published(stage: DemoJob, incident: str) -> list[str]:
    """States of an incident's outcomes as the stream's other readers see them."""
    with EmbeddedStream(stage.cluster.state_dir / "stream") as stream:
        outcomes = [msgspec.json.decode(message.value, type=Outcome) for message in stream.read(OUTCOMES, 0, 0)]
    return [outcome.state for outcome in outcomes if outcome.incident == incident]


def test_a_stopped_worker_is_continued_and_nothing_is_restarted(stage: DemoJob) -> None:
    before, worker = epoch(stage), stage.workers()[2]
    kept = healed(stage, drills.stop(worker, stage.clock), "worker stopped")
    assert epoch(stage) == before
    assert worker in stage.workers()
    assert actions(stage, kept) == ["reattempt"]


def test_a_hang_is_restarted_after_its_stacks_were_taken(stage: DemoJob) -> None:
    before, worker = epoch(stage), stage.workers()[3]
    kept = healed(stage, drills.in_trainer("hang", worker, stage.clock), "python hang")
    assert epoch(stage) == before + 1
    assert actions(stage, kept) == ["dump", "restart_worker"]
    stacks = cli(stage, "incidents", kept.incident.id, "--stacks").output
    assert worker.name in stacks
    assert "loop.py" in stacks
    assert "_sleep" in stacks, "the place where it hangs"


def test_a_slow_node_lives_on_until_a_person_approves(stage: DemoJob) -> None:
    before, workers = epoch(stage), stage.workers()
    struck = drills.slow_node("node-b", stage.cluster.run_dir("node-b"), stage.clock)
    try:
        wait(stage, "a plan that waits", lambda: bool(waiting(stage, struck.truth.time)))
        go_on(stage, 20)
        assert (epoch(stage), stage.workers()) == (before, workers), "nobody was touched"
        answer = cli(stage, "approve", waiting(stage, struck.truth.time), "--yes", "--as", "ada", "--server", stage.server_address)
        assert answer.exit_code == 0, answer.output
        wait(stage, "the approved action", lambda: epoch(stage) > before)
    finally:
        struck.end()
    kept = healed(stage, struck, "slow node")
    assert actions(stage, kept) == ["restart_worker"]
    shown = cli(stage, "incidents", kept.incident.id).output
    assert "ada approved" in shown


def waiting(stage: DemoJob, since: float) -> str:
    """Id of the plan for the newest incident that waits for a word; '' without one."""
    with contextlib.closing(Ledger.open(stage.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        for kept in accused_since(stage, since):
            for plan in ledger.plans(incident=kept.incident.id):
                if plan.action != "notify" and not plan.own and ledger.outcome(plan.id) is None:
                    return plan.id
    return ""


def test_a_held_stream_is_told_and_nobody_is_accused(stage: DemoJob) -> None:
    before, worker = epoch(stage), stage.workers()[0]
    step = step_of(stage, worker)
    struck = drills.hold_stream(EmbeddedStream(stage.cluster.state_dir / "stream", clock=stage.clock), stage.clock)
    since = struck.truth.time
    try:
        wait(stage, "a notice", lambda: "stream.away" in {notice.name for notice in notices(stage, since)})
        wait(stage, "training to go on meanwhile", lambda: step_of(stage, worker) > step + 60)
    finally:
        struck.end()
    wait(stage, "the stream's return", lambda: "stream.recovered" in {notice.name for notice in notices(stage, since)})
    wait(stage, "what was done meanwhile", lambda: stage.record.trace.highest() > step + 60)
    go_on(stage, 60)
    assert not accused_since(stage, since)
    assert epoch(stage) == before


def test_a_full_disk_under_the_stream_is_told_and_training_goes_on(stage: DemoJob) -> None:
    before, worker = epoch(stage), stage.workers()[0]
    since, step = stage.clock.now(), step_of(stage, worker)
    writers = [pid for name in stage.nodes for pid in stage.cluster.pids(name)]
    with no_room(writers):
        wait(stage, "the agents' word", lambda: all("free space" in stage.cluster.tail(f"agent-{name}") for name in stage.nodes))
        wait(stage, "training to go on meanwhile", lambda: step_of(stage, worker) > step + 60)
    wait(stage, "what was done meanwhile", lambda: stage.record.trace.highest() > step + 60)
    go_on(stage, 60)
    assert not accused_since(stage, since)
    assert epoch(stage) == before


@contextlib.contextmanager
def no_room(pids: list[int]) -> Iterator[None]:
    """The kernel lets these processes write no file beyond a few pages, as if the disk were full."""
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (64 << 10, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def test_a_killed_server_that_is_started_again_accuses_nobody(stage: DemoJob) -> None:
    before, since = epoch(stage), stage.clock.now()
    kill_server(stage)
    stage.cluster.start_server()
    wait(stage, "a new leader", lambda: "leader.elected" in {notice.name for notice in notices(stage, since)})
    go_on(stage, 250)  # well beyond two leases, after which sessions are judged again
    assert not accused_since(stage, since)
    assert epoch(stage) == before
    healed(stage, drills.kill(stage.workers()[0], stage.clock), "worker killed")


def kill_server(stage: DemoJob) -> None:
    server = stage.cluster.server
    assert server is not None
    stage.cluster.server = None
    server.kill()
    server.wait()


def test_a_second_server_names_the_holder_and_takes_over(stage: DemoJob, tmp_path: Path) -> None:
    leader, since = stage.cluster.server, stage.clock.now()
    assert leader is not None
    second = LocalCluster(
        folder=tmp_path, config_file=stage.folder / "eagle-eye.toml", clock=stage.clock, state_dir=stage.cluster.state_dir
    )
    second.start_server()
    try:
        wait(stage, "the standby's word", lambda: "standing by" in second.tail("server"))
        assert f"process {leader.pid} on" in second.tail("server")
        go_on(stage, 40)
        assert not notices(stage, since), "the leader was not disturbed"
        kill_server(stage)
        wait(stage, "the standby to lead", lambda: "leading in term" in second.tail("server"))
        stage.cluster.server = second.server
    finally:
        if stage.cluster.server is not second.server:
            second.stop()
    healed(stage, drills.kill(stage.workers()[2], stage.clock), "worker killed")


def test_what_was_recorded_replays_byte_for_byte(stage: DemoJob) -> None:
    healed(stage, drills.kill(stage.workers()[3], stage.clock), "worker killed")
    server, stage.cluster.server = stage.cluster.server, None
    assert server is not None
    server.terminate()
    server.wait()
    try:
        result = cli(stage, "replay")
    finally:
        stage.cluster.start_server()
    assert result.exit_code == 0, result.output
    assert "the same, byte for byte" in result.output
    assert " 0 recorded" not in result.output
