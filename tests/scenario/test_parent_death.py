"""A process that is started to end with another one does, however that one ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = "from eagle_eye.parent_death import end_with_parent; end_with_parent(); import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"
STARTER = """
import pathlib, subprocess, sys, time
from eagle_eye.parent_death import of_ours
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], env=of_ours(), start_new_session=True)
time.sleep(60)
"""


def written(path: Path) -> int:
    """The pid that the program has written."""
    end = time.monotonic() + 60.0
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end, "it has not started"
        time.sleep(0.01)
    return int(path.read_text())


def state_of(pid: int) -> str:
    """As /proc has it; "Z" also once nothing is left of it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def becomes(pid: int, *states: str) -> str:
    """The state that it is in, once it is in one of these, or has not come to one in 30 s."""
    end = time.monotonic() + 30.0
    while (state := state_of(pid)) not in states and time.monotonic() < end:
        time.sleep(0.01)
    return state


def test_it_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER, PROGRAM, str(tmp_path / "pid")])
    pid = written(tmp_path / "pid")
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    assert becomes(pid, "Z") == "Z"


def test_it_does_not_begin_when_its_starter_is_gone_already(tmp_path: Path) -> None:
    environment = {**os.environ, "EAGLE_EYE_PARENT": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "pid")], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "has ended" in done.stderr) == (1, True)


def test_twin_a_process_that_somebody_else_starts_lives_on(tmp_path: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", STARTER.replace("env=of_ours(), ", ""), PROGRAM, str(tmp_path / "pid")])
    pid = written(tmp_path / "pid")
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    os.kill(pid, signal.SIGSTOP)  # one that is about to end cannot be stopped
    assert becomes(pid, "T", "Z") == "T"
    os.kill(pid, signal.SIGKILL)
