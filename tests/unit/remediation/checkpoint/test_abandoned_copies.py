"""What a job has abandoned by a roll-back: launchers send it to nobody, bring it to nobody, and do not store it."""

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from eagle_eye.training.checkpoint import checkpoint_directory
from remediation.checkpoint import backup_keeper, checkpoint_cache, round_leader
from remediation.checkpoint.copy_files import CopyFiles
from remediation.checkpoint.copy_search import Wanted, _bring
from remediation.checkpoint.copy_states import CopyState, Place

from .test_checkpoint_cache import Cluster, run, until
from .test_copies_over_tcp import Node as ServedNode
from .test_copies_over_tcp import keep, nodes, payload_of, written  # noqa: F401 - a fixture
from .test_storage_reconciler import Node, node  # noqa: F401 - a fixture

ROLLED_BACK = ((2, 5),)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_keeper, "LOOK_S", 0.01)
    monkeypatch.setattr(checkpoint_cache, "IDLE_S", 0.01)
    monkeypatch.setattr(round_leader, "ANSWER_S", 0.05)
    monkeypatch.setattr(round_leader, "ROUND_S", 0.05)


def steps_of(path: Path) -> list[int]:
    with closing(CopyFiles(path.parent, "ee-", 1)) as files:
        return sorted(each.step for each in files.seen() if each.sequence >= 0)


def test_of_the_slots_of_a_worker_those_that_were_abandoned_are_as_if_they_were_empty(tmp_path: Path) -> None:
    written(tmp_path / "ee-0.memory", {0: 5, 1: 8}, epoch=1).close()
    with closing(CopyFiles(tmp_path, "ee-", 1)) as files:
        assert [each.step for each in files.seen()] == [5, 8]
        assert [(each.place.slot, each.step) for each in files.seen(ROLLED_BACK)] == [(0, 5), (1, -1)]
        assert [each.step for each in files.seen(((1, 5),))] == [5, 8], "it was made behind that one"


def test_they_crowd_out_nothing_of_what_another_node_has_kept(nodes: Sequence[ServedNode]) -> None:  # noqa: F811
    """Two steps come to a worker, the newest."""
    ours, neighbour = nodes
    written(ours.own, {0: 5, 1: 8, 2: 9}, slots=3, epoch=1).close()
    with closing(neighbour.keeper([], steps=3)) as keeper:
        for name in reversed(ours.names()):
            assert keep(keeper, ours, name)
    ours.own.unlink()
    wanted = Wanted(rank=0, world=2, path=ours.own, worker="r/n0/0", rolled_back=ROLLED_BACK)
    assert _bring(wanted, {"n1": neighbour.server.source}, None, []) == "n1"
    fetched = ours.own.with_name("ee-0-fetched.memory")
    assert payload_of(fetched, 5)
    with pytest.raises(StopIteration):
        payload_of(fetched, 9)


def test_the_newest_of_any_node_is_sought_among_what_was_not_abandoned(nodes: Sequence[ServedNode]) -> None:  # noqa: F811
    """As the worker that loads for an elastic job does."""
    ours, other = nodes
    written(ours.own, {0: 8, 1: 9}, replicated=True, epoch=1).close()
    written(other.own, {0: 6, 1: 5}, replicated=True, epoch=2).close()
    wanted = Wanted(rank=0, world=1, path=ours.own.with_name("ee-1.memory"), worker="r/n0/0", replicated=True, newer_from=1, rolled_back=ROLLED_BACK)
    sources = {"n0": ours.server.source, "n1": other.server.source}
    assert _bring(wanted, sources, None, []) == "n1"
    wanted = replace(wanted, rolled_back=())
    assert _bring(wanted, sources, None, []) == "n0"


def test_they_take_no_place_on_the_neighbour_and_are_not_said_to_be_safe(tmp_path: Path) -> None:
    """There they would be written over the newest copy that the job can still go on from."""

    async def work(cluster: Cluster) -> None:
        cluster.layout = replace(cluster.layout, epoch=3, rolled_back=((3, 5),))
        written(tmp_path / "ee-n0-0.memory", {0: 5, 1: 8}, epoch=2).close()
        written(tmp_path / "ee-n1-0.memory", {0: 5, 1: 8}, rank=1, epoch=2).close()
        cache = cluster.caches["n0"]
        await until(lambda: cache._copies.get(Place("ee-n0-0.memory", 0)) is not None and cache._copies[Place("ee-n0-0.memory", 0)].state is CopyState.BACKED_UP)
        assert cache._copies[Place("ee-n0-0.memory", 1)].state is CopyState.PENDING
        with closing(CopyFiles(tmp_path, "ee-n1-", 1)) as files:
            assert [name.step for name in files.names(0, 2)] == [5]

    run(tmp_path, work, "n0", "n1")


def test_at_the_end_of_the_job_the_newest_that_was_not_abandoned_is_stored(node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    ours = node()
    monkeypatch.setenv("EAGLE_EYE_EPOCH", "1")
    ours.save(4)
    ours.save(8)
    with closing(ours.files()) as files:
        assert sorted(each.step for each in files.seen(ROLLED_BACK)) == [-1, 4]


def test_a_step_that_is_published_after_the_coordinator_has_put_aside_what_was_there_is_put_aside_by_who_stored_it(node: Callable[..., Node]) -> None:  # noqa: F811
    ours = node()
    ours.store(4)
    ours.store(6)
    ours.reconciler.roll_back(2, 5)  # nothing more is to be stored
    thread, pause = threading.Thread(target=ours.reconciler.run), threading.Event()
    thread.start()
    try:
        aside = ours.home / f"{checkpoint_directory.manifest_name(6)}.discarded"
        assert any(aside.exists() or pause.wait(0.005) for _ in range(2000))
        assert ours.steps == [4]
    finally:
        ours.reconciler._stop.set()
        ours.reconciler.interrupt()
        thread.join()
