"""The whole chain with real processes: a job on two nodes is broken from outside, and the ledger is read."""

import contextlib
import resource
import signal
import subprocess
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
from eagle_eye.errors import LedgerError
from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.stream import OUTCOMES
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.training.ring_buffer import RingReader
from eagle_eye.types import Event, Notice, Outcome

SLOWER = frozenset({"slower worker", "slower node", "slower from the start"})
"""By some percent, of which nothing follows: a node that the other tests keep from computing is, for a while."""
TOLD = ("stall", "resumed", "exit", "exception", "epoch.started")
"""Events that a test that fails shows."""
LOOP = Path(__file__).with_name("loop.py")
DEADLINE_S = 120.0
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""
lease_s = 3.0

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
            assert made.wait(lambda: has_ledger(made), DEADLINE_S), "the server makes no ledger"
            yield made
        finally:
            made.stop()


def has_ledger(demo_job: DemoJob) -> bool:
    """The server has made it, with all its tables."""
    with contextlib.suppress(LedgerError), contextlib.closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)):
        return True
    return False


@pytest.fixture
def demo_job(running: DemoJob) -> Iterator[DemoJob]:
    """The job in good health: nothing is open, all four workers train. Of a test that fails, what happened is shown."""
    wait(running, "a healthy job", lambda: running.full() and all(kept.state in OVER for kept in running.record.kept))
    go_on(running, 20)
    yield running
    sys.stdout.write(told(running))  # shown of a test that fails


def wait(demo_job: DemoJob, what: str, condition: Callable[[], bool]) -> None:
    assert demo_job.wait(condition, DEADLINE_S), f"waited {DEADLINE_S:g} s for: {what}\n{told(demo_job)}"


def told(demo_job: DemoJob) -> str:
    """What to look at when a test fails."""
    kept = [f"{each.opened:.3f} {' '.join(verdict(each))} {each.state}" for each in demo_job.record.kept]
    events = [f"{each.time:.3f} {each.name} {each.entity.name} {each.attributes.get('state', '')}" for each in demo_job.record.trace.events if each.name in TOLD]
    return "\n".join([*kept, *outcomes(demo_job), *events[-40:], *(demo_job.cluster.tail(process) for process in ("server", "launcher-node-a", "launcher-node-b"))])


def outcomes(demo_job: DemoJob) -> list[str]:
    """What all incidents were, and what was done, oldest first."""
    with contextlib.closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        found = sorted(ledger.outcomes(), key=lambda outcome: outcome.time)
        revisions = [revision for kept in demo_job.record.kept for revision in ledger.incident(kept.incident.id)]
    answers = [f"{each.time:.3f} {each.incident} {each.action} {each.state}: {each.detail}" for each in found]
    causes = [f"{each.time:.3f} {each.id}.{each.revision} {each.cause} {'active' if each.active else 'over'} {[proof.text for proof in each.evidence]}" for each in revisions]
    return [*causes, *answers]


def go_on(demo_job: DemoJob, steps: int) -> None:
    assert demo_job.wait_steps(steps, DEADLINE_S), f"no {steps} further steps\n{told(demo_job)}"


def accused_since(demo_job: DemoJob, moment: float) -> list[IncidentRecord]:
    return [kept for kept in demo_job.record.seen_since(moment) if kept.incident.culprits and kept.incident.cause not in SLOWER]


def healed(demo_job: DemoJob, struck: drills.ActiveDrill, cause: str) -> IncidentRecord:
    """Wait until the only accused is the one who was struck, and the job has healed and goes on."""
    wait(demo_job, f"{cause} to be healed", lambda: demo_job.record.settled(struck.truth.time))
    kept, *others = accused_since(demo_job, struck.truth.time)
    assert not others, [(each.incident.cause, [line.text for line in each.incident.evidence]) for each in (kept, *others)]
    assert kept.incident.cause == cause
    assert [culprit.entity.name for culprit in kept.incident.culprits] == [struck.truth.worker or struck.truth.node]
    assert kept.state == "healed"
    go_on(demo_job, 10)
    return kept


def epoch(demo_job: DemoJob) -> int:
    layout = demo_job.record.trace.layout
    assert layout is not None
    return layout.epoch


