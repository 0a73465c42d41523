"""Servers with roles as real processes: a leader with a standby and two that detect; each may be killed at any time."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from eagle_eye.app import drills
from eagle_eye.app.cli import main
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.clock import SystemClock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import IncidentRecord, LeaseHolder, Ledger
from eagle_eye.rpc.control_client import call
from eagle_eye.stream import INCIDENTS, JOB_SNAPSHOTS, OBSERVATIONS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import Incident, JobSnapshot

LOOP = Path(__file__).with_name("loop.py")
DEADLINE_S = 150.0
PARTITIONS = 4
JOB = "test/roles/run-1"
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""
lease_s = 2.0

[stream]
partitions = 4

[engine]
mode = "recommend"
relapse_s = 0.5

[guards.blast_radius]
nodes = 10

[guards.cooldown]
node_s = 1.0
job_s = 1.0
"""


@pytest.fixture(scope="module")
def demo_job() -> Iterator[DemoJob]:
    with tempfile.TemporaryDirectory(prefix="roles") as folder:  # short: paths of unix sockets are limited
        with EmbeddedStream(Path(folder) / "state" / "stream", partitions={OBSERVATIONS: PARTITIONS}) as stream:
            assert stream.partitions(OBSERVATIONS) == PARTITIONS
        made = DemoJob(
            folder=Path(folder), config=CONFIG, command=(sys.executable, str(LOOP)), job="test/roles", heal="none",
            server=("--role", "lead"), launch=("--preload", "none"), clock=SystemClock(),
        )  # fmt: skip
        try:
            made.start()
            wait(made, "a leader", lambda: term_of(made) > 0)  # else the one meant to stand by may be the first to lead
            for name, role in (("standby", "lead"), ("detect-1", "detect"), ("detect-2", "detect")):
                made.cluster.start_further(name, "--role", role)
            wait(made, "steps", lambda: made.record.trace.highest() > 20)
            wait(made, "evenly shared partitions", lambda: [len(owned(made, name)) for name in ("detect-1", "detect-2")] == [2, 2])
            yield made
        finally:
            made.stop()


def wait(demo_job: DemoJob, what: str, condition: Callable[[], bool]) -> None:
    assert demo_job.wait(condition, DEADLINE_S), f"waited {DEADLINE_S:g} s for: {what}\n{told(demo_job)}"


def told(demo_job: DemoJob) -> str:
    kept = [f"{each.incident.cause} {each.incident.culprits} {each.state}" for each in demo_job.record.kept]
    return "\n".join([*kept, *(demo_job.cluster.tail(name, 60) for name in ("server", *demo_job.cluster.further, "launcher-node-a"))])


@contextlib.contextmanager
def ledger_of(demo_job: DemoJob) -> Iterator[Ledger]:
    with contextlib.closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        yield ledger


def owned(demo_job: DemoJob, name: str) -> dict[int, int]:
    """Partition → term, of the leases that a process holds."""
    process = demo_job.cluster.further[name]
    with ledger_of(demo_job) as ledger:
        held = ledger.living("partition/", demo_job.clock.now())
    return {int(lease.name.split("/")[1]): lease.term for lease in held if lease.holder.pid == process.pid}


def newest_snapshot(demo_job: DemoJob) -> JobSnapshot:
    with EmbeddedStream(demo_job.cluster.state_dir / "stream") as stream:
        last = stream.read(JOB_SNAPSHOTS, 0, stream.end(JOB_SNAPSHOTS, 0) - 1)[-1]
    return msgspec.json.decode(last.value, type=JobSnapshot)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def broken(demo_job: DemoJob, worker: int) -> IncidentRecord:
    """A worker is stopped, which its job may not heal by itself: the incident that waits for a person's word."""
    before = {kept.incident.id for kept in demo_job.record.kept if kept.incident.culprits}
    drills.stop(demo_job.workers()[worker], demo_job.clock)

    def new() -> list[IncidentRecord]:
        """It may have been open, as a pause that accuses nobody."""
        return [kept for kept in demo_job.record.kept if kept.incident.culprits and kept.incident.id not in before]

    wait(demo_job, "the incident", lambda: bool(new()))
    (kept,) = new()
    wait(demo_job, "a plan that waits", lambda: bool(waiting(demo_job, kept)))
    return kept


def waiting(demo_job: DemoJob, kept: IncidentRecord) -> list[str]:
    with ledger_of(demo_job) as ledger:
        plans = ledger.plans(incident=kept.incident.id)
        return [plan.id for plan in plans if plan.action != "notify" and not plan.own and ledger.outcome(plan.id) is None]


