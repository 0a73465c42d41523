"""Job files of several users in one directory: each is believed of its own processes and files, and of its own run."""

import errno
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.agent import job_directory
from collectors.agent.garbage_collector import collect_garbage
from collectors.agent.job_directory import JobDirectory, LocalJob
from collectors.training import TrainingCollector
from eagle_eye.clock import FakeClock
from eagle_eye.training.ring_buffer import RingWriter, start_time_of
from eagle_eye.types import Event
from fakes.other_user import USER, as_other_user, needs_root, sleeping_process
from fakes.ring_trainer import DEAD_PID

pytestmark = needs_root
RUN = "r1"


@pytest.fixture
def theirs() -> Iterator[int]:
    """Pid of a process of another user."""
    with sleeping_process() as pid:
        yield pid


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    return tmp_path


def worker(pid: int, slot: int = 0, **more: object) -> dict[str, object]:
    return {"worker": f"{RUN}/n1/{slot}", "slot": slot, "rank": slot, "pid": pid, "start_time": start_time_of(pid), **more}


def register(run_dir: Path, *workers: dict[str, object], launcher: int, user: int = USER, job: str = f"team/gpt/{RUN}", file: str = f"{RUN}.json", start: int | None = None) -> Path:
    """Write a job file as a user."""
    path = run_dir / "jobs" / file
    started = start_time_of(launcher) if start is None else start
    body = {"version": 1, "job": job, "run": job.rpartition("/")[2], "node": "n1", "launcher_pid": launcher, "launcher_start_time": started, "workers": workers, "user": 0}
    path.write_text(json.dumps(body))
    os.chown(path, user, user)
    return path


def only(directory: JobDirectory) -> LocalJob:
    [job] = directory.read()
    return job


def reasons(directory: JobDirectory) -> list[str]:
    return [refusal.reason for refusal in directory.refusals()]


def test_twin_another_user_s_own_processes_are_believed(run_dir: Path, theirs: int) -> None:
    register(run_dir, worker(theirs), launcher=theirs)
    directory = JobDirectory(run_dir)
    assert [each.pid for each in only(directory).workers] == [theirs]
    assert (only(directory).user, reasons(directory)) == (USER, []), "whatever the file says of its owner"


def test_a_user_does_not_register_the_processes_of_another(run_dir: Path, theirs: int) -> None:
    register(run_dir, worker(theirs), worker(os.getpid(), 1), launcher=theirs)
    directory = JobDirectory(run_dir)
    for _ in range(3):
        assert [each.pid for each in only(directory).workers] == [theirs]
    assert reasons(directory) == [f"its worker r1/n1/1, process {os.getpid()}, is another user's"], "said once"


def test_a_process_that_is_not_named_for_good_is_nobody_s(run_dir: Path, theirs: int) -> None:
    """Without its start time the pid could be another user's by the time that it is looked at."""
    register(run_dir, worker(theirs) | {"start_time": 0}, launcher=theirs)
    assert only(JobDirectory(run_dir)).workers == ()


def test_nobody_pretends_that_another_user_s_launcher_is_theirs(run_dir: Path, theirs: int) -> None:
    register(run_dir, launcher=os.getpid())
    directory = JobDirectory(run_dir)
    assert directory.read() == ()
    assert reasons(directory) == [f"its launcher, process {os.getpid()}, is another user's"]


@pytest.mark.parametrize(("job", "file"), [(f"team/gpt/{RUN}", "r2.json"), (f"team/gpt/{RUN}", f"{RUN}.0.json")])
def test_a_file_speaks_only_of_the_run_that_it_is_named_after(run_dir: Path, theirs: int, job: str, file: str) -> None:
    register(run_dir, launcher=theirs, job=job, file=file)
    assert JobDirectory(run_dir).read() == ()


def test_a_worker_of_another_run_or_node_is_not_theirs_to_tell_of(run_dir: Path, theirs: int) -> None:
    register(run_dir, worker(theirs) | {"worker": "r2/n1/0"}, worker(theirs) | {"worker": "r1/n2/0"}, launcher=theirs)
    assert only(JobDirectory(run_dir)).workers == ()


def test_of_two_users_with_one_run_the_one_whose_launcher_listens_is_believed(run_dir: Path, theirs: int) -> None:
    taken = register(run_dir, worker(theirs), launcher=theirs)
    directory = JobDirectory(run_dir)
    assert only(directory).user == USER
    with socket.socket(socket.AF_UNIX) as inbox:
        inbox.bind(str(run_dir / f"{RUN}-launcher.sock"))
        register(run_dir, worker(os.getpid()), launcher=os.getpid(), user=0, file=f"{RUN}.0.json")
        assert only(directory).user == 0
        assert reasons(directory) == [f"the run {RUN} is of the user 0"]
        taken.unlink()
        assert only(directory).user == 0


