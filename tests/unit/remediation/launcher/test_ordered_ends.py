"""Workers whose end the launcher orders: what they had raised, or ended with, before that is told, and what follows from the order is not."""

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eagle_eye.clock import SystemClock
from eagle_eye.training.ring_buffer import EXIT_CODE, SCRIPT_ENDED, STEP, RingWriter
from fakes.launcher_member import PID, Member

ORDERED_S = 100.0


def ended_on_order(folder: Path, *, raised_before: bool = False) -> Member:
    """Both workers were ended at ORDERED_S; the message of the first has been read by then, or not."""

    async def end() -> Member:
        member = Member(folder)
        if raised_before:
            member.raises(raised_s=ORDERED_S - 0.01)
        for worker in member.workers:
            worker.order_end(ORDERED_S)
            member.all.exited(worker.pid, int(signal.SIGKILL))
        return member

    return asyncio.run(end())


def told_late(member: Member) -> list[tuple[str, str, int]]:
    return [(body["worker"], body["failure"]["type"], body["epoch"]) for kind, body in member.reported if kind == "late_failure"]


@pytest.mark.parametrize("read", ["after the order", "before the order"])
def test_an_exception_from_before_the_order_to_end_counts_however_late_it_is_read(tmp_path: Path, read: str) -> None:
    """All ranks raise at once: the first report begins a new epoch, and ends the others in the middle of theirs."""
    member = ended_on_order(tmp_path, raised_before=read == "before the order")
    if read == "after the order":
        member.raises(raised_s=ORDERED_S - 0.01)
    assert [event.name for event in member.events] == ["exception"]
    assert told_late(member) == [("r/n0/0", "ValueError", 1)]
    assert [kind for kind, _ in member.reported] == ["late_failure"], "its death is ours, and no second one is reported"


@pytest.mark.parametrize("more", [{"raised_s": ORDERED_S + 0.01}, {}], ids=["after it", "nobody knows when"])
def test_twin_an_exception_from_after_the_order_is_our_own_doing(tmp_path: Path, more: dict[str, float]) -> None:
    member = ended_on_order(tmp_path)
    member.raises(**more)
    assert (member.events, member.reported) == ([], [])


@pytest.mark.parametrize(("status", "told"), [(3 << 8, [3]), (int(signal.SIGSEGV), [-signal.SIGSEGV]), (int(signal.SIGKILL), []), (0, []), (int(signal.SIGTERM), [])])
def test_what_a_worker_ended_with_by_itself_before_the_order_reached_it_is_told_and_no_event(tmp_path: Path, status: int, told: list[int]) -> None:
    """The order is a SIGKILL: another status is the worker's own, perhaps that of the first to die."""

    async def end() -> Member:
        member = Member(tmp_path)
        member.workers[0].order_end(ORDERED_S)
        member.all.exited(member.workers[0].pid, status)
        return member

    member = asyncio.run(end())
    assert [body["code"] for kind, body in member.reported if kind == "late_failure"] == told
    assert member.events == []


def test_twin_what_a_worker_does_that_was_asked_to_end_is_not_told(tmp_path: Path) -> None:
    async def end() -> Member:
        member = Member(tmp_path)
        member.workers[0].expected = True
        member.workers[0].order_end(ORDERED_S)
        member.all.exited(member.workers[0].pid, 1 << 8)
        return member

    assert asyncio.run(end()).reported == []


def ended_after(folder: Path, left_s: float, code: int, status: int, *, after_death: bool = True, asked: bool = False) -> list[str]:
    """What is told of the first worker, whose script was over at `left_s` (0: it marks nothing) and whose end was ordered at ORDERED_S."""

    async def end() -> Member:
        member = Member(folder)
        worker, member.all._after_death = member.workers[0], after_death
        if left_s:
            ring = RingWriter.create(worker.ring, pid=worker.pid, worker=worker.name)
            ring.now[STEP], ring.now[SCRIPT_ENDED], ring.now[EXIT_CODE] = 12, int(left_s * 1e9), code
        worker.expected = asked
        worker.order_end(ORDERED_S)
        member.all.exited(worker.pid, status)
        await member.all._tell_untold()
        return member

    member = asyncio.run(end())
    told = [f"{event.name} {event.attributes.get('code', '0')} in step {event.attributes['step']}" for event in member.events]
    return [*told, *(kind for kind, _ in member.reported)]


