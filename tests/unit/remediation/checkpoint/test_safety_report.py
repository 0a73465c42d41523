"""What a launcher tells of the newest checkpoints that are safe, and how seldom."""

from collections.abc import Mapping

import pytest

from remediation.checkpoint.copy_states import Copies, Copy, CopyState, Place
from remediation.checkpoint.safety_report import NOWHERE, PERIOD_S, SafetyReport, Whereabouts

A, B = Place("a.memory", 0), Place("b.memory", 0)
BY_N1 = Whereabouts("n1", 1, "", 2)


class Told:
    """A report, and what two workers have in memory."""

    def __init__(self, *, stores: bool = False) -> None:
        self.report = SafetyReport(lambda: 1000.0 + self.now, stores=stores)
        self.now, self.stored_step, self.where = 0.0, -1, BY_N1
        self.copies: Copies = {}
        self.broken: set[Place] = set()

    def saved(self, *steps: int, state: CopyState = CopyState.CACHED) -> "Told":
        self.copies = {place: Copy(state if step >= 0 else CopyState.PENDING, step, step) for place, step in zip((A, B), steps, strict=True)}
        return self

    def look(self, seconds: float = 0.0, **failures: str) -> Mapping[str, str] | None:
        self.now += seconds
        return self.report.look(self.copies, lambda place: place not in self.broken, self.where, self.stored_step, failures, self.now)


@pytest.fixture
def told() -> Told:
    return Told()


def test_the_newest_step_is_that_of_the_worker_that_is_behind_and_on_another_node_what_is_there(told: Told) -> None:
    first = told.saved(3, 4).look()
    assert first is not None
    assert (first["memory_step"], first["backup_step"], "storage_step" in first) == ("3", "-1", False)
    told.where = BY_N1._replace(agreed=4)
    then = told.saved(4, 4).look(1.0)  # the first on another node: at once
    assert then is not None
    assert (then["memory_step"], then["memory_time"], then["backup_step"], then["backup_time"]) == ("4", "1001.000", "4", "1001.000")
    later = told.saved(7, 7).look(PERIOD_S)
    assert later is not None
    assert (later["memory_step"], later["backup_step"], later["backup_time"]) == ("7", "4", "1001.000"), "its slot was written anew, the other node has it still"


def test_steps_alone_are_told_every_ten_seconds_and_the_same_never_twice(told: Told) -> None:
    assert told.saved(1, 1).look() is not None
    assert [told.saved(step, step).look(1.0) for step in range(2, 11)] == [None] * 9
    assert told.saved(11, 11).look(1.0) is not None
    assert [told.look(PERIOD_S) for _ in range(3)] == [None] * 3, "training stands still"


def test_nodes_of_a_large_job_tell_a_hundred_times_a_second_in_all(told: Told) -> None:
    told.where = BY_N1._replace(nodes=5000)
    assert told.saved(1, 1).look() is not None
    assert told.saved(2, 2).look(49.0) is None
    assert told.look(1.0) is not None


def test_what_is_in_the_way_is_told_at_once_and_so_is_its_end(told: Told) -> None:
    told.saved(1, 1).look()
    failed = told.saved(2, 2).look(1.0, backup="n1 has no memory")
    assert failed is not None
    assert (failed["memory_step"], failed["backup_failure"]) == ("2", "n1 has no memory")
    assert told.saved(3, 3).look(1.0, backup="n1 has no memory") is None
    over = told.look(1.0)
    assert over is not None
    assert not over["backup_failure"]
    assert [told.look(0.1, backup=why) for why in ("again", "", "again")] == [None] * 3, "not more than once a second"


def test_a_job_whose_script_saves_nothing_has_nothing_to_tell(told: Told) -> None:
    assert told.look() is None
    assert told.saved(-1, -1).look(PERIOD_S) is None
    assert told.saved(-1, 5).look(PERIOD_S) is not None


def test_a_copy_that_may_not_be_loaded_is_not_safe(told: Told) -> None:
    told.broken = {B}
    found = told.saved(5, 6).look()
    assert found is not None
    assert found["memory_step"] == "-1"


def test_memory_that_refuses_is_told_until_a_newer_copy_of_that_worker_is_whole(told: Told) -> None:
    told.saved(4, 4).look()
    told.report.memory_refused("a.memory", 4, "no room")
    failed = told.look(1.0)
    assert failed is not None
    assert failed["memory_failure"] == "no room"
    assert told.saved(4, 5).look(1.0) is None, "that is the other worker's"
    over = told.saved(5, 5).look(1.0)
    assert over is not None
    assert not over["memory_failure"]


def test_storage_is_told_once_something_is_there_or_is_to_be(told: Told) -> None:
    told.where = NOWHERE
    found = told.saved(5, 5).look()
    assert found is not None
    assert not {"storage_step", "backup_step"} & found.keys(), "the only node, and no directory"
    told.report.storage_refused("disk full")
    failed = told.look(1.0)
    assert failed is not None
    assert (failed["storage_step"], failed["storage_failure"]) == ("-1", "disk full")
    told.stored_step = 5
    stored = told.look(1.0)
    assert stored is not None
    assert (stored["storage_step"], stored["storage_time"], stored["storage_failure"]) == ("5", "1000.000", "")
    assert (Told(stores=True).saved(1, 1).look() or {})["storage_step"] == "-1"


@pytest.mark.parametrize("where", [BY_N1._replace(kept_by="n2"), BY_N1._replace(epoch=2)])
def test_what_the_neighbour_of_before_had_does_not_count(told: Told, where: Whereabouts) -> None:
    told.where = BY_N1._replace(agreed=4)
    told.saved(4, 4).look()
    told.where = where
    found = told.saved(4, 4).look(PERIOD_S)
    assert found is not None
    assert found["backup_step"] == "-1", "it is sent again"


def test_behind_a_roll_back_storage_is_told_at_once_to_have_no_more_than_it_has(told: Told) -> None:
    told.stored_step = 500
    assert (told.saved(500, 500).look() or {})["storage_step"] == "500"
    told.stored_step = 90
    back = told.saved(91, 91).look(1.0)
    assert back is not None
    assert (back["storage_step"], back["storage_time"]) == ("90", "0.000"), "when it was taken is not known here"
    told.report.storage_refused("disk full")
    told.stored_step = 100
    later = told.saved(100, 100).look(PERIOD_S)
    assert later is not None
    assert (later["storage_step"], later["storage_failure"], later["storage_time"]) == ("100", "", "1011.000")


def test_a_refusal_of_before_a_roll_back_is_over_with_the_first_step_that_is_stored_behind_it(told: Told) -> None:
    told.stored_step = 500
    told.saved(500, 500).look()
    told.report.storage_refused("disk full")
    told.stored_step = 90
    assert (told.look(1.0) or {})["storage_failure"] == "disk full"
    told.stored_step = 100
    assert (told.look(1.0) or {})["storage_failure"] == ""
