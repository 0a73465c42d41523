"""Two launchers' caches in one process: what one node has goes to the other, and comes back."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eagle_eye.errors import PermanentError
from eagle_eye.training.checkpoint.memory_segment import (
    PAGE,
    ROW,
    SLOTS_WITH_BACKUP,
    SegmentFile,
    fetched_beside,
)
from eagle_eye.types import Layout, NodePlace, RankPlacement
from remediation.checkpoint import backup_keeper, backup_rounds, checkpoint_cache, round_leader
from remediation.checkpoint.cache_settings import CacheSettings
from remediation.checkpoint.checkpoint_cache import CheckpointCache
from remediation.checkpoint.copy_files import SegmentTimes
from remediation.checkpoint.copy_search import Found, Wanted
from remediation.checkpoint.copy_states import CopyState, Place

from .test_copies_over_tcp import payload_of, written

NODES = ("n0", "n1")


def layout_of(nodes: Sequence[str], epoch: int = 2, switches: Mapping[str, str] | None = None) -> Layout:
    places = {node: NodePlace(switch=switch) for node, switch in (switches or {}).items()}
    return Layout(
        job="t/j/r", epoch=epoch, time=1.0, coordinator="n0", places=places, launchers={node: f"127.0.0.1:{node[1]}" for node in nodes},
        placements=tuple(RankPlacement(worker=f"r/{node}/0", node=node, rank=rank, local_rank=0) for rank, node in enumerate(nodes)),
    )  # fmt: skip


class Cluster:
    switches: Mapping[str, str] = {}
    """Of its nodes, from the next layout on."""

    def __init__(self, folder: Path, nodes: Sequence[str] = NODES) -> None:
        self.folder = folder
        self.told: list[tuple[str, dict[str, str]]] = []
        self.layout = layout_of(nodes)
        self.caches = {node: self.cache(node) for node in nodes}

    def cache(self, node: str) -> CheckpointCache:
        settings = CacheSettings(node=node, run="r", host="127.0.0.1", folder=self.folder, prefix=f"ee-{node}-", workers=1, limit_bytes=1 << 30)
        return CheckpointCache(settings, lambda: self.layout, self.ask, lambda *words: self.told.append(words), None)

    async def ask(self, address: str, question: dict[str, Any]) -> dict[str, Any]:
        return await self.caches[f"n{address[-1]}"].answer(question)

    async def lose(self, *lost: str) -> None:
        """With the node its memory is gone; another one takes its place, under the same name."""
        for node in lost:
            await self.caches[node].close()
            for path in self.folder.glob(f"ee-{node}-*"):
                path.unlink()
        for node in lost:
            self.caches[node] = self.cache(node)
            self.caches[node].start()
        self.begin()

    def begin(self) -> None:
        """The next epoch."""
        self.layout = layout_of(self.layout.nodes, self.layout.epoch + 1, self.switches)

    async def close(self) -> None:
        for cache in self.caches.values():
            await cache.close()


def run(folder: Path, work: Callable[[Cluster], Awaitable[None]], *started: str) -> None:
    async def all_of_it() -> None:
        cluster = Cluster(folder, tuple(dict.fromkeys((*NODES, *started))))
        for node in started:
            cluster.caches[node].start()
        try:
            async with asyncio.timeout(20):
                await work(cluster)
        finally:
            await cluster.close()

    asyncio.run(all_of_it())


async def until(condition: Callable[[], Any]) -> Any:
    while not (value := condition()):
        await asyncio.sleep(0.005)
    return value


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_keeper, "LOOK_S", 0.01)
    monkeypatch.setattr(checkpoint_cache, "IDLE_S", 0.01)
    monkeypatch.setattr(round_leader, "ANSWER_S", 0.05)
    monkeypatch.setattr(round_leader, "ROUND_S", 0.05)


def states(cache: CheckpointCache) -> list[CopyState]:
    return [copy.state for copy in cache._copies.values()]


def test_a_copy_goes_to_the_neighbour_and_comes_back_to_a_node_that_has_lost_it(tmp_path: Path) -> None:
    own = tmp_path / "ee-n1-0.memory"

    async def work(cluster: Cluster) -> None:
        written(own, {0: 4, 1: 5, 2: 6}, rank=1, slots=SLOTS_WITH_BACKUP).close()
        before = payload_of(own, 6)
        await until(lambda: states(cluster.caches["n1"]) == [CopyState.OBSOLETE, CopyState.OBSOLETE, CopyState.BACKED_UP])
        cluster.caches["n1"].stored(6)
        await until(lambda: CopyState.PERSISTENT in states(cluster.caches["n1"]))
        with closing(SegmentFile(own)) as segment:
            assert os.pread(segment.content.fileno(), 24, 56)[16:] != bytes(8)
        own.unlink()
        wanted = Wanted(rank=1, world=2, path=own, worker="r/n1/0")
        found: Found = await until(lambda: (answer := cluster.caches["n1"].fetch(7, wanted)).state != "busy" and answer)
        assert (found.state, found.source, found.path) == ("done", "n0", str(fetched_beside(own)))
        assert payload_of(fetched_beside(own), 6) == before
        assert cluster.caches["n1"].fetch(7, wanted) is found, "once for each process"
        nothing = await until(lambda: (answer := cluster.caches["n1"].fetch(8, Wanted(rank=1, world=3, path=own, worker="r/n1/0"))).state != "busy" and answer)
        assert nothing.state == "none"
        assert not cluster.told

    run(tmp_path, work, *NODES)


def test_what_all_ranks_hold_alike_comes_to_a_node_once_for_all_its_workers(tmp_path: Path) -> None:
    own = [tmp_path / f"ee-n1-{slot}.memory" for slot in range(2)]

    async def brought(cluster: Cluster, pid: int, slot: int) -> Found:
        wanted = Wanted(rank=2 + slot, world=4, path=own[slot], worker=f"r/n1/{slot}", replicated=True)
        found: Found = await until(lambda: (answer := cluster.caches["n1"].fetch(pid, wanted)).state != "busy" and answer)
        return found

    async def work(cluster: Cluster) -> None:
        written(tmp_path / "ee-n0-backup-1of2.memory", {0: 8}, rank=1, replicated=True).close()
        written(tmp_path / "ee-n0-0.memory", {0: 6, 1: 7}, rank=0, replicated=True).close()
        both = await asyncio.gather(*(brought(cluster, 7 + slot, slot) for slot in range(2)))
        assert [(found.state, found.source, found.path) for found in both] == [("done", "n0", str(fetched_beside(path))) for path in own], "what rank 0 holds there; not what is kept for others"
        for path in own:
            assert payload_of(fetched_beside(path), 7) == payload_of(tmp_path / "ee-n0-0.memory", 7)
            with pytest.raises(StopIteration):
                payload_of(fetched_beside(path), 8)
        first, second = (fetched_beside(path).stat() for path in own)
        assert (first.st_ino, first.st_nlink) == (second.st_ino, 2), "the same memory"
        assert (await brought(cluster, 11, 0)).path == str(fetched_beside(own[0])), "who comes again has it there"
        assert fetched_beside(own[0]).stat().st_ino == first.st_ino
        for path in own:
            fetched_beside(path).unlink()
        again = await brought(cluster, 9, 1)
        assert (again.state, fetched_beside(own[1]).stat().st_nlink) == ("done", 1), "what was given back is fetched anew"
        cluster.begin()
        written(tmp_path / "ee-n0-0.memory", {0: 6, 1: 7, 2: 8}, rank=0, replicated=True, slots=SLOTS_WITH_BACKUP).close()
        written(tmp_path / "ee-n0-backup-2of4.memory", {0: 5}, rank=2, replicated=True, world=4).close()
        await brought(cluster, 10, 0)
        assert payload_of(fetched_beside(own[0]), 5), "of a newer epoch what is there now: its own copy first, of a step that all still have"

    run(tmp_path, work, *NODES)


def test_a_new_epoch_sends_what_the_neighbour_may_have_lost(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        written(tmp_path / "ee-n1-0.memory", {0: 5}, rank=1).close()
        backup = tmp_path / "ee-n0-backup-1of2.memory"
        await until(lambda: CopyState.BACKED_UP in states(cluster.caches["n1"]))
        backup.unlink()
        cluster.layout = layout_of(NODES, 3)
        await until(backup.exists)
        assert payload_of(backup, 5) == payload_of(tmp_path / "ee-n1-0.memory", 5)

    run(tmp_path, work, *NODES)


def test_a_broken_copy_is_told_and_not_sent(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        own = tmp_path / "ee-n1-0.memory"
        segment = written(own, {0: 5}, rank=1)
        segment.memory[2 * PAGE + 3] ^= 1  # of the table
        segment.close()
        [(text, attributes)] = await until(lambda: cluster.told)
        assert "broken" in text
        assert (attributes["step"], attributes["path"], attributes["safe_step"]) == ("5", str(own), "-1")
        assert await until(lambda: states(cluster.caches["n1"])[0] is CopyState.BROKEN)  # seen before the bit was turned, it is looked at again

    run(tmp_path, work, *NODES)


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_copy_that_was_written_anew_while_it_was_fetched_is_not_told_as_broken(tmp_path: Path, rewritten: bool) -> None:
    """As where a fetch was held up for longer than the copy is held for it: its bytes are those of two steps, and each step's are right."""

    async def work(cluster: Cluster) -> None:
        own = tmp_path / "ee-n1-0.memory"
        with closing(written(own, {0: 5, 1: 6}, rank=1)) as segment:
            if rewritten:
                segment.clear(1)
            cluster.caches["n1"]._settled("n0", Place(own.name, 1), 2, True, "bytes 0 to 65536 are not as they were written")
            await asyncio.sleep(0.01)
            assert [(attributes["step"], "is broken" in text) for text, attributes in cluster.told] == ([] if rewritten else [("6", True)])

    run(tmp_path, work, "n1")


