"""A job file of another user may hold anything: it costs that user's job alone, and nothing raises for the others."""

import gc
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from collectors import training
from collectors.agent.garbage_collector import collect_garbage
from collectors.agent.job_directory import JobDirectory, LocalJob, LocalWorker, may_name
from collectors.collective import CollectiveCollector
from collectors.job_log import JobLogCollector
from collectors.process import ProcessCollector, _signal_name
from collectors.training import TrainingCollector
from collectors.worker.watched_worker import WatchedWorker
from eagle_eye.activity.inspector import ActivityInspector
from eagle_eye.clock import FakeClock
from eagle_eye.regular_file import open_regular
from eagle_eye.training.ring_buffer import start_time_of
from eagle_eye.types import Event, Reading
from fakes.other_user import USER, needs_root, sleeping_process

ODD: dict[str, object] = {
    "nul": "/tmp/x\0y", "surrogate": "/tmp/\udc80", "long": "/tmp/" + "a" * 300_000, "deep": "a/" * 2000,
    "huge": 10**400, "beyond 64 bits": 2**64, "beyond a pid": 2**31, "negative": -(2**63), "float": 1e300,
}  # fmt: skip
WORKER_FIELDS = tuple(each.name for each in msgspec.structs.fields(LocalWorker))
JOB_FIELDS = tuple(each.name for each in msgspec.structs.fields(LocalJob) if each.name not in ("workers", "user", "file"))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    return tmp_path


@pytest.fixture(scope="module")
def theirs() -> Iterator[int]:
    """Pid of a process of another user."""
    with sleeping_process() as pid:
        yield pid


def register(run_dir: Path, run: str, pid: int, user: int, /, *, job: dict[str, object] | None = None, **worker: object) -> None:
    """Write a job file of one worker as a user; `job` and `worker`: what it says otherwise than it should."""
    path = run_dir / "jobs" / f"{run}.json"
    alive = {"pid": pid, "start_time": start_time_of(pid)}
    body: dict[str, object] = {"version": 1, "job": f"t/a/{run}", "run": run, "node": "n1", "launcher_pid": pid, "launcher_start_time": alive["start_time"]}
    body["workers"] = [{"worker": f"{run}/n1/0", "slot": 0, "rank": 0, "log": str(run_dir / f"{run}.log"), **alive, **worker}]
    path.write_text(json.dumps(body | (job or {})))
    os.chown(path, user, user)


class Unlooked(ActivityInspector):
    """Looks into nobody: no thread is started."""

    def __init__(self) -> None:
        super().__init__(1.0, FakeClock(now=1_700_000_000.0))

    def watch(self, processes: object, recorders: object = None) -> None:
        list(processes)  # type: ignore[call-overload]  # it is consumed, as by the real one


def collector_of(run_dir: Path, clock: FakeClock) -> TrainingCollector:
    return TrainingCollector(run_dir=run_dir, node="n1", clock=clock, inspector=Unlooked())


def rows(found: Iterable[object]) -> set[str]:
    return {name for each in found if isinstance(each, Reading) for name in each.entities}


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """What the collectors of a test have open is closed with it: there are many."""
    yield
    gc.collect(1)


@needs_root
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("field", [*(f"worker.{name}" for name in WORKER_FIELDS), *(f"job.{name}" for name in JOB_FIELDS)])
def test_whatever_a_field_holds_costs_that_file_alone(run_dir: Path, theirs: int, field: str, odd: str) -> None:
    """Every field of the job file, every odd value: nothing raises, and the honest job is read on."""
    where, _, name = field.partition(".")
    clock = FakeClock(now=1_700_000_000.0)
    register(run_dir, "honest", os.getpid(), 0)
    honest = run_dir / "honest.log"
    honest.write_text("")
    register(run_dir, "evil", theirs, USER, job={name: ODD[odd]} if where == "job" else None, **({name: ODD[odd]} if where == "worker" else {}))
    workers, logs = collector_of(run_dir, clock), JobLogCollector(node="n1", run_dir=run_dir, clock=clock)
    others = (ProcessCollector(run_dir=run_dir, node="n1", clock=clock), CollectiveCollector(run_dir=run_dir, clock=clock))
    logs.collect()
    with honest.open("a") as file:
        file.write("RuntimeError: CUDA error: misaligned address\n")
    clock.advance(1.0)
    assert "honest/n1/0" in rows(workers.collect())
    assert any(isinstance(each, Event) and each.name == "log.error" and each.job == "t/a/honest" for each in logs.collect())
    for other in others:
        list(other.collect())
    assert collect_garbage(run_dir, JobDirectory(run_dir).read(), clock.now(), "n1", run_dir / "shared") == []


def test_a_path_with_a_nul_is_nobody_s_file_and_no_file(tmp_path: Path) -> None:
    """Callers catch OSError."""
    assert may_name(USER, f"{tmp_path}/x\0y"), "it names no file of another"
    for name in ("x\0y", "x\udfffy"):
        with pytest.raises(OSError, match="no file can have this name"):
            open_regular(tmp_path / name)


def test_twin_a_name_that_is_no_utf_8_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "caf\udce9"
    path.write_bytes(b"x")
    os.close(open_regular(path))