def notices(demo_job: DemoJob, since: float) -> list[Notice]:
    with contextlib.closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        return list(ledger.notices(since=since, limit=10_000))


def is_led(demo_job: DemoJob) -> bool:
    """Its server leads; a job trains before that."""
    try:
        return bool(notices(demo_job, 0.0))
    except LedgerError:  # there is none yet
        return False


def actions(demo_job: DemoJob, kept: IncidentRecord) -> list[str]:
    """What was done and held, oldest first; letters are no repairs."""
    with contextlib.closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        outcomes = sorted(ledger.outcomes(incident=kept.incident.id), key=lambda outcome: outcome.time)
        return [outcome.action for outcome in outcomes if outcome.state == "done" and outcome.action != "notify"]


def cli(demo_job: DemoJob, *words: str) -> Result:
    """A command of a person, at this deployment."""
    return CliRunner().invoke(main, [*words, "--config", str(demo_job.folder / "eagle-eye.toml"), "--state-dir", str(demo_job.cluster.state_dir)])


def step_of(demo_job: DemoJob, worker: DrillTarget) -> int:
    """The step that a worker is in, past stream and server."""
    listing = msgspec.json.decode((demo_job.cluster.run_dir(worker.node) / "jobs" / "run-1.json").read_bytes())
    ring = next(each["ring"] for each in listing["workers"] if each["worker"] == worker.name)
    with RingReader.open(ring) as reader:
        return reader.now().step


def test_a_killed_worker_is_named_and_the_job_goes_on_beyond(demo_job: DemoJob) -> None:
    before, highest = epoch(demo_job), demo_job.record.trace.highest()
    kept = healed(demo_job, drills.kill(demo_job.workers()[1], demo_job.clock), "worker killed")
    assert epoch(demo_job) == before + 1
    assert demo_job.record.trace.highest() > highest
    assert actions(demo_job, kept) == ["restart_worker"]
    wait(demo_job, "the outcome in its topic", lambda: "done" in published(demo_job, kept.incident.id))


def published(demo_job: DemoJob, incident: str) -> list[str]:
    """States of an incident's outcomes as the stream's other readers see them."""
    with EmbeddedStream(demo_job.cluster.state_dir / "stream") as stream:
        outcomes = [msgspec.json.decode(message.value, type=Outcome) for message in stream.read(OUTCOMES, 0, 0)]
    return [outcome.state for outcome in outcomes if outcome.incident == incident]


def test_a_stopped_worker_is_continued_and_nothing_is_restarted(demo_job: DemoJob) -> None:
    before, worker = epoch(demo_job), demo_job.workers()[2]
    kept = healed(demo_job, drills.stop(worker, demo_job.clock), "worker stopped")
    assert epoch(demo_job) == before
    assert worker in demo_job.workers()
    assert actions(demo_job, kept) == ["reattempt"]


def test_a_hang_is_restarted_after_its_stacks_were_taken(demo_job: DemoJob) -> None:
    before, worker = epoch(demo_job), demo_job.workers()[3]
    kept = healed(demo_job, drills.in_trainer("hang", worker, demo_job.clock), "python hang")
    assert epoch(demo_job) == before + 1
    assert actions(demo_job, kept) == ["dump", "restart_worker"]
    stacks = cli(demo_job, "incidents", kept.incident.id, "--stacks").output
    assert worker.name in stacks
    assert "loop.py" in stacks
    assert "_sleep" in stacks, "the place where it hangs"


@pytest.mark.parametrize("late", [False, True], ids=["", "to a server that is behind"])
def test_a_stop_on_one_node_just_before_a_kill_on_another_are_both_told_each_with_its_culprit(demo_job: DemoJob, late: bool) -> None:
    since = demo_job.clock.now()
    with held(demo_job.cluster.server) if late else contextlib.nullcontext():
        stopped = drills.stop(demo_job.workers()[0], demo_job.clock)
        wait(demo_job, "the agent to see it stopped", lambda: any(is_stop_of(event, stopped) for event in demo_job.record.trace.events))  # it looks five times a second
        begun = epoch(demo_job)
        killed = drills.kill(demo_job.workers()[3], demo_job.clock)
        wait(demo_job, "the next epoch", lambda: not late or epoch(demo_job) > begun)
    faults = {("worker stopped", stopped.truth.worker), ("worker killed", killed.truth.worker)}
    wait(demo_job, "both incidents", lambda: faults <= {verdict(kept) for kept in accused_since(demo_job, since)})
    assert {verdict(kept) for kept in accused_since(demo_job, since)} == faults


