"""Errors in the logs of workers become events of these workers."""

import errno
import math
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from collectors import job_log
from collectors.agent.failure_boundary import STEADY_S
from collectors.agent.job_directory import LocalJob, LocalWorker
from collectors.job_log import JobLogCollector
from collectors.log import file_tailer
from collectors.worker.procfs import TICKS_PER_S
from eagle_eye.clock import FakeClock
from eagle_eye.regular_file import open_regular
from eagle_eye.types import Event, Kind, Reading

ERROR = "RuntimeError: CUDA error: misaligned address"
UPTIME_S = 5000.0


class Node:
    """A node with a job of one worker, whose output is a file."""

    def __init__(self, folder: Path, *, age_s: float = 1.0) -> None:
        self.folder, self.log = folder, folder / "logs" / "0.log"
        self.log.parent.mkdir()
        (folder / "jobs").mkdir()
        self.clock = FakeClock(now=1_700_000_000.0)
        self.clock.advance(UPTIME_S - self.clock.monotonic())
        self.worker = LocalWorker(
            worker="r/n1/0", slot=0, rank=3, pid=os.getpid(), epoch=2, log=str(self.log), start_time=int((UPTIME_S - age_s) * TICKS_PER_S)
        )
        self.register(self.worker)
        self.collector = self.start()

    def register(self, *workers: LocalWorker) -> None:
        body = msgspec.json.encode(LocalJob(job="t/gpt/r", run="r", node="n1", workers=workers))
        (self.folder / "jobs" / "r.json").write_bytes(body)

    def start(self, **options: object) -> JobLogCollector:
        """The agent's collector, as after its start."""
        return JobLogCollector(node="n1", run_dir=self.folder, state_dir=self.folder / "state", clock=self.clock, **options)  # type: ignore[arg-type]

    def told(self, text: str = "") -> list[Event]:
        with self.log.open("a") as file:
            file.write(text)
        return [found for found in self.collector.collect() if isinstance(found, Event)]

    def values(self, text: str = "", *, log: Path | None = None) -> dict[str, float]:
        """What a second's reading says of the values in a text: name → value of the job's only worker with one, without those that are NaN."""
        with (log or self.log).open("a") as file:
            file.write(text)
        self.clock.advance(1.0)
        readings = [found for found in self.collector.collect() if isinstance(found, Reading)]
        return {
            name.removeprefix("printed_"): value
            for reading in readings
            for row in reading.matrix.tolist()
            for name, value in zip(reading.names, row, strict=True)
            if not math.isnan(value)
        }


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_an_error_is_an_event_of_its_worker(node: Node) -> None:
    (event,) = node.told(f"step 1\n{ERROR}\n")
    assert (event.name, event.entity.kind, event.entity.name, event.job, event.message) == ("log.error", Kind.WORKER, "r/n1/0", "t/gpt/r", ERROR)
    told = event.attributes
    assert (told["component"], told["code"], told["rank"], told["epoch"], told["log"]) == ("cuda", "error", "3", "2", str(node.log))


def test_twin_what_a_healthy_worker_prints_is_no_event(node: Node) -> None:
    assert node.told("iteration 1 loss 2.3\nno errors\n") == []


def test_a_traceback_comes_whole_and_without_secrets(node: Node) -> None:
    (event,) = node.told('Traceback (most recent call last):\n  File "t.py", line 1\n    login(token="hunter2")\nValueError: password=hunter2\non\n')
    assert (event.name, event.attributes["code"]) == ("log.notice", "traceback")
    assert "line 1" in event.attributes["traceback"]
    assert "hunter2" not in event.message + str(event.attributes)


def test_a_key_is_hidden_before_a_long_traceback_is_cut(node: Node) -> None:
    key = "    -----BEGIN RSA PRIVATE KEY-----\n" + "    MIIEsecretline\n" * 150
    frames = '  File "t.py", line 3, in f\n' * 4
    (event,) = node.told(f'Traceback (most recent call last):\n  File "t.py", line 1\n{key}    -----END RSA PRIVATE KEY-----\n{frames}ValueError: {"z" * 7000}\non\n')
    assert "secretline" not in event.message + str(event.attributes)
    assert len(event.message) == job_log.LONGEST_MESSAGE
    assert len(event.attributes["traceback"]) <= job_log.LONGEST_TRACEBACK


def test_lines_that_are_not_read_are_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.told(f"{ERROR}\n" * 500)
    assert "further lines that look like ones before them are not read" in caplog.text
    caplog.clear()
    node.told(f"{ERROR}\n")
    assert caplog.text == ""