KILLED = int(signal.SIGKILL)


@pytest.mark.parametrize(("teardown_s", "dated_s"), [(0.8, 0.8), (30.0, 0.0)], ids=["it closed its connections with its script", "it may have kept some until its end"])
def test_the_end_of_a_worker_is_that_of_its_script(tmp_path: Path, teardown_s: float, dated_s: float) -> None:
    async def end() -> Member:
        member, now = Member(tmp_path), time.monotonic()
        ring = RingWriter.create(member.workers[0].ring, pid=member.workers[0].pid, worker=member.workers[0].name)
        ring.now[SCRIPT_ENDED], ring.now[EXIT_CODE] = int((now - teardown_s) * 1e9), 3
        member.all.exited(member.workers[0].pid, 3 << 8, now)
        await member.all._tell_untold()
        return member

    (event,) = asyncio.run(end()).events
    assert SystemClock().now() - event.time == pytest.approx(dated_s, abs=0.5)


@pytest.mark.parametrize(
    ("left_s", "code", "status", "told"),
    [
        (ORDERED_S - 0.01, 0, KILLED, ["worker.finished 0 in step 12", "worker_finished"]),
        (ORDERED_S - 0.01, 3, KILLED, ["exit 3 in step 12", "death"]),
        (ORDERED_S - 0.01, 3, 3 << 8, ["exit 3 in step 12", "death"]),
        (0.0, 0, 0, ["worker.finished 0 in step ", "worker_finished"]),
        (ORDERED_S - 0.01, 0, int(signal.SIGSEGV), ["late_failure"]),
    ],
    ids=["exit 0", "exit 3", "exit 3 before the order came", "exit 0 of a script that marks nothing", "it crashed at its exit handlers"],
)
def test_fault_who_had_left_its_script_before_the_order_to_end_is_told_though_its_peers_ended_of_it_first(
    tmp_path: Path, left_s: float, code: int, status: int, told: list[str]
) -> None:
    assert ended_after(tmp_path, left_s, code, status) == told


@pytest.mark.parametrize("more", [{"left_s": ORDERED_S + 0.01}, {"after_death": False}, {"asked": True}, {"left_s": 0.0}])
@pytest.mark.parametrize("code", [0, 3])
def test_twin_who_ended_of_the_order_is_not_told(tmp_path: Path, code: int, more: dict[str, Any]) -> None:
    assert ended_after(tmp_path, **{"left_s": ORDERED_S - 0.01, "code": code, "status": KILLED, **more}) == []


def test_an_exception_that_its_exit_has_overtaken_is_told_when_it_is_read(tmp_path: Path) -> None:
    async def end() -> Member:
        member = Member(tmp_path)
        member.member.worker_ended(member.workers[0], 1 << 8)
        return member

    member = asyncio.run(end())
    member.raises(raised_s=99.0)
    assert [kind for kind, _ in member.reported] == ["death", "late_failure"]
    assert told_late(member) == [("r/n0/0", "ValueError", 1)]


def test_what_is_read_when_a_successor_runs_is_told_of_the_one_that_raised_it(tmp_path: Path) -> None:
    member = ended_on_order(tmp_path)
    successor = msgspec.structs.replace(member.workers[0], pid=PID + 7, epoch=2, ordered_s=None, noticed=False, status=None, overtaken=False)
    member.all._former, member.all._by_pid = tuple(member.workers), {successor.pid: successor}
    member.raises(raised_s=ORDERED_S - 0.01)
    assert (member.workers[0].exception, successor.exception) == ("ValueError", "")
    assert told_late(member) == [("r/n0/0", "ValueError", 1)]
    assert member.events[0].attributes["epoch"] == "1"
