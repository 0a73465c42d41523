"""The file by which the agent knows a job: where it cannot be written, the job goes on without it."""

import asyncio
import errno
import json
import logging
import os
from pathlib import Path

import pytest

from eagle_eye.app.launcher_registry import FOLDER, registered, run_dirs
from eagle_eye.training import atomic_file
from fakes.launcher_member import made
from remediation.launcher import job_file as job_file_module
from remediation.launcher.job_file import JobFile


def job_file(folder: Path, checkpoints: Path | None = None) -> JobFile:
    return JobFile(folder, "t/n/r", "n0", os.getpid(), checkpoints)


def test_a_run_directory_that_takes_nothing_does_not_keep_workers_from_being_started(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Somebody else had filled the file system of the run directory: an epoch whose workers ran was never taken for started."""
    (tmp_path / "jobs").write_text("a file where the directory should be")
    file, workers = job_file(tmp_path), made(tmp_path).all.all
    caplog.set_level(logging.WARNING)
    for epoch in (1, 2):
        file.write(epoch, workers)
    file.remove()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "does not see the job" in told[0]
    (tmp_path / "jobs").unlink()
    file.write(3, ())
    assert json.loads(file.path.read_bytes())["epoch"] == 3


def test_what_could_not_be_written_or_was_removed_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent saw the job no more before its next epoch, which may be never."""
    monkeypatch.setattr(job_file_module, "RETRY_S", 0.001)
    file = job_file(tmp_path)

    async def until_there() -> int:
        keeping = asyncio.create_task(file.keep())
        async with asyncio.timeout(60):
            while not file.path.exists():
                await asyncio.sleep(0.001)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        return int(json.loads(file.path.read_bytes())["epoch"])

    (tmp_path / "jobs").write_text("a file where the directory should be")
    file.write(7, ())
    (tmp_path / "jobs").unlink()
    assert asyncio.run(until_there()) == 7
    file.path.unlink()
    assert asyncio.run(until_there()) == 7
    file.remove()

    async def twin() -> None:
        keeping = asyncio.create_task(file.keep())
        await asyncio.sleep(0.02)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    asyncio.run(twin())
    assert not file.path.exists(), "twin: the job is over"


def test_a_directory_that_is_read_only_for_a_while_has_the_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher took another name for good, and the agent saw two jobs of one run: the one of before with its dead workers."""

    def refused(*_arguments: object, **_options: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    file = job_file(tmp_path)
    file.write(1, ())
    with monkeypatch.context() as patch:
        patch.setattr(atomic_file, "replace", refused)
        file.write(2, ())
    file.write(3, ())
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["r.json"]
    assert json.loads(file.path.read_bytes())["epoch"] == 3


def test_a_path_that_is_no_utf_8_is_written_with_question_marks(tmp_path: Path) -> None:
    file = job_file(tmp_path, Path("/data/caf\udce9"))
    file.write(1, ())
    assert json.loads(file.path.read_bytes())["checkpoints"] == "/data/caf?"


def test_a_state_directory_that_takes_nothing_does_not_keep_a_launcher_from_starting(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file where the directory should be")
    with registered(tmp_path, "t/n/r", "n0", tmp_path):
        assert run_dirs(tmp_path) == []
    (tmp_path / FOLDER).unlink()
    with registered(tmp_path, "t/n/r", "n0", tmp_path):
        assert run_dirs(tmp_path) == [tmp_path]