def test_a_log_that_is_written_anew_is_read_from_its_beginning_and_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.told("step 1\n")
    node.log.write_text("")
    (event,) = node.told(f"{ERROR}\nstep 2\n")
    assert event.message == ERROR
    assert "was truncated or replaced" in caplog.text


def test_an_old_log_that_is_new_to_the_agent_is_read_from_now_on(tmp_path: Path) -> None:
    node = Node(tmp_path, age_s=600.0)
    node.log.write_text(f"{ERROR}\n")
    assert node.told() == []
    assert len(node.told(f"{ERROR}\n")) == 1


def test_the_next_agent_goes_on_where_it_stopped(node: Node) -> None:
    assert len(node.told(f"{ERROR}\n")) == 1
    assert node.told() == []
    node.collector = node.start()
    assert [event.message for event in node.told("OSError: [Errno 28] No space left on device\n")] == ["OSError: [Errno 28] No space left on device"]


def test_positions_in_lines_that_say_nothing_are_saved_seldom_and_behind_a_message_at_once(node: Node) -> None:
    for _ in range(2):
        node.told("step 1\n")
    (saved,) = (node.folder / "state" / "agent").iterdir()
    first = saved.read_bytes()
    for _ in range(2):
        node.told("step 2\n")
    assert saved.read_bytes() == first
    node.clock.advance(job_log.SAVE_S)
    node.told()
    assert saved.read_bytes() != first
    node.told(f"{ERROR}\n")
    node.told()
    node.collector = node.start()
    assert node.told() == []


def test_the_same_error_again_is_one_event_a_minute(node: Node) -> None:
    assert len(node.told("".join(f"RuntimeError: CUDA error: bad address {number}\n" for number in range(50)))) == 1
    node.clock.advance(61.0)
    (event,) = node.told("RuntimeError: CUDA error: bad address 7\n")
    assert event.attributes["repeated"] == "49"


def test_of_a_flood_of_different_errors_a_bounded_number_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "MOST_EVENTS", 3)
    assert len(node.told("".join(f"CUDA error: {'x' * number}\n" for number in range(50)))) == 3


def test_the_last_lines_of_a_worker_that_has_ended_are_told_and_then_its_log_is_left(node: Node) -> None:
    node.told("step 1\n")
    node.register()
    (event,) = node.told(f"{ERROR}\n")
    assert event.entity.name == "r/n1/0"
    node.clock.advance(job_log.LEFT_S)
    node.told()
    node.clock.advance(1.0)
    assert node.told("OSError: [Errno 28] No space left on device\n") == []


@pytest.mark.parametrize("read_before", [True, False], ids=["an agent was killed before it read the error", "the first agent of the node"])
def test_what_a_new_agent_reads_of_the_process_before_is_of_its_epoch(node: Node, read_before: bool) -> None:
    """The worker has raised and was started again meanwhile: its error is over."""
    if read_before:
        node.told("step 1\n")
        node.told()
    with node.log.open("a") as file:
        file.write(f"{ERROR}\n")
    node.register(msgspec.structs.replace(node.worker, epoch=3, log_from=node.log.stat().st_size))
    node.collector = node.start()
    (before,) = node.told("step 1\n")
    assert before.attributes["epoch"] == "2"
    (after,) = node.told("RuntimeError: CUDA error: out of memory\n")
    assert after.attributes["epoch"] == "3"


def test_twin_what_a_new_agent_reads_of_the_process_that_runs_is_of_its_epoch(node: Node) -> None:
    node.log.write_text("of the life before\n")
    node.register(msgspec.structs.replace(node.worker, log_from=node.log.stat().st_size))
    node.told()
    node.told()
    with node.log.open("a") as file:
        file.write(f"{ERROR}\n")
    node.collector = node.start()
    (event,) = node.told()
    assert event.attributes["epoch"] == "2"


def test_what_is_read_in_the_look_after_a_restart_is_of_the_epoch_before(node: Node) -> None:
    """It may have been printed before the restart, which takes less time than lies between two looks."""
    node.told("step 1\n")
    node.register(msgspec.structs.replace(node.worker, epoch=3))
    (before,) = node.told(f"{ERROR}\n")
    (after,) = node.told("OSError: [Errno 28] No space left on device\n")
    assert (before.attributes["epoch"], after.attributes["epoch"]) == ("2", "3")


