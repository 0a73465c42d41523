"""Which stored checkpoints stay when a newer one is there."""

import errno
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint import checkpoint_directory, checkpoint_writer
from eagle_eye.training.checkpoint.checkpoint_directory import SavedCheckpoint
from eagle_eye.training.checkpoint.checkpoint_retention import HOUR_S, LEAST_HOURS, NEWEST_KEPT, CheckpointRetention
from eagle_eye.training.checkpoint.manifest import Manifest


def saved(step: int, at_h: float, *, finite: bool = True) -> SavedCheckpoint:
    return SavedCheckpoint(Path(f"step-{step}"), Manifest(step=step, epoch=1, finite=finite, saved=at_h * HOUR_S, shards=(), tensors={}, rest={}))


HOURLY = [saved(step, 1 + step / 100) for step in range(50, 1050, 100)]
"""Steps 50, 150, ... 950, one an hour: after 1.5, 2.5, ... 10.5 hours."""


def steps(retention: CheckpointRetention, whole: list[SavedCheckpoint]) -> list[int]:
    return sorted({entry.step for entry in retention.staying(whole)})


@pytest.mark.parametrize(
    ("retention", "staying"),
    [
        (NEWEST_KEPT, [850, 950]),
        (CheckpointRetention(newest=4), [650, 750, 850, 950]),
        (CheckpointRetention(newest=1, each_steps=300), [50, 350, 650, 950]),
        (CheckpointRetention(newest=1, each_hours=5), [50, 450, 950]),
        (CheckpointRetention(newest=1, each_steps=500, each_hours=1e6), [50, 550, 950]),
        (CheckpointRetention(newest=100), [each.step for each in HOURLY]),
    ],
)
def test_the_newest_stay_and_the_first_of_each_span(retention: CheckpointRetention, staying: list[int]) -> None:
    assert steps(retention, HOURLY) == staying


def test_what_stays_is_the_same_however_often_older_ones_were_deleted_before() -> None:
    retention, there = CheckpointRetention(newest=2, each_steps=300), list[SavedCheckpoint]()
    for entry in HOURLY:
        there = sorted({each.step: each for each in retention.staying([*there, entry])}.values(), key=lambda each: each.step)
    assert [each.step for each in there] == steps(retention, HOURLY) == [50, 350, 650, 850, 950]


def test_the_newest_finite_one_stays_and_none_that_is_not_stands_for_a_span() -> None:
    broken = [saved(step, step, finite=False) for step in (310, 960, 970, 980)]
    there = sorted([*HOURLY, *broken], key=lambda each: each.step)
    assert steps(CheckpointRetention(newest=2, each_steps=300), there) == [50, 350, 650, 950, 970, 980]
    assert steps(CheckpointRetention(newest=2), there) == [950, 970, 980]
    assert steps(CheckpointRetention(newest=1), [*broken]) == [980]


def test_a_checkpoint_that_does_not_say_when_it_was_there_stands_for_no_span_of_hours() -> None:
    old = saved(10, 0.0)
    assert steps(CheckpointRetention(newest=1, each_hours=5), [old, *HOURLY]) == [50, 450, 950]


def test_a_checkpoint_whose_time_is_no_number_stands_for_no_span_of_hours() -> None:
    assert steps(CheckpointRetention(newest=1, each_hours=5), [saved(10, float("inf")), saved(20, float("nan")), *HOURLY]) == [50, 450, 950]


@pytest.mark.parametrize("hours", [5e-324, 1e-321, LEAST_HOURS / 2, -1.0, float("nan"), float("inf")])
def test_a_span_of_hours_that_is_none_is_refused(hours: float) -> None:
    with pytest.raises(ValueError, match=r"each_hours=.*give 0.001 or more"):
        CheckpointRetention(each_hours=hours)
    assert CheckpointRetention(each_hours=LEAST_HOURS).staying(HOURLY), "twin: the least that is one"


ARCHIVED = CheckpointRetention(newest=2, each_steps=100)


def save(home: Path, step: int) -> None:
    path = checkpoint.save({"a": torch.full((10,), float(step))}, step, home)
    assert path is not None


def left(home: Path) -> list[int]:
    return [entry.step for entry in checkpoint.entries(home)]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Steps 0, 100, 200, of which those are kept for their spans, and 250."""
    prune = checkpoint_directory.prune
    monkeypatch.setattr("os.fsync", lambda _: None)
    monkeypatch.setattr(checkpoint_directory, "prune", lambda home, _kept, published: prune(home, ARCHIVED, published))
    for step in (0, 50, 100, 150, 200, 250):
        save(tmp_path, step)
    assert left(tmp_path) == [0, 100, 200, 250]
    yield tmp_path
    checkpoint_writer._not_pruned.clear()


def refuse(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The storage says so of the shard of step 100."""
    real = Path.stat

    def stat(path: Path, **how: Any) -> Any:
        if path.name.startswith("step-000000000100-"):
            raise OSError(number, "the storage says nothing", str(path))
        return real(path, **how)

    monkeypatch.setattr(Path, "stat", stat)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES])
def test_where_storage_does_not_say_whether_one_is_whole_nothing_is_deleted_and_it_is_told_once(archive: Path, monkeypatch: pytest.MonkeyPatch, number: int, caplog: pytest.LogCaptureFixture) -> None:
    with monkeypatch.context() as refused, caplog.at_level(logging.WARNING, "eagle_eye.checkpoint"):
        refuse(refused, number)
        for step in (310, 320, 330):
            save(archive, step)
        [entry] = [each for each in checkpoint.entries(archive) if each.step == 100]
        assert "cannot be read now" in entry.unusable
        with pytest.raises(OSError, match="says nothing"):
            _ = entry.missing
    assert left(archive) == [0, 100, 200, 250, 310, 320, 330], "not even those that are too old"
    assert sum("are not deleted" in record.getMessage() for record in caplog.records) == 1
    assert entry.unusable == ""
    save(archive, 340)
    assert left(archive) == [0, 100, 200, 310, 330, 340], "once it says so again"


def test_twin_one_whose_shard_is_gone_or_cut_off_counts_for_nothing(archive: Path) -> None:
    for step in (0, 100):
        [shard] = archive.glob(f"step-{step:012d}-*")
        shard.unlink() if step else shard.write_bytes(b"cut")
    save(archive, 260)
    assert left(archive) == [200, 250, 260]


def test_whatever_keeps_older_ones_from_being_deleted_costs_no_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prune(*_: Any, **__: Any) -> None:
        raise OverflowError("cannot convert float infinity to integer")

    monkeypatch.setattr(checkpoint_directory, "prune", prune)
    save(tmp_path, 1)
    assert left(tmp_path) == [1]