@contextlib.contextmanager
def held(process: subprocess.Popen[bytes] | None) -> Iterator[None]:
    """It does nothing meanwhile."""
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def is_stop_of(event: Event, stopped: drills.ActiveDrill) -> bool:
    return event.name == "stall" and event.entity.name == stopped.truth.worker and event.attributes["state"] == "T" and event.time >= stopped.truth.time


def test_a_worker_that_ends_with_zero_while_the_others_need_it_is_named_and_no_node_is_evicted(demo_job: DemoJob) -> None:
    since, worker = demo_job.clock.now(), demo_job.workers()[1]
    (demo_job.cluster.state_dir / "checkpoints" / "test" / "loop" / "run-1" / "leave").touch()
    wait(demo_job, "the incident to be healed", lambda: demo_job.record.settled(since))
    (kept,) = accused_since(demo_job, since)
    assert verdict(kept) == ("worker ended early", worker.name)
    assert "with exit code 0 in step" in kept.incident.evidence[0].text
    assert actions(demo_job, kept) == ["restart_worker"]


def test_a_lost_node_is_one_incident_though_the_survivors_cry_first(demo_job: DemoJob) -> None:
    since = demo_job.clock.now()
    demo_job.kill_node("node-b")
    wait(demo_job, "the loss to be told", lambda: demo_job.record.settled(since))
    demo_job.start_node("node-b")
    assert [verdict(kept) for kept in demo_job.record.seen_since(since) if not explained(kept)] == [("node lost", "node-b")]


def explained(kept: IncidentRecord) -> bool:
    """It turned out to be a part of another one: a busy server may let the survivor wait for its word, which is told first. Or the machine is busy, which slows
    steps of 20 ms and accuses nobody."""
    if kept.incident.cause == "job slow":
        return not kept.incident.culprits
    return bool(kept.incident.part_of)


def verdict(kept: IncidentRecord) -> tuple[str, str]:
    """Cause and culprits."""
    return kept.incident.cause, " ".join(culprit.entity.name for culprit in kept.incident.culprits)


def test_a_slow_node_lives_on_until_a_person_approves(demo_job: DemoJob) -> None:
    before, workers = epoch(demo_job), demo_job.workers()
    struck = drills.slow_node("node-b", demo_job.cluster.run_dir("node-b"), demo_job.clock)
    try:
        wait(demo_job, "a plan that waits", lambda: bool(waiting(demo_job, struck.truth.time)))
        go_on(demo_job, 20)
        assert (epoch(demo_job), demo_job.workers()) == (before, workers), "nobody was touched"
        answer = cli(demo_job, "approve", waiting(demo_job, struck.truth.time), "--yes", "--as", "ada", "--server", demo_job.server_address)
        assert answer.exit_code == 0, answer.output
        wait(demo_job, "the approved action", lambda: epoch(demo_job) > before)
    finally:
        struck.end()
    kept = healed(demo_job, struck, "slow node")
    assert actions(demo_job, kept) == ["restart_worker"]
    shown = cli(demo_job, "incidents", kept.incident.id).output
    assert "ada approved" in shown


def waiting(demo_job: DemoJob, since: float) -> str:
    """Id of the plan for the newest incident that waits for a word; '' without one."""
    with contextlib.closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        for kept in accused_since(demo_job, since):
            for plan in ledger.plans(incident=kept.incident.id):
                if plan.action != "notify" and not plan.own and ledger.outcome(plan.id) is None:
                    return plan.id
    return ""