def test_without_a_socket_the_first_that_was_seen_stays(run_dir: Path, theirs: int) -> None:
    register(run_dir, worker(theirs), launcher=theirs, file=f"{RUN}.{USER}.json")
    directory = JobDirectory(run_dir)
    assert only(directory).user == USER
    register(run_dir, worker(os.getpid()), launcher=os.getpid(), user=0)
    assert only(directory).user == USER


def test_a_link_to_root_s_file_is_not_root_s_word(run_dir: Path, theirs: int) -> None:
    written = register(run_dir, worker(os.getpid()), launcher=os.getpid(), user=0)
    elsewhere = written.rename(run_dir / "elsewhere.json")
    (run_dir / "jobs" / f"{RUN}.json").symlink_to(elsewhere)
    assert JobDirectory(run_dir).read() == ()


def test_one_user_s_files_are_not_more_than_there_is_time_for(run_dir: Path, theirs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_directory, "MOST_FILES", 3)
    for number in range(5):
        register(run_dir, worker(theirs) | {"worker": f"r{number}/n1/0"}, launcher=theirs, job=f"team/gpt/r{number}", file=f"r{number}.json")
    register(run_dir, worker(os.getpid()), launcher=os.getpid(), user=0, job="team/gpt/ours", file="ours.json")
    directory = JobDirectory(run_dir)
    assert len(directory.read()) == 4
    assert "ours" in {job.run for job in directory.read()}
    assert reasons(directory) == ["the user has more than 3 job files, of which the newest count"]


def test_a_directory_that_cannot_be_read_for_a_moment_ends_no_job(run_dir: Path, theirs: int) -> None:
    register(run_dir, worker(theirs), launcher=theirs)
    directory = JobDirectory(run_dir)
    assert only(directory).run == RUN
    there = (run_dir / "jobs").rename(run_dir / "elsewhere")
    (run_dir / "jobs").write_text("a file in its place")
    assert only(directory).run == RUN
    (run_dir / "jobs").unlink()
    there.rename(run_dir / "jobs")
    assert only(directory).run == RUN


@pytest.mark.parametrize("where", ["read_owned", "certain_users_of"])
def test_a_file_that_cannot_be_read_for_want_of_descriptors_is_read_at_the_next_round(run_dir: Path, theirs: int, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The agent did not see the job before its launcher wrote the file again, or called its processes another user's."""

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    directory = JobDirectory(run_dir)
    register(run_dir, worker(theirs), launcher=theirs)
    with monkeypatch.context() as patch:
        patch.setattr(job_directory, where, full)
        assert directory.read() == ()
    assert [each.pid for each in only(directory).workers] == [theirs]
    assert reasons(directory) == []


def test_a_launcher_whose_file_name_is_taken_takes_another() -> None:
    """In a sticky directory nobody can replace another user's file; a launcher must not fail for that."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        run_dir.chmod(0o755)
        (run_dir / "jobs").mkdir()
        (run_dir / "jobs").chmod(0o1777)
        (run_dir / "jobs" / f"{RUN}.json").write_text("{}")
        code = f"file = JobFile(Path({folder!r}), 'team/gpt/{RUN}', 'n1', os.getpid()); file.write(1, ()); file.write(2, ()); print(file.path.name)"
        told = as_other_user("from pathlib import Path\nfrom remediation.launcher.job_file import JobFile", code)
        assert told.stdout == f"{RUN}.{USER}.json\n", told.stderr
        assert (only(JobDirectory(run_dir)).user, only(JobDirectory(run_dir)).epoch) == (USER, 2)


def test_the_garbage_of_one_user_is_no_reason_to_remove_another_s(run_dir: Path, clock: FakeClock) -> None:
    ring, own = run_dir / "ours.ring", run_dir / "theirs.ring"
    for path in (ring, own):
        RingWriter.create(path, pid=os.getpid(), worker=f"{RUN}/n1/0").close()
    os.chown(own, USER, USER)
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(run_dir / f"{RUN}-launcher.sock"))
    dead = {"pid": DEAD_PID, "start_time": 1}
    register(run_dir, worker(1, 0) | dead | {"ring": str(ring)}, worker(1, 1) | dead | {"ring": str(own)}, launcher=DEAD_PID, start=1)
    removed = collect_garbage(run_dir, JobDirectory(run_dir).read(), 0.0, "n1", run_dir / "shared")
    assert removed == [own]


def test_a_ring_of_another_user_is_not_read_and_all_of_it_is_told_to_the_node(run_dir: Path, clock: FakeClock, theirs: int) -> None:
    ring = run_dir / "ours.ring"
    writer = RingWriter.create(ring, pid=os.getpid(), worker=f"{RUN}/n1/0", epoch=0)
    register(run_dir, worker(theirs, ring=str(ring)), worker(os.getpid(), 1), launcher=theirs)
    collector = TrainingCollector(run_dir=run_dir, node="n1", clock=clock)
    found = [each for each in collector.collect() if isinstance(each, Event)]
    assert sorted(event.name for event in found) == ["claim.refused", "collector.failing"], found
    assert any("it is not of the user" in str(event.attributes.get("reason")) + event.message for event in found)
    writer.close()