def approve(demo_job: DemoJob, kept: IncidentRecord) -> None:
    """Until the newest plan was approved: one that was made anew in between asks again."""
    words = ["--yes", "--as", "ada", "--server", demo_job.server_address, "--config", str(demo_job.folder / "eagle-eye.toml")]
    state = ["--state-dir", str(demo_job.cluster.state_dir)]
    wait(
        demo_job,
        "the approval",
        lambda: any(CliRunner().invoke(main, ["approve", plan, *words, *state]).exit_code == 0 for plan in waiting(demo_job, kept)),
    )


def incidents_of(demo_job: DemoJob) -> set[str]:
    """Ids of everything that was ever claimed about the job with a culprit, in stream and ledger."""
    with EmbeddedStream(demo_job.cluster.state_dir / "stream") as stream:
        said = [msgspec.json.decode(message.value, type=Incident) for message in stream.read(INCIDENTS, 0, 0, 100_000)]
    kept = [record.incident for record in demo_job.record.kept]
    assert {each.id for each in kept if each.culprits} == {each.id for each in said if each.culprits}
    return {each.id for each in kept if each.culprits}


def healed(demo_job: DemoJob, kept: IncidentRecord) -> None:
    approve(demo_job, kept)
    wait(demo_job, "the incident to be healed", lambda: {record.incident.id: record.state for record in demo_job.record.kept}[kept.incident.id] == "healed")
    assert demo_job.wait_steps(10, DEADLINE_S), told(demo_job)


def test_a_killed_detector_leaves_its_partitions_to_the_other_and_the_incident_stays_one(demo_job: DemoJob) -> None:
    before = incidents_of(demo_job)
    kept = broken(demo_job, 1)
    with EmbeddedStream(demo_job.cluster.state_dir / "stream") as stream:
        partition = stream.partition_of(OBSERVATIONS, JOB)
    (victim,) = [name for name in ("detect-1", "detect-2") if partition in owned(demo_job, name)]
    survivor = "detect-2" if victim == "detect-1" else "detect-1"
    term = owned(demo_job, victim)[partition]
    kill(demo_job.cluster.further.pop(victim))
    wait(demo_job, "the other to own everything", lambda: len(owned(demo_job, survivor)) == PARTITIONS)
    assert owned(demo_job, survivor)[partition] == term + 1
    wait(demo_job, "snapshots of the new owner", lambda: newest_snapshot(demo_job).generation == term + 1)
    assert incidents_of(demo_job) == {*before, kept.incident.id}, "the same incident goes on"
    healed(demo_job, kept)
    assert incidents_of(demo_job) == {*before, kept.incident.id}
    demo_job.cluster.start_further(victim, "--role", "detect")
    wait(demo_job, "evenly shared partitions", lambda: [len(owned(demo_job, name)) for name in (victim, survivor)] == [2, 2])


def term_of(demo_job: DemoJob) -> int:
    """Of the leader that answers; 0 if none does."""
    with contextlib.suppress(EagleEyeError):
        return int(call(demo_job.server_address, "status")["term"])
    return 0


def test_a_leader_whose_lease_is_another_s_stands_by_and_leads_again_without_a_restart(demo_job: DemoJob) -> None:
    leader = demo_job.cluster.server
    assert leader is not None
    if "standby" in demo_job.cluster.further:
        kill(demo_job.cluster.further.pop("standby"))
    intruder = LeaseHolder(host="elsewhere", pid=1, incarnation="intruder")
    with contextlib.closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite")) as ledger:
        before = ledger.holder_of("leader")
        assert before is not None
        term = None
        while term is None:  # the leader may renew its lease between the two
            ledger.resign("leader", before.holder, demo_job.clock.now())
            term = ledger.acquire("leader", intruder, 600.0, demo_job.clock.now())
        assert term == before.term + 1
        wait(demo_job, "the leader to stand by", lambda: term_of(demo_job) == 0)
        ledger.resign("leader", intruder, demo_job.clock.now())
    wait(demo_job, "it to lead again", lambda: term_of(demo_job) == term + 1)
    assert leader.poll() is None
    healed(demo_job, broken(demo_job, 0))


def test_a_killed_leader_is_followed_by_its_standby_which_heals_what_is_open(demo_job: DemoJob) -> None:
    if "standby" not in demo_job.cluster.further:
        demo_job.cluster.start_further("standby", "--role", "lead")
    before, term = incidents_of(demo_job), term_of(demo_job)
    kept = broken(demo_job, 2)
    leader = demo_job.cluster.server
    assert leader is not None
    demo_job.cluster.server = demo_job.cluster.further.pop("standby")
    kill(leader)
    wait(demo_job, "the standby to lead", lambda: term_of(demo_job) == term + 1)
    healed(demo_job, kept)
    assert incidents_of(demo_job) == {*before, kept.incident.id}