def test_a_held_stream_is_told_and_nobody_is_accused(demo_job: DemoJob) -> None:
    before, worker = epoch(demo_job), demo_job.workers()[0]
    step = step_of(demo_job, worker)
    struck = drills.hold_stream(EmbeddedStream(demo_job.cluster.state_dir / "stream", clock=demo_job.clock), demo_job.clock)
    since = struck.truth.time
    try:
        wait(demo_job, "a notice", lambda: "stream.away" in {notice.name for notice in notices(demo_job, since)})
        wait(demo_job, "training to go on meanwhile", lambda: step_of(demo_job, worker) > step + 60)
    finally:
        struck.end()
    wait(demo_job, "the stream's return", lambda: "stream.recovered" in {notice.name for notice in notices(demo_job, since)})
    wait(demo_job, "what was done meanwhile", lambda: demo_job.record.trace.highest() > step + 60)
    go_on(demo_job, 60)
    assert not accused_since(demo_job, since)
    assert epoch(demo_job) == before


def test_a_full_disk_under_the_stream_is_told_and_training_goes_on(demo_job: DemoJob) -> None:
    before, worker = epoch(demo_job), demo_job.workers()[0]
    since, step = demo_job.clock.now(), step_of(demo_job, worker)
    writers = [pid for name in demo_job.nodes for pid in demo_job.cluster.pids(name)]
    with no_room(writers):
        wait(demo_job, "the agents' word", lambda: all("free space" in demo_job.cluster.tail(f"agent-{name}") for name in demo_job.nodes))
        wait(demo_job, "training to go on meanwhile", lambda: step_of(demo_job, worker) > step + 60)
    wait(demo_job, "what was done meanwhile", lambda: demo_job.record.trace.highest() > step + 60)
    go_on(demo_job, 60)
    assert not accused_since(demo_job, since)
    assert epoch(demo_job) == before


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


def test_a_killed_server_that_is_started_again_accuses_nobody(demo_job: DemoJob) -> None:
    before, since = epoch(demo_job), demo_job.clock.now()
    kill_server(demo_job)
    start_server(demo_job)
    go_on(demo_job, 250)  # well beyond two leases, after which sessions are judged again
    assert not accused_since(demo_job, since)
    assert epoch(demo_job) == before
    healed(demo_job, drills.kill(demo_job.workers()[0], demo_job.clock), "worker killed")


def start_server(demo_job: DemoJob) -> None:
    """Again, until it leads: the next test begins with a leader."""
    since = demo_job.clock.now()
    demo_job.cluster.start_server()
    wait(demo_job, "a new leader", lambda: "leader.elected" in {notice.name for notice in notices(demo_job, since)})


def kill_server(demo_job: DemoJob) -> None:
    server = demo_job.cluster.server
    assert server is not None
    demo_job.cluster.server = None
    server.kill()
    server.wait()


def test_a_second_server_names_the_holder_and_takes_over(demo_job: DemoJob, tmp_path: Path) -> None:
    wait(demo_job, "a leader", lambda: is_led(demo_job))
    leader, since = demo_job.cluster.server, demo_job.clock.now()
    assert leader is not None
    second = LocalCluster(
        folder=tmp_path, config_file=demo_job.folder / "eagle-eye.toml", clock=demo_job.clock, state_dir=demo_job.cluster.state_dir
    )
    second.start_server()
    try:
        wait(demo_job, "the standby's word", lambda: "standing by" in second.tail("server"))
        assert f"process {leader.pid} on" in second.tail("server")
        go_on(demo_job, 40)
        assert not notices(demo_job, since), f"the leader was disturbed\n{told(demo_job)}\n{second.tail('server')}"
        kill_server(demo_job)
        wait(demo_job, "the standby to lead", lambda: "leading in term" in second.tail("server"))
        demo_job.cluster.server = second.server
    finally:
        if demo_job.cluster.server is not second.server:
            second.stop()
    healed(demo_job, drills.kill(demo_job.workers()[2], demo_job.clock), "worker killed")


def test_what_was_recorded_replays_byte_for_byte(demo_job: DemoJob) -> None:
    healed(demo_job, drills.kill(demo_job.workers()[3], demo_job.clock), "worker killed")
    server, demo_job.cluster.server = demo_job.cluster.server, None
    assert server is not None
    server.terminate()
    server.wait()
    try:
        result = cli(demo_job, "replay")
    finally:
        start_server(demo_job)
    assert result.exit_code == 0, result.output
    assert "the same, byte for byte" in result.output
    assert " 0 recorded" not in result.output
