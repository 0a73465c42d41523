"""Which copies of a node go to storage: those of all its workers, of one step; and what the job is told."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint import slot_table
from eagle_eye.types import Layout, RankPlacement
from remediation.checkpoint import checkpoint_cache
from remediation.checkpoint.cache_settings import CacheSettings
from remediation.checkpoint.checkpoint_cache import CheckpointCache
from remediation.checkpoint.copy_files import CopyFiles, CopyName
from remediation.checkpoint.copy_states import CopyState, Place, Seen
from remediation.checkpoint.storage_interval import StorageInterval
from remediation.checkpoint.stored_copies import GATHER_S, StoredCopies

from .test_checkpoint_cache import until
from .test_storage_reconciler import Node, node  # noqa: F401 - a fixture

NODE = "n0"


def layout(epoch: int = 1, ranks: int = 2, resume_step: int = -1, reason: str = "start") -> Layout:
    return Layout(
        job="t/j/r", epoch=epoch, time=1.0, coordinator=NODE, launchers={NODE: "127.0.0.1:1"}, resume_step=resume_step, reason=reason,
        rolled_back=((epoch, resume_step),) if resume_step >= 0 else (),
        placements=tuple(RankPlacement(worker=f"r/{NODE}/{rank}", node=NODE, rank=rank, local_rank=rank) for rank in range(ranks)),
    )  # fmt: skip


class Launcher:
    """Looks at two workers whose copies are said to be there."""

    def __init__(self, folder: Path, *, replicated: bool = False) -> None:
        self.now, self.replicated = 0.0, replicated
        self.told: list[tuple[str, dict[str, str]]] = []
        self.held: list[CopyName] = []
        self.interval = StorageInterval(8.0, tuned=False, now=0.0)
        files = CopyFiles(folder, "none-", 2)
        self.stored = StoredCopies(
            folder / "memory", NODE, "r", self.interval, lambda: files, lambda event, _, attributes: self.told.append((event, dict(attributes))),
            lambda *_: None, lambda _, __: None, threading.Event(),
        )  # fmt: skip

    def name(self, seen: Seen) -> CopyName:
        rank = int(seen.place.file[0])
        return CopyName(file=seen.place.file, slot=seen.place.slot, step=seen.step, sequence=seen.sequence, rank=rank, world=2, payload=8, replicated=self.replicated)

    def look(self, *steps: int, at: Layout | None = None, seconds: float = 1.0, common: int | None = None) -> None:
        """The newest copies of the workers are of these steps."""
        self.now += seconds
        seen = {Place(f"{rank}.memory", step % 2): Seen(Place(f"{rank}.memory", step % 2), step, step + 1) for rank, step in enumerate(steps)}
        self.stored.look(seen.values(), lambda place: self.name(seen[place]), self.held.append, at or layout(), self.now, common=common)

    @property
    def wanted(self) -> Any:
        return self.stored._reconciler._wanted


def test_the_copies_of_one_step_are_gathered_from_all_workers_of_the_node(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    for step in range(8):
        launcher.look(step, step)
    launcher.look(8, 7)
    assert launcher.wanted is None, "one worker is still copying"
    assert not launcher.stored.is_free(Place("0.memory", 1)), "held is one slot of a file"
    launcher.look(8, 8)
    assert [(copy.rank, copy.step) for copy in launcher.wanted.copies] == [(0, 8), (1, 8)]
    assert launcher.wanted.workers == ("r/n0/0", "r/n0/1")
    launcher.stored._was_taken(launcher.wanted, None, "")
    assert launcher.stored.is_free(Place("0.memory", 1))


def test_where_the_nodes_have_a_step_in_common_no_other_is_stored(tmp_path: Path) -> None:
    """Other nodes may have left out what this one has saved."""
    launcher = Launcher(tmp_path)
    for step in range(8):
        launcher.look(step, step, common=step)
    launcher.look(8, 8, common=7)
    launcher.look(9, 9, common=7)
    assert launcher.wanted is None
    launcher.look(9, 9, common=9)
    assert [copy.step for copy in launcher.wanted.copies] == [9, 9]


def test_a_step_that_one_worker_has_left_out_is_not_waited_for(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    for step in range(8):
        launcher.look(step, step)
    launcher.look(8, 7)
    launcher.look(9, 9, seconds=GATHER_S + 1)
    assert launcher.wanted is None
    assert launcher.stored.is_free(Place("0.memory", 1))


def test_of_what_all_ranks_have_alike_rank_0s_alone_is_held(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path, replicated=True)
    for step in range(9):
        launcher.look(step, step)
    assert [copy.rank for copy in launcher.wanted.copies] == [0]
    assert {copy.rank for copy in launcher.held} == {0}


def test_what_lies_there_of_an_earlier_epoch_is_not_stored_and_a_roll_back_is_told_on(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    for step in range(7):
        launcher.look(step, step)
    launcher.look(8, 8, at=layout(2, resume_step=4, reason="death"))
    launcher.look(8, 8, at=layout(2, resume_step=4, reason="death"))
    assert launcher.wanted is None
    assert launcher.stored._reconciler._rolled_back == (2, 4)
    assert launcher.interval._failures == 1


@pytest.mark.parametrize("resume_step", [4, -1])
def test_at_the_end_a_training_that_went_back_stores_its_newest_step_though_it_is_lower_than_what_was_stored_before(tmp_path: Path, resume_step: int) -> None:
    launcher = Launcher(tmp_path)
    for epoch in (1, 2):
        launcher.look(0, 0, at=layout(epoch, resume_step=resume_step if epoch == 2 else -1))
        launcher.stored._safe_step = 8 if epoch == 1 else launcher.stored._safe_step
    seen = {Place(f"{rank}.memory", 1): Seen(Place(f"{rank}.memory", 1), 6, 7) for rank in range(2)}
    launcher.stored.store_newest(seen.values(), lambda place: launcher.name(seen[place]), layout(2), 0.0)
    assert (launcher.wanted.step if launcher.wanted else None) == (6 if resume_step == 4 else None)


@pytest.mark.parametrize(("newest", "stored"), [((8, 8), 8), ((9, 8), 8), ((9, 7), None), ((4, 4), None)])
def test_at_the_end_the_newest_step_that_all_workers_have_goes_to_storage_unless_it_is_there(tmp_path: Path, newest: tuple[int, int], stored: int | None) -> None:
    """Each worker has the step before its newest, too; that of step 5 is stored."""
    launcher = Launcher(tmp_path)
    launcher.stored._safe_step = 5
    seen = {Place(f"{rank}.memory", step % 2): Seen(Place(f"{rank}.memory", step % 2), step, step + 1) for rank, last in enumerate(newest) for step in (last - 1, last)}
    launcher.stored.store_newest(seen.values(), lambda place: launcher.name(seen[place]), layout(), 0.0)
    assert (launcher.wanted.step if launcher.wanted else None) == stored
    if stored:
        assert [copy.step for copy in launcher.wanted.copies] == [stored, stored]


def test_a_single_node_brings_its_copies_to_storage_and_says_so_with_the_interval(
    node: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setattr(checkpoint_cache, "IDLE_S", 0.01)
    ours: Node = node()
    settings = CacheSettings(node=NODE, run="r", host="127.0.0.1", folder=ours.folder, prefix="n0-", workers=1, storage=ours.home, storage_interval_s=0.001)
    told: list[tuple[str, str, dict[str, str]]] = []

    async def nobody(_: str) -> dict[str, Any]:
        return {}

    async def until_stored() -> None:
        cache = CheckpointCache(settings, lambda: layout(ranks=1), nobody, lambda *_: None, None, lambda event, text, attributes: told.append((event, text, dict(attributes))))
        cache.start()
        try:
            async with asyncio.timeout(60):
                await until(lambda: cache._storage is not None and cache._storage._epoch)
                for step in (1, 2, 3):  # two say how long a step takes, the third is behind the first multiple
                    ours.save(step)
                    await until(lambda step=step: any(copy.step == step for copy in cache._copies.values()))
                await until(lambda: any(copy.state is CopyState.PERSISTENT and copy.step == 3 for copy in cache._copies.values()))
                await until(lambda: "checkpoint.saved" in [event for event, _, _ in told])
                cache._storage.interval.every = 1 << 30  # type: ignore[union-attr]  # the next one is not due
                ours.save(4)
                await cache.store_newest(60)
                assert ours.steps == [3, 4], "what memory holds at the end"
        finally:
            await cache.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(until_stored())
    attributes = next(attributes for event, _, attributes in told if event == "checkpoint.saved")
    assert (attributes["step"], attributes["finite"], attributes["worker"]) == ("3", "True", "r/n0/0")
    assert attributes["path"] == str(ours.home / "step-000000000003.json")
    assert float(attributes["advised_s"]) > 0
    assert float(attributes["advised_loss"]) > 0
    assert "counted as if training stood still" in caplog.text
    safe = next(attributes for event, _, attributes in told if event == "checkpoint.safe")
    assert (int(safe["memory_step"]) >= 1, safe["storage_step"], "backup_step" in safe) == (True, "-1", False), "the only node has no other one"
    assert [entry.missing for entry in checkpoint.entries(ours.home)] == ["", ""]


def test_a_copy_that_cannot_be_read_is_told_where_it_was_to_be_stored_and_once(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    for step in range(8):
        launcher.look(step, step)
    launcher.stored.cannot_read(7, "r/n0/1", "broken")
    assert not launcher.told, "it was not to be stored"
    launcher.look(8, 7)
    for _ in range(2):
        launcher.stored.cannot_read(8, "r/n0/1", "the copy in slot 0 is broken")
    [(event, attributes)] = launcher.told
    assert (event, attributes["step"], attributes["worker"], attributes["reason"]) == ("checkpoint.failed", "8", "r/n0/1", "the copy in slot 0 is broken")


@pytest.mark.parametrize("harm", ["none", "table", "mode"])
def test_a_single_node_whose_copy_no_launcher_can_read_says_so(node: Any, monkeypatch: pytest.MonkeyPatch, harm: str) -> None:  # noqa: F811
    monkeypatch.setattr(checkpoint_cache, "IDLE_S", 0.01)
    ours: Node = node()
    settings = CacheSettings(node=NODE, run="r", host="127.0.0.1", folder=ours.folder, prefix="n0-", workers=1, storage=ours.home, storage_interval_s=0.001)
    told: list[tuple[str, dict[str, str]]] = []

    def outcome() -> list[tuple[str, dict[str, str]]]:
        return [each for each in told if each[0] != "checkpoint.safe"]

    async def nobody(_: str) -> dict[str, Any]:
        return {}

    async def until_told() -> None:
        cache = CheckpointCache(settings, lambda: layout(ranks=1), nobody, lambda *_: None, None, lambda event, _, attributes: told.append((event, dict(attributes))))  # type: ignore[arg-type]
        cache.start()
        try:
            async with asyncio.timeout(60):
                await until(lambda: cache._storage is not None and cache._storage._epoch)
                for step in (1, 2, 3):
                    if step == 3 and harm == "table":
                        monkeypatch.setattr(slot_table, "encode", lambda _: b"{}")
                    ours.save(step)
                    if step == 3 and harm == "mode":
                        ours.path.chmod(0o644)
                    else:
                        await until(lambda step=step: any(copy.step == step for copy in cache._copies.values()))
                await until(outcome)
                await until(lambda: harm == "none" or any(attributes.get("memory_failure") for event, attributes in told if event == "checkpoint.safe"))
        finally:
            await cache.close()

    asyncio.run(until_told())
    [(event, attributes), *more] = outcome()
    if harm == "none":
        assert event == "checkpoint.saved", "twin"
        return
    assert (event, attributes["worker"], more) == ("checkpoint.failed", "r/n0/0", [])
    reason = {"table": "is broken: ", "mode": "others may use it (mode 0644), so nothing in it is believed: chmod 600 it"}[harm]
    assert reason in attributes["reason"]
    assert any(reason in each.get("memory_failure", "") for event, each in told if event == "checkpoint.safe")
