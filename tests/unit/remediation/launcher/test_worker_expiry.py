"""Elastic workers that do not end as they were asked to: whatever is in the way of the evidence, they are ended."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from eagle_eye.clock import SystemClock
from eagle_eye.config import StallConfig
from eagle_eye.types import RankPlacement
from remediation.launcher.worker.worker_expiry import WorkerExpiry
from remediation.launcher.worker.worker_process import Worker


def worker_in(folder: Path) -> Worker:
    """Of this process, whose stacks can be read."""
    return Worker(
        place=RankPlacement(worker="r/n0/0", node="n0", rank=0, local_rank=0), epoch=3, pid=os.getpid(), start_time=1, secret="",
        log=folder, log_from=0, ring=folder, socket=folder / "0.sock", began=0.0,
    )  # fmt: skip


async def expired(logs: Path, worker: Worker, *, excluded: bool) -> Worker:
    ended: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
    expiry = WorkerExpiry(StallConfig(leave_s=0.01, return_s=0.01), SystemClock(), logs, lambda _: None, ended.set_result)
    if excluded:
        expiry.after_exclusion(worker, proved=True)
    else:
        expiry.after_leave(worker)
    try:
        async with asyncio.timeout(60.0):
            return await ended
    finally:
        await expiry.close()


@pytest.mark.parametrize("excluded", [True, False])
def test_a_worker_that_does_not_end_is_ended_also_where_its_stack_cannot_be_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture, *, excluded: bool) -> None:
    """Its slot would stay empty for as long as the job lasts."""
    caplog.set_level(logging.WARNING)
    worker = worker_in(tmp_path)
    assert asyncio.run(expired(tmp_path / "tidied" / "up", worker, excluded=excluded)) is worker
    assert "cannot be kept" in caplog.text


def test_its_stack_is_kept_where_it_can_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    asyncio.run(expired(tmp_path, worker_in(tmp_path), excluded=True))
    assert "test_worker_expiry" in (tmp_path / "0-excluded-3.json").read_text()
    assert "cannot be kept" not in caplog.text
