"""A program that is asked and never waited for: what it has started ends with it, and it sees the environment that it is given."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from collectors.node.polled_program import PolledProgram, ProgramAnswer


def script(folder: Path, text: str) -> str:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def eventually(look: Callable[[], object]) -> object:
    pause = threading.Event()
    for _ in range(10_000):
        if found := look():
            return found
        pause.wait(0.001)
    raise AssertionError("it did not happen")


def is_over(pid: int) -> bool:
    """Gone, or dead and not yet reaped by whoever has inherited it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_fault_what_a_program_that_never_answers_has_started_ends_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    asked = PolledProgram((script(tmp_path, f"sleep 1000 &\necho $! $$ > {pids}\nwait"),), "", every_s=60.0, answer_s=5.0, largest=100)
    asked.look(0.0)
    eventually(lambda: pids.exists() and pids.read_text().endswith("\n"))
    assert asked.look(4.9) is None
    assert asked.look(5.0) == ProgramAnswer(b"", "no answer within 5 s")
    eventually(lambda: all(is_over(int(pid)) for pid in pids.read_text().split()))


def test_one_that_is_no_longer_wanted_is_ended_and_one_that_was_never_asked_has_nothing_to_end(tmp_path: Path) -> None:
    asked = PolledProgram((script(tmp_path, "sleep 1000"),), "", every_s=60.0, answer_s=5.0, largest=100)
    asked.close()
    asked.look(0.0)
    asked.close()
    assert asked.look(1.0) is None


def test_it_has_the_environment_that_it_is_given(tmp_path: Path) -> None:
    asked = PolledProgram((script(tmp_path, "echo $TZ"),), "", every_s=60.0, answer_s=5.0, largest=100, environment={**os.environ, "TZ": "UTC0"})
    asked.look(0.0)
    assert eventually(lambda: asked.look(0.0)) == ProgramAnswer(b"UTC0\n", "")