def test_a_neighbour_that_does_not_ask_is_told_once_and_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_cache, "LATE_S", 0.05)
    monkeypatch.setattr(backup_rounds, "FIRST_S", 0.02)
    monkeypatch.setattr(backup_rounds, "HOLD_S", 0.02)

    async def work(cluster: Cluster) -> None:
        segment = written(tmp_path / "ee-n1-0.memory", {0: 5}, rank=1)
        await until(lambda: cluster.told)
        await asyncio.sleep(0.1)
        [(text, attributes)] = cluster.told
        assert "the launcher on n0 has not asked" in text
        assert attributes["safe_step"] == "-1"
        assert not segment.is_held(0)
        segment.close()

    run(tmp_path, work, "n1")


def test_nothing_is_searched_for_before_the_first_epoch_has_ended(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        cluster.layout = layout_of(NODES, 1)
        assert cluster.caches["n1"].fetch(7, Wanted(rank=1, world=2, path=tmp_path / "ee-n1-0.memory", worker="r/n1/0")).state == "none"

    run(tmp_path, work, *NODES)


@pytest.mark.parametrize(("lost", "nowhere"), [(("n1",), ()), (("n0", "n2"), ()), (("n3", "n0"), ("n3",))])
def test_what_is_lost_with_nodes_is_in_memory_unless_two_of_them_are_neighbours(tmp_path: Path, lost: tuple[str, ...], nowhere: tuple[str, ...]) -> None:
    """Of the first of two neighbours nobody has a copy: the job loads from storage."""

    async def work(cluster: Cluster) -> None:
        own = {node: tmp_path / f"ee-{node}-0.memory" for node in cluster.layout.nodes}
        for rank, path in enumerate(own.values()):
            written(path, {0: 5}, rank=rank, payload=ROW).close()
        before = {node: payload_of(path, 5) for node, path in own.items()}
        await until(lambda: all(CopyState.BACKED_UP in states(cache) for cache in cluster.caches.values()))
        await cluster.lose(*lost)
        for node in lost:
            wanted = Wanted(rank=int(node[1]), world=2, path=own[node], worker=f"r/{node}/0")
            found: Found = await until(lambda node=node, wanted=wanted: (answer := cluster.caches[node].fetch(7, wanted)).state != "busy" and answer)
            assert found.state == ("none" if node in nowhere else "done")
            if found.state == "done":
                assert payload_of(Path(found.path), 5) == before[node]

    run(tmp_path, work, "n0", "n1", "n2", "n3")


FOUR = ("n0", "n1", "n2", "n3")


async def in_memory(cluster: Cluster) -> dict[str, bytes]:
    """Each node has its checkpoint of step 5, and another one keeps it; what is in it."""
    own = {node: cluster.folder / f"ee-{node}-0.memory" for node in cluster.layout.nodes}
    for rank, path in enumerate(own.values()):
        written(path, {0: 5}, rank=rank, payload=ROW).close()
    before = {node: payload_of(path, 5) for node, path in own.items()}
    await until(lambda: all(cache._rounds.agreed == 5 for cache in cluster.caches.values()))
    return before


def test_a_switch_that_takes_two_nodes_takes_neither_of_their_copies(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        cluster.switches = {"n0": "a", "n1": "a", "n2": "b", "n3": "b"}
        cluster.begin()
        before = await in_memory(cluster)
        await cluster.lose("n2", "n3")
        for node in ("n2", "n3"):
            own = tmp_path / f"ee-{node}-0.memory"
            wanted = Wanted(rank=int(node[1]), world=2, path=own, worker=f"r/{node}/0")
            found: Found = await until(lambda node=node, wanted=wanted: (answer := cluster.caches[node].fetch(7, wanted)).state != "busy" and answer)
            assert payload_of(Path(found.path), 5) == before[node]

    run(tmp_path, work, *FOUR)


def test_labels_that_change_within_an_epoch_move_nothing_until_the_next(tmp_path: Path) -> None:
    def kept() -> set[str]:
        return {path.name for path in tmp_path.glob("ee-*-backup-*")}

    async def work(cluster: Cluster) -> None:
        await in_memory(cluster)
        ring = {f"ee-n{(rank + 1) % 4}-backup-{rank}of2.memory" for rank in range(4)}
        assert kept() == ring, "nothing is known: in the order of the layout"
        cluster.switches = {"n0": "a", "n1": "a", "n2": "b", "n3": "b"}
        for rank, node in enumerate(FOUR):
            written(tmp_path / f"ee-{node}-0.memory", {1: 6}, rank=rank, payload=ROW).close()
        await until(lambda: all(any(copy.step == 6 and copy.state is CopyState.BACKED_UP for copy in cache._copies.values()) for cache in cluster.caches.values()))
        assert kept() == ring
        cluster.begin()
        across = {f"ee-n{(rank + 2) % 4}-backup-{rank}of2.memory" for rank in range(4)}
        await until(lambda: kept() == ring | across)

    run(tmp_path, work, *FOUR)


def test_a_node_that_tells_nonsense_of_its_round_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    right = {"node": "n1", "epoch": 2, "number": 0, "step": 5, "newest": 5, "every": 1, "wait_s": 0.0}

    async def work(cluster: Cluster) -> None:
        for wrong in ({"every": 0}, {"step": 1 << 70}, {"newest": -2}, {"wait_s": float("nan")}, {"number": "0"}, {"node": None}):
            with pytest.raises(PermanentError, match="not understood"):
                await cluster.caches["n0"].answer({**right, **wrong})
        assert (await cluster.caches["n0"].answer(right))["number"] == 0

    run(tmp_path, work, "n0")


def test_the_copies_are_looked_at_when_one_was_written_or_something_is_new_and_else_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look costs the training as much as some copies do."""
    monkeypatch.setattr(checkpoint_cache, "IDLE_S", 3600.0)
    own = tmp_path / "ee-n1-0.memory"
    cache = Cluster(tmp_path).caches["n1"]

    def looks() -> bool:
        if is_to := cache._is_to_look(times):
            cache._look(files)
        return is_to

    with closing(cache._files()) as files:
        times = SegmentTimes(files, 1)
        assert looks(), "never before"
        assert not looks()
        with closing(written(own, {0: 5}, rank=1, slots=SLOTS_WITH_BACKUP)) as segment:
            assert looks()
            assert not looks()
            os.utime(own, (1, 1))  # as the stamp of a further copy does, whatever the clock's tick is
            assert looks()
            assert not looks()
            segment.clear(0)
            assert not looks(), "nothing to send is there"
        cache.stored(5)
        assert looks()
        cache.stored(4)
        assert not looks(), "older than what is known"
        cache.refused("r/n1/0", "memory", "no room", "")
        assert looks()
        cache._settled("", Place(own.name, 0), 1, False, "")
        assert looks()
        assert not looks()
        cache._layout = lambda: layout_of(NODES, 3)
        assert looks()
        monkeypatch.setattr(checkpoint_cache, "IDLE_S", 0.0)
        assert looks()


def test_while_a_copy_is_due_to_a_neighbour_that_asks_it_is_looked_at_all_the_time(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        cache = cluster.caches["n1"]
        await until(lambda: cache._kept_by[0])
        cache._due_names("n0", 0.0)
        written(tmp_path / "ee-n1-0.memory", {0: 5}, rank=1).close()
        await until(lambda: cache._is_waited_for)
        [name], _ = await asyncio.to_thread(cache._due_names, "n0", 1.0)
        assert name.step == 5
        cache._settled("n0", Place(name.file, name.slot), name.sequence, False, "")
        await until(lambda: not cache._is_waited_for)

    run(tmp_path, work, "n1")


def test_behind_a_roll_back_no_copy_of_the_new_history_is_taken_for_stored_whatever_the_neighbour_says(tmp_path: Path) -> None:
    own = tmp_path / "ee-n1-0.memory"

    async def work(cluster: Cluster) -> None:
        ours, neighbour = cluster.caches["n1"], cluster.caches["n0"]
        for cache in (ours, neighbour):
            cache.stored(500, 1)
        cluster.layout = msgspec.structs.replace(layout_of(NODES, 3), rolled_back=((3, 90),))
        written(own, {0: 100}, rank=1, slots=SLOTS_WITH_BACKUP, epoch=3).close()
        await until(lambda: CopyState.BACKED_UP in states(ours))
        assert ours.stored(500, 1) == neighbour.stored(500, 0) == -1, "told again of before, by a launcher that says the epoch and one that does not"
        for _ in range(2):
            before = ours._looked
            await until(lambda: ours._looked is not before)  # noqa: B023 - it is asked at once
        assert CopyState.PERSISTENT not in states(ours)
        neighbour.stored(100, 3)
        ours.stored(100, 3)
        await until(lambda: CopyState.PERSISTENT in states(ours))

    run(tmp_path, work, *NODES)


def test_the_neighbour_hears_in_which_epoch_what_is_stored_was_made(tmp_path: Path) -> None:
    async def work(cluster: Cluster) -> None:
        cluster.caches["n0"].stored(40, 2)
        await until(lambda: cluster.caches["n1"]._stored.newest() == (40, 2))

    run(tmp_path, work, *NODES)