def test_garbage_collection_goes_on_behind_a_job_that_fails(run_dir: Path) -> None:
    """Structs that did not come from a file may hold anything, too."""
    dead = LocalWorker(worker="r1/n1/0", slot=0, rank=0, pid=999_999, start_time=5, ring=f"{run_dir}/a\0b.ring")
    left = run_dir / "b.ring"
    left.write_text("")
    honest = LocalWorker(worker="r2/n1/0", slot=0, rank=0, pid=999_999, start_time=5, ring=str(left))
    jobs = tuple(LocalJob(job=f"t/a/{run}", run=run, node="n1", workers=(each,), file=f"{run}.json") for run, each in (("r1", dead), ("r2", honest)))
    assert collect_garbage(run_dir, jobs, 1e9, "n1", run_dir / "shared") == [left]


def test_a_worker_that_cannot_be_sampled_costs_itself_alone(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told once, however long it lasts; over when it is gone."""
    clock = FakeClock(now=1_700_000_000.0)
    register(run_dir, "honest", os.getpid(), 0)
    register(run_dir, "odd", os.getpid(), 0)
    sample = WatchedWorker.row

    def row(self: WatchedWorker, wall: float, monotonic: float) -> list[float]:
        if self.run == "odd":
            raise OverflowError("int too large to convert to float")
        return sample(self, wall, monotonic)

    monkeypatch.setattr(training.WatchedWorker, "row", row)
    collector, told = collector_of(run_dir, clock), []
    for _ in range(5):
        found = collector.collect()
        clock.advance(1.0)
        assert rows(found) == {"honest/n1/0"}
        told += [each.message for each in found if isinstance(each, Event)]
    assert told == ["worker odd/n1/0 of t/a/odd is left out by the collector training, the others are not: OverflowError: int too large to convert to float"]
    (run_dir / "jobs" / "odd.json").unlink()
    assert [each.name for each in collector.collect() if isinstance(each, Event)] == ["collector.recovered"]


def test_what_cannot_be_read_of_one_job_is_told_to_that_job_alone_and_over_while_anothers_still_cannot(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One user's broken worker puts no doubt on what is known of another's."""
    clock = FakeClock(now=1_700_000_000.0)
    register(run_dir, "odd", os.getpid(), 0)
    register(run_dir, "strange", os.getpid(), 0)

    def row(self: WatchedWorker, wall: float, monotonic: float) -> list[float]:
        raise OverflowError("int too large to convert to float")

    monkeypatch.setattr(training.WatchedWorker, "row", row)
    collector = collector_of(run_dir, clock)

    def told() -> list[tuple[str, str, str]]:
        clock.advance(1.0)
        return sorted((each.name, each.job, each.attributes["about"]) for each in collector.collect() if isinstance(each, Event))

    odd, strange = ("t/a/odd", "worker odd/n1/0 of t/a/odd"), ("t/a/strange", "worker strange/n1/0 of t/a/strange")
    assert told() == [("collector.failing", *odd), ("collector.failing", *strange)]
    (run_dir / "jobs" / "odd.json").unlink()
    assert told() == [("collector.recovered", *odd)]
    assert told() == []
    (run_dir / "jobs" / "strange.json").unlink()
    assert told() == [("collector.recovered", *strange)]


@needs_root
@pytest.mark.parametrize("job", ["//", "", "idle/n1", "t/a/b/evil"])
def test_what_is_no_job_is_not_believed_of_another_user(run_dir: Path, theirs: int, job: str) -> None:
    """An event of no job is written for all jobs of the node, and `idle/NODE` is the node's own."""
    run = job.rpartition("/")[2]
    register(run_dir, "evil", theirs, USER, job={"job": job, "run": run})
    (run_dir / "jobs" / "evil.json").rename(run_dir / "jobs" / f"{run}.json")
    directory = JobDirectory(run_dir)
    assert directory.read() == ()
    assert [refusal.reason for refusal in directory.refusals()] == [f"{job!r} is no job: use tenant/name/run"]


@needs_root
def test_a_log_of_another_user_is_not_read_for_the_job_that_names_it(run_dir: Path, theirs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who names the log of another's job gets its lines, and that job none."""
    clock = FakeClock(now=1_700_000_000.0)
    register(run_dir, "honest", os.getpid(), 0)
    log = run_dir / "honest.log"
    log.write_text("")
    logs = JobLogCollector(node="n1", run_dir=run_dir, clock=clock)
    logs.collect()
    register(run_dir, "zz", theirs, USER, log=str(log))
    in_the_worst_order = tuple(sorted(JobDirectory(run_dir).read(), key=lambda job: job.user))
    monkeypatch.setattr(logs._jobs, "read", lambda: in_the_worst_order)
    with log.open("a") as file:
        file.write("RuntimeError: CUDA error: misaligned address\n")
    assert [each.job for each in logs.collect() if isinstance(each, Event)] == ["t/a/honest"]


@needs_root
def test_twin_a_user_s_own_log_is_read(run_dir: Path, theirs: int) -> None:
    clock = FakeClock(now=1_700_000_000.0)
    register(run_dir, "zz", theirs, USER)
    log = run_dir / "zz.log"
    log.write_text("")
    os.chown(log, USER, USER)
    logs = JobLogCollector(node="n1", run_dir=run_dir, clock=clock)
    logs.collect()
    with log.open("a") as file:
        file.write("RuntimeError: CUDA error: misaligned address\n")
    assert [each.job for each in logs.collect() if isinstance(each, Event)] == ["t/a/zz"]


def test_a_real_time_signal_has_a_number() -> None:
    assert (_signal_name(9), _signal_name(35)) == ("SIGKILL", "signal 35")
