"""The process that times mounts, on folders of this machine: what it measures, refuses and leaves behind."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from collectors.node.mount_probe import PREFIX, measured
from collectors.node.probe_process import AGAIN_S, ProbeAnswer, ProbeProcess, ProbeQuestion
from eagle_eye.clock import FakeClock

PATIENCE_S = 20.0
"""For a process to start on a busy machine."""


def question(folder: Path, **more: Any) -> dict[str, Any]:
    return {"name": "m", "mount": str(folder), "path": str(folder), "node": "n1", "timed": True, "write": "", "owner": -1, **more}


def test_it_times_a_stat_a_read_and_a_write_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").write_bytes(b"x" * 100)
    found = measured(question(tmp_path, write=str(tmp_path)))
    assert found["errors"] == {}
    assert all(0.0 < found[name] < PATIENCE_S for name in ("stat_s", "read_s", "write_s"))
    assert found["free_bytes"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.bin"]


def test_without_being_asked_for_times_it_tells_the_free_space_alone(tmp_path: Path) -> None:
    assert set(measured(question(tmp_path, timed=False, write=str(tmp_path)))) <= {"free_bytes", "free_inodes", "errors"}


def test_a_folder_without_a_file_has_no_time_of_a_read(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "empty").touch()
    found = measured(question(tmp_path))
    assert "read_s" not in found
    assert found["errors"] == {}


def test_where_the_job_has_an_empty_file_open_one_beside_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "tokens.bin").write_bytes(b"x")
    assert measured(question(tmp_path, path=str(tmp_path / "empty")))["read_s"] > 0


def test_a_file_that_the_job_has_removed_is_an_answer(tmp_path: Path) -> None:
    found = measured(question(tmp_path, path=str(tmp_path / "gone")))
    assert found["stat_s"] > 0
    assert found["errors"] == {}


def test_the_file_of_a_probe_that_was_ended_is_replaced(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}n1").write_bytes(b"old")
    assert measured(question(tmp_path, write=str(tmp_path)))["write_s"] > 0
    assert list(tmp_path.iterdir()) == []


def test_it_never_writes_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / f"{PREFIX}n1").symlink_to(target)
    measured(question(tmp_path, write=str(folder)))
    assert target.read_bytes() == b"mine"
    (folder / f"{PREFIX}n1").hardlink_to(target)
    measured(question(tmp_path, write=str(folder)))
    assert target.read_bytes() == b"mine"


def test_it_writes_into_no_folder_of_another_user(tmp_path: Path) -> None:
    found = measured(question(tmp_path, write=str(tmp_path), owner=os.geteuid() + 1))
    assert "write_s" not in found
    assert "is not of the user" in found["errors"]["write_s"]
    assert measured(question(tmp_path, write=str(tmp_path), owner=os.geteuid()))["write_s"] > 0


def test_what_is_not_there_is_an_error_each_and_no_end(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    found = measured(question(tmp_path, mount=gone, path=gone, write=gone))
    assert set(found["errors"]) == {"free", "write_s"}


# --- the process


@pytest.fixture
def probe() -> Iterator[ProbeProcess]:
    process = ProbeProcess()
    yield process
    del process


def asked(folder: Path, name: str = "m", **more: Any) -> ProbeQuestion:
    return ProbeQuestion(name=name, mount=str(folder), path=str(folder), node="n1", **more)


def test_a_process_of_its_own_answers_each_mount(probe: ProbeProcess, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert probe.ask(asked(tmp_path, name, timed=True, write=str(tmp_path)))
    answers = {answer.name: answer for answer in probe.answers(PATIENCE_S, 2)}
    assert set(answers) == {"a", "b"}
    assert answers["a"].free_bytes > 0
    assert answers["a"].stat_s > 0
    assert probe.ended == 0


def test_who_waits_for_nothing_gets_nothing_at_once(probe: ProbeProcess) -> None:
    assert probe.answers(0.0, 5) == []


def test_a_process_that_ended_is_started_again_after_a_while(tmp_path: Path) -> None:
    clock = FakeClock()
    probe = ProbeProcess(clock)
    probe.ask(asked(tmp_path))
    assert probe.answers(PATIENCE_S, 1)
    assert probe._process is not None
    probe._process.kill()
    probe._process.wait()
    assert probe.answers(PATIENCE_S, 1) == []
    assert not probe.ask(asked(tmp_path)), "not at once"
    clock.advance(AGAIN_S)
    assert probe.ask(asked(tmp_path))
    assert [answer.name for answer in probe.answers(PATIENCE_S, 1)] == ["m"]
    assert probe.ended == 1


def test_an_answer_without_a_number_is_not_known() -> None:
    answer = ProbeAnswer(name="m")
    assert all(math.isnan(value) for value in (answer.stat_s, answer.read_s, answer.write_s, answer.free_bytes, answer.free_inodes))
