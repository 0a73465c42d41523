"""The process collector: ends of orphans and of named processes, each once; nothing that a launcher tells itself."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.process import ProcessCollector
from eagle_eye.clock import FakeClock
from eagle_eye.training.ring_buffer import start_time_of
from eagle_eye.types import Event

DEAD_PID = 2**22 + 1


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def write_listing(folder: Path, pid: int, launcher: int, state: str = "running") -> None:
    worker = {"worker": "r1/n1/0", "slot": 0, "rank": 3, "pid": pid, "start_time": start_time_of(pid), "epoch": 2}
    body = {"job": "default/gpt/r1", "run": "r1", "launcher_pid": launcher, "workers": [worker], "state": state}
    (folder / "jobs").mkdir(exist_ok=True)
    (folder / "jobs" / "r1.json").write_text(json.dumps(body))


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill it and wait until it is a zombie: its parent, this test, has not reaped it."""
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def collect(collector: ProcessCollector, looks: int = 3) -> list[Event]:
    return [event for _ in range(looks) for event in collector.collect()]


def test_the_end_of_an_orphan_is_told_once_with_its_signal(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    write_listing(tmp_path, child.pid, launcher=DEAD_PID)
    collector = ProcessCollector(run_dir=tmp_path, node="n1", clock=FakeClock())
    assert collect(collector) == []
    end(child)
    (event,) = collect(collector)
    assert (event.name, event.job, event.entity.name) == ("exit", "default/gpt/r1", "r1/n1/0")
    assert (event.attributes["signal"], event.attributes["launcher"]) == ("SIGKILL", "ended")
    assert event.attributes["code"] == str(-signal.SIGKILL)
    assert (event.attributes["rank"], event.attributes["epoch"], event.attributes["pid"]) == ("3", "2", str(child.pid))


def test_a_worker_whose_launcher_lives_is_left_to_it(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    write_listing(tmp_path, child.pid, launcher=os.getpid())
    collector = ProcessCollector(run_dir=tmp_path, clock=FakeClock())
    assert collect(collector) == []
    end(child)
    assert collect(collector) == []


def test_a_worker_that_dies_with_its_launcher_is_told(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    write_listing(tmp_path, child.pid, launcher=os.getpid())
    collector = ProcessCollector(run_dir=tmp_path, clock=FakeClock())
    assert collect(collector) == []
    end(child)
    write_listing(tmp_path, child.pid, launcher=DEAD_PID)
    assert [event.name for event in collect(collector)] == ["exit"]


def test_a_worker_that_was_dead_from_the_beginning_is_not_told(tmp_path: Path) -> None:
    write_listing(tmp_path, DEAD_PID, launcher=DEAD_PID)
    assert collect(ProcessCollector(run_dir=tmp_path, clock=FakeClock())) == []


@pytest.mark.parametrize("state", ["stopped", "struck off"])
def test_a_job_that_was_stopped_is_not_told(tmp_path: Path, child: subprocess.Popen[bytes], state: str) -> None:
    write_listing(tmp_path, child.pid, launcher=DEAD_PID)
    collector = ProcessCollector(run_dir=tmp_path, clock=FakeClock())
    collect(collector)
    if state == "stopped":
        write_listing(tmp_path, child.pid, launcher=DEAD_PID, state=state)
    else:
        (tmp_path / "jobs" / "r1.json").unlink()
    end(child)
    assert collect(collector) == []


def test_a_process_that_the_user_names(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    collector = ProcessCollector(run_dir=tmp_path, node="n1", pids=(child.pid, DEAD_PID), clock=FakeClock())
    assert collect(collector) == []
    child.communicate(b"\n")
    (event,) = collect(collector)
    assert (event.job, event.entity.name) == ("", f"n1/pid-{child.pid}")
    assert event.attributes["code"] == "", "who is no parent does not know how it ended"


def test_no_descriptor_is_left_open(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    write_listing(tmp_path, child.pid, launcher=DEAD_PID)
    before = len(list(Path("/proc/self/fd").iterdir()))
    collector = ProcessCollector(run_dir=tmp_path, clock=FakeClock())
    collect(collector)
    end(child)
    collect(collector)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_stopped_launcher_is_told_once_and_once_more_when_it_goes_on(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    write_listing(tmp_path, DEAD_PID, launcher=child.pid)
    collector = ProcessCollector(run_dir=tmp_path, node="n1", clock=FakeClock())
    assert collect(collector) == [], "twin: one that runs"
    for number, name in ((signal.SIGSTOP, "launcher.stopped"), (signal.SIGCONT, "launcher.continued")):
        child.send_signal(number)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WCONTINUED | os.WNOWAIT)
        (event,) = collect(collector, looks=5)
        assert (event.name, event.job, event.entity.name, event.attributes["pid"]) == (name, "default/gpt/r1", "n1", str(child.pid))


def test_a_stopped_launcher_that_ends_is_not_stopped_any_more(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    write_listing(tmp_path, DEAD_PID, launcher=child.pid)
    collector = ProcessCollector(run_dir=tmp_path, node="n1", clock=FakeClock())
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert [event.name for event in collect(collector)] == ["launcher.stopped"]
    end(child)
    (event,) = collect(collector)
    assert (event.name, "has ended" in event.message) == ("launcher.continued", True)


def test_twin_one_that_is_stopped_in_a_single_look_is_not_told(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    write_listing(tmp_path, DEAD_PID, launcher=child.pid)
    collector = ProcessCollector(run_dir=tmp_path, node="n1", clock=FakeClock())
    for _ in range(3):
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert collector.collect() == []
        child.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, child.pid, os.WCONTINUED)
        assert collector.collect() == []
