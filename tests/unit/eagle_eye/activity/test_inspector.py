"""Verdicts on suspected processes, renewed while they are suspected."""

import itertools

import pytest

from eagle_eye.activity.hang_verdict import ActivityKind, ProcessLook
from eagle_eye.activity.inspector import ActivityInspector, caught, handles_alarm, inspect
from eagle_eye.activity.last_collective import LastCollective
from eagle_eye.clock import Clock, FakeClock
from fakes.process_looks import ALL_REDUCE, TRAIN, VALIDATE, FakeProcesses, Inline, look


def test_a_suspect_is_judged_and_what_is_known_of_it_is_forgotten_with_the_suspicion(processes: FakeProcesses, clock: FakeClock) -> None:
    processes.sights[7] = lambda _: look(TRAIN)
    inspector = processes.inspector(clock)
    assert inspector.activity("a") is None
    inspector.watch([("a", 7)])
    found = inspector.activity("a")
    assert found is not None
    assert found.kind is ActivityKind.HUNG
    inspector.watch([])
    assert inspector.activity("a") is None


def test_who_works_is_looked_at_less_and_less_often_unless_somebody_is_in_a_hurry(processes: FakeProcesses, clock: FakeClock) -> None:
    processes.sights[7] = lambda number: look(TRAIN if number % 2 else VALIDATE)
    inspector = processes.inspector(clock)
    for _ in range(600):
        inspector.watch([("a", 7)])
        clock.advance(0.1)
    seldom = processes.looks
    assert 4 * 6 <= seldom <= 4 * 12, "four looks after 1, 2, 4, 8, 10, 10 ... seconds"
    inspector.hurry("a")
    inspector.watch([("a", 7)])
    assert processes.looks == seldom + 4


@pytest.mark.parametrize(("look_s", "apart_s"), [(0.0, 0.4), (0.15, 0.4), (0.3, 0.5)])
def test_looks_begin_at_the_same_distance_on_a_busy_node_too(clock: FakeClock, look_s: float, apart_s: float) -> None:
    began = []

    def slow(_: int, clock: Clock) -> ProcessLook:
        began.append(clock.monotonic())
        clock.sleep(look_s)
        return look(TRAIN)

    assert inspect(7, 600.0, clock, slow) is not None
    assert [later - earlier for earlier, later in itertools.pairwise(began)] == pytest.approx([apart_s] * 3)


def test_a_process_that_is_gone_has_no_verdict(processes: FakeProcesses, clock: FakeClock) -> None:
    inspector = processes.inspector(clock)
    inspector.watch([("a", 7)])
    assert inspector.activity("a") is None


def test_another_process_under_the_same_name_is_judged_anew(processes: FakeProcesses, clock: FakeClock) -> None:
    processes.sights[7] = lambda _: look(TRAIN)
    inspector = processes.inspector(clock)
    inspector.watch([("a", 7)])
    inspector.watch([("a", 8)])
    assert inspector.activity("a") is None


def test_nothing_is_looked_at_after_the_end(processes: FakeProcesses, clock: FakeClock) -> None:
    inspector = processes.inspector(clock)
    inspector.close()
    inspector.watch([("a", 7)])
    assert processes.looks == 0


def test_who_hangs_while_it_is_looked_at_is_looked_at_again_at_once(processes: FakeProcesses, clock: FakeClock) -> None:
    inspector = processes.inspector(clock)

    def sight(number: int) -> ProcessLook:
        if number == 2:
            inspector.hurry("a")
        return look(VALIDATE if number == 1 else TRAIN)

    processes.sights[7] = sight
    inspector.watch([("a", 7)])
    found = inspector.activity("a")
    assert found is not None
    assert found.kind is ActivityKind.WORKING, "one of the looks was from before"
    inspector.watch([("a", 7)])
    found = inspector.activity("a")
    assert found is not None
    assert found.kind is ActivityKind.HUNG


def test_who_was_hurried_is_looked_at_often_again_for_a_while(processes: FakeProcesses, clock: FakeClock) -> None:
    processes.sights[7] = lambda number: look(TRAIN if number % 2 else VALIDATE)
    inspector = processes.inspector(clock)
    for _ in range(600):
        inspector.watch([("a", 7)])
        clock.advance(0.1)
    seldom = processes.looks
    inspector.hurry("a")
    for _ in range(20):
        inspector.watch([("a", 7)])
        clock.advance(0.1)
    assert processes.looks == seldom + 2 * 4


def test_who_waits_for_its_peers_is_looked_at_again_at_once_and_later_seldom(processes: FakeProcesses, clock: FakeClock) -> None:
    processes.sights[7] = lambda _: look(ALL_REDUCE, TRAIN)
    inspector, began = processes.inspector(clock), list[float]()
    for _ in range(200):
        inspector.watch([("a", 7)])
        found = inspector.activity("a")
        assert found is not None
        began += [found.began] if found.began not in began else []
        clock.advance(0.1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert gaps[:10] == pytest.approx([0.1] * 10), "each verdict rests on looks of its own"
    assert min(gaps[10:]) > 0.9


def test_a_short_look_proves_nothing_but_that_it_still_waits(processes: FakeProcesses, clock: FakeClock) -> None:
    processes.sights[7] = lambda number: look(ALL_REDUCE, TRAIN) if number <= 4 else look(TRAIN)
    inspector = processes.inspector(clock)
    for _ in range(2):
        inspector.watch([("a", 7)])
    found = inspector.activity("a")
    assert found is not None
    assert found.kind is ActivityKind.HUNG
    assert processes.looks == 4 + 2 + 4


def test_a_suspect_is_asked_for_its_collective(processes: FakeProcesses, clock: FakeClock) -> None:
    processes.sights[7] = processes.sights[8] = lambda _: look(ALL_REDUCE, TRAIN)
    waits = LastCollective("0 default_pg", 124, "all_reduce", pending=True)
    inspector = ActivityInspector(600.0, clock, processes.look, Inline(), FakeClock(), {"/run/a.fr": waits}.get)
    inspector.watch([("a", 7), ("b", 8)], {"a": "/run/a.fr"})
    found = [inspector.activity(key) for key in "ab"]
    assert [each.collective for each in found if each is not None] == [waits, None]


@pytest.mark.parametrize(("mask", "found"), [("0000000100000002", False), ("0000000100002002", True), ("0000000002000000", True), ("0000000004000000", True), ("0000000008000000", False)])
def test_an_alarm_that_is_handled(mask: str, found: bool) -> None:
    assert caught(f"Name:\tpython\nSigIgn:\tffffffffffffffff\nSigCgt:\t{mask}\n") is found
    assert not handles_alarm(0x7FFFFFFF)