def test_another_users_file_is_not_read_through_a_link(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job file of user 1001 names a log that is not theirs."""
    monkeypatch.setattr(job_log, "_owner_of", lambda _job: 1001)
    (event,) = node.told(f"{ERROR}\n")
    assert (event.name, "it is not of user 1001 (EPERM)" in event.message) == ("collector.failing", True)


def test_files_of_ones_own_are_the_nodes(node: Node) -> None:
    slurm = node.folder / "slurm"
    slurm.mkdir()
    (slurm / "job-7.out").write_text("old\n")
    node.collector = node.start(further_files=(str(slurm / "job-*.out"), "relative-*.out"))
    node.told()
    with (slurm / "job-7.out").open("a") as file:
        file.write("slurmstepd: error: *** JOB 7 ON n5 CANCELLED AT 2026-05-27T21:52:36 DUE TO PREEMPTION ***\n")
    (event,) = node.told()
    assert (event.entity.kind, event.entity.name, event.job, event.attributes["code"]) == (Kind.NODE, "n1", "", "preempted")


def test_a_log_that_is_a_fifo_stops_nobody(node: Node) -> None:
    other = node.folder / "logs" / "1.log"
    node.register(node.worker, msgspec.structs.replace(node.worker, worker="r/n1/1", slot=1, log=str(other)))
    node.log.unlink(missing_ok=True)
    os.mkfifo(node.log)
    other.write_text(f"{ERROR}\n")
    found = node.collector.collect()
    assert [each.name for each in found if isinstance(each, Event)] == ["log.error", "collector.failing"], "the other log is read"
    assert node.collector.collect() == [], "told once"


def failing(node: Node) -> list[tuple[str, str]]:
    """(name, reason) of the events about unread logs in one look."""
    return [(each.name, each.attributes["reason"]) for each in node.collector.collect() if isinstance(each, Event) and each.name.startswith("collector.")]


@pytest.mark.parametrize(("make", "reason"), [
    (os.mkfifo, "it is no regular file (EINVAL); name a regular file"), (os.mkdir, "it is no regular file (EINVAL); name a regular file"),
    (lambda path: path.symlink_to(path), "Too many levels of symbolic links (ELOOP)"),
])  # fmt: skip
def test_fault_a_log_that_cannot_be_read_is_told_with_file_and_remedy(node: Node, make: Callable[[Path], None], reason: str) -> None:
    make(node.log)
    ((name, told),) = failing(node)
    assert name == "collector.failing"
    assert told.startswith(f"log {node.log} is left out by the collector job_log, the others are not: {reason}")
    assert node.collector.problems == (told,)


@pytest.mark.parametrize(("code", "remedy"), [(errno.EIO, "look at the storage"), (errno.ESTALE, "look at the storage"), (errno.EACCES, "let the user that the agent runs as read it")])
def test_fault_a_log_whose_storage_fails_is_opened_anew_where_it_stopped_and_told_until_it_is_read_for_a_while(
    node: Node, monkeypatch: pytest.MonkeyPatch, code: int, remedy: str
) -> None:
    node.told("step 1\n")
    with monkeypatch.context() as broken:
        broken.setattr("collectors.log.file_tailer.os.pread", lambda *_: _raise(code))
        with node.log.open("a") as file:
            file.write(f"{ERROR}\n")
        ((name, told),) = failing(node)
        assert (name, remedy in told, errno.errorcode[code] in told) == ("collector.failing", True, True)
        assert failing(node) == []
    opened: list[Path] = []

    def opening(path: Path) -> int:
        opened.append(path)
        return open_regular(path)

    monkeypatch.setattr(file_tailer, "open_regular", opening)
    assert [each.message for each in node.told()] == [ERROR], "nothing of it is lost, and nothing read twice"
    assert opened == [node.log], "a handle that a network file system has lost is never good again"
    node.clock.advance(STEADY_S - 1.0)
    assert failing(node) == []
    node.clock.advance(1.0)
    assert failing(node) == [("collector.recovered", "every log is read again")]


def _raise(code: int) -> bytes:
    raise OSError(code, os.strerror(code))


def test_a_log_that_could_not_be_opened_after_a_restart_is_read_from_where_the_agent_stopped(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.told("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    node.clock.advance(job_log.SAVE_S)
    node.told()
    node.collector = node.start()
    with monkeypatch.context() as broken:
        broken.setattr(file_tailer, "open_regular", lambda *_: _raise(errno.EACCES))
        node.told(f"{ERROR}\n")
    assert [each.message for each in node.told()] == [ERROR]


def test_many_logs_that_cannot_be_read_are_one_event(node: Node) -> None:
    for number in range(100):
        os.mkfifo(node.folder / f"{number}.out")
    node.collector = node.start(further_files=(str(node.folder / "*.out"),))
    ((_, told),) = failing(node)
    assert told.count("is left out by") == 3
    assert told.endswith("; and 97 more, which the agent's log names")


def test_twin_folders_that_a_pattern_finds_and_output_that_nobody_wants_are_not_told(node: Node) -> None:
    (node.folder / "slurm" / "archive").mkdir(parents=True)
    (node.folder / "slurm" / "job-7.out").write_text("")
    node.register(msgspec.structs.replace(node.worker, log=os.devnull))
    node.collector = node.start(further_files=(str(node.folder / "slurm" / "*"),))
    assert (failing(node), node.collector.problems) == ([], ())


def test_twin_a_log_that_is_not_there_yet_is_not_told(node: Node) -> None:
    node.log.unlink(missing_ok=True)
    assert (failing(node), node.collector.problems) == ([], ())


# --- much output


@pytest.mark.parametrize("line", [b"x" * (3 << 19) + b"\n", b"y" * 99 + b"\n"], ids=["lines longer than a read", "short lines"])
def test_fault_an_error_behind_megabytes_of_output_is_told_by_the_next_look(node: Node, line: bytes) -> None:
    node.told()
    node.log.write_bytes(line * ((16 << 20) // len(line)) + f"{ERROR}\n".encode())
    assert [event.message for event in node.told()] == [ERROR]


def test_twin_a_look_ends_where_so_much_of_it_is_done_that_others_wait(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "MOST_PIECES", 2)
    node.told()
    node.log.write_bytes(b"x" * 99 + b"\n" + b"y" * (5 << 20) + f"\n{ERROR}\n".encode())
    looks = 1
    while not node.told():
        looks += 1
    assert looks == 3


def test_twin_a_look_that_takes_long_goes_on_at_the_next(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_log, "LOOK_S", -1.0)
    node.told()
    node.log.write_bytes(b"x" * (3 << 20) + f"\n{ERROR}\n".encode())
    assert node.told() == []
    assert any(node.told() for _ in range(4))


def test_fault_a_log_in_utf_16_is_read_and_told_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    node.told()
    node.log.write_bytes(f"{ERROR}\r\n".encode("utf-16"))
    assert [event.message.strip() for event in node.told()] == [ERROR]
    with node.log.open("ab") as file:
        file.write("step 3 loss 2.5\r\n".encode("utf-16-le"))
    node.told()
    assert [record.message for record in caplog.records if "UTF-16" in record.message] == [f"{node.log} is in UTF-16, of which only ASCII characters are read: write it in UTF-8"]


# --- training values


def test_the_values_that_a_worker_prints_are_a_reading_of_it_once_a_second(node: Node) -> None:
    assert node.values("step 3 loss 2.5 grad_norm 0.75\n") == {"step": 3, "loss": 2.5, "grad_norm": 0.75, "bad_losses": 0, "bad_grad_norms": 0}
    assert node.values("no value in it\n") == {}
    with node.log.open("a") as file:
        file.write("step 4 loss 2.25\n")
    assert node.collector.collect() == []  # within the same second
    assert node.values() == {"step": 4, "loss": 2.25, "bad_losses": 0, "bad_grad_norms": 0}


def test_a_progress_bar_that_ends_no_line_is_read_as_it_is_drawn(node: Node) -> None:
    assert node.values("\rEpoch 0: 1%| | 1/9 [00:10<00:14, 10.0it/s, loss=2.5]\rEpoch 0: 2%| | 2/9 [00:10<00:14")["loss"] == 2.5
    assert node.values(", 10.0it/s, loss=1.5]\rE")["loss"] == 1.5


def test_only_workers_that_print_values_have_rows_and_keep_them(node: Node) -> None:
    other = msgspec.structs.replace(node.worker, worker="r/n1/1", slot=1, rank=4, log=str(node.folder / "logs" / "1.log"))
    silent = msgspec.structs.replace(node.worker, worker="r/n1/2", slot=2, rank=5, log=str(node.folder / "logs" / "2.log"))
    node.register(node.worker, other, silent)
    Path(silent.log).write_text("hello\n")
    node.values("step 1 loss 2.5\n")
    node.values("step 1 loss 3.5\n", log=Path(other.log))
    node.log.write_text(node.log.read_text() + "step 2 loss 2.0\n")
    node.clock.advance(1.0)
    (reading,) = [found for found in node.collector.collect() if isinstance(found, Reading)]
    loss = reading.matrix[:, reading.names.index("printed_loss")]
    assert (reading.kind, reading.entities, loss[0]) == (Kind.WORKER, ("r/n1/0", "r/n1/1"), 2.0)
    assert math.isnan(loss[1])  # nothing new


def test_values_can_be_left_out(node: Node) -> None:
    node.collector = node.start(training_values=False)
    assert node.values("step 3 loss 2.5\n") == {}


def test_a_number_beyond_what_a_reading_holds_is_infinite(node: Node) -> None:
    assert node.values("step 3 loss 1e300\n")["loss"] == float("inf")
