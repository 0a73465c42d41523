"""The rounds in which all nodes copy the same step: the next one begins when the last has told, and nobody waits for ever."""

import asyncio
from collections.abc import Awaitable, Callable

from eagle_eye.clock import FakeClock
from remediation.checkpoint.backup_ring import BackupRing
from remediation.checkpoint.round_leader import ROUND_S, Round, RoundEnd, RoundLeader

RING = BackupRing(("n0", "n1", "n2"), {})
Work = Callable[[RoundLeader, FakeClock], Awaitable[None]]


def run(work: Work) -> None:
    async def all_of_it() -> None:
        clock = FakeClock()
        async with asyncio.timeout(20):
            await work(RoundLeader(clock.monotonic), clock)

    asyncio.run(all_of_it())


def told(node: str, step: int, *, number: int = 0, newest: int | None = None, every: int = 1, epoch: int = 2, wait_s: float = 0.0) -> RoundEnd:
    return RoundEnd(node=node, epoch=epoch, number=number, step=step, newest=step if newest is None else newest, every=every, wait_s=wait_s)


def test_the_next_round_begins_when_the_last_has_told_behind_what_any_has_and_as_seldom_as_one_wants() -> None:
    async def work(leader: RoundLeader, _: FakeClock) -> None:
        first = [asyncio.create_task(leader.answer(told(node, 10, every=every, wait_s=60.0), RING)) for node, every in (("n0", 1), ("n1", 8))]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in first)
        last = await leader.answer(told("n2", 10, newest=12, wait_s=60.0), RING)
        assert last == Round(number=1, target=16, agreed=10)
        assert await asyncio.gather(*first) == [last, last]

    run(work)


def test_where_they_have_copied_different_steps_nothing_is_agreed_and_the_next_begins_later() -> None:
    async def work(leader: RoundLeader, _: FakeClock) -> None:
        for node, step in (("n0", 10), ("n1", 10)):
            await leader.answer(told(node, step), RING)
        assert await leader.answer(told("n2", 11), RING) == Round(number=1, target=12, agreed=-1)
        for node in ("n0", "n1"):
            await leader.answer(told(node, 12, number=1), RING)
        assert await leader.answer(told("n2", 12, number=1), RING) == Round(number=2, target=13, agreed=12)

    run(work)


def test_a_node_that_never_tells_is_not_waited_for_longer_than_so() -> None:
    async def work(leader: RoundLeader, clock: FakeClock) -> None:
        for node in ("n0", "n1"):
            assert (await leader.answer(told(node, 10), RING)).number == 0
        clock.advance(ROUND_S)
        assert await leader.answer(told("n0", 10, newest=20), RING) == Round(number=1, target=21, agreed=10)
        for node in ("n0", "n1"):
            last = await leader.answer(told(node, 21, number=1), RING)
        assert last == Round(number=2, target=22, agreed=21), "and not again"
        assert (await leader.answer(told("n2", 10), RING)).number == 2, "it comes too late, and joins the next"
        for node in ("n0", "n1"):
            last = await leader.answer(told(node, 22, number=2), RING)
        assert last.number == 2, "for which it is waited"
        assert (await leader.answer(told("n2", 22, number=2), RING)).agreed == 22

    run(work)


def test_a_new_epoch_begins_at_the_beginning_and_wakes_who_waits_for_the_one_before() -> None:
    async def work(leader: RoundLeader, _: FakeClock) -> None:
        waiting = asyncio.create_task(leader.answer(told("n0", 50, wait_s=60.0), RING))
        await asyncio.sleep(0.01)
        assert await leader.answer(told("n1", 10, epoch=3), RING) == Round()
        assert await waiting == Round()
        assert await leader.answer(told("n0", 60, wait_s=60.0), RING) == Round(), "of an epoch that is over"
        assert await leader.answer(told("n9", 60, epoch=3, wait_s=60.0), RING) == Round(), "no node of the job"

    run(work)
