"""The record that torch 2.13 gives of a rank's collectives."""

from typing import Any

import pytest

from eagle_eye.activity.collective_calls import Call
from eagle_eye.activity.last_collective import LastCollective, calls_told, last_collective, of_record, told_calls
from tests.fakes.flight_dumps import call, numbered, stuck


def entry(number: int, *, retired: bool, state: str = "scheduled", is_p2p: bool = False) -> dict[str, Any]:
    return {
        "collective_seq_id": number, "is_p2p": is_p2p, "op_id": number, "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_reduce",
        "retired": retired, "state": state,
    }  # fmt: skip


@pytest.mark.parametrize(("entries", "number", "pending"), [
    ([entry(1, retired=True), entry(2, retired=False), entry(3, retired=False)], 2, True),
    ([entry(1, retired=True), entry(2, retired=True)], 2, False),
    ([entry(1, retired=False, state="completed"), entry(2, retired=False, state="started")], 2, True),
    ([entry(1, retired=True), entry(9, retired=False, is_p2p=True)], 1, False),
])  # fmt: skip
def test_the_oldest_that_is_not_over_else_the_newest(entries: list[dict[str, Any]], number: int, pending: bool) -> None:
    found = of_record({"entries": entries})
    assert found is not None
    assert found._replace(calls="") == LastCollective("0 default_pg", number, "all_reduce", pending)
    assert str(found) == f"all_reduce {number} of group 0 default_pg"


@pytest.mark.parametrize("record", [{}, {"entries": []}, {"entries": [{"profiling_name": "gloo:all_reduce"}]}, {"entries": ["?"]}])
def test_what_another_torch_writes_is_not_guessed_at(record: dict[str, Any]) -> None:
    assert of_record(record) is None


@pytest.mark.parametrize(("configured", "size"), [({"0": {"ranks": "[0, 1, 2]"}}, 3), ({"0": {"ranks": "[]"}}, 0), ({"1": {"ranks": "[0]"}}, 0), ({"0": 3}, 0), (None, 0)])
def test_the_size_of_the_group_where_the_recorder_tells_it(configured: object, size: int) -> None:
    found = of_record({"pg_config": configured, "entries": [entry(1, retired=False)]})
    assert found is not None
    assert found.size == size


def test_nobody_listens() -> None:
    assert last_collective("/nowhere/0.sock.fr") is None


def test_what_was_passed_to_eight_collectives_of_its_group_around_it_is_told() -> None:
    calls = [call(sent=number) for number in range(1, 10)] + [stuck(sent=number) for number in range(10, 20)]
    found = of_record({"entries": numbered([*calls, *[call("gloo:barrier")] * 9, call(group="1"), call("send 0->1", group="1")])})
    assert found is not None
    assert {number: str(each) for number, each in calls_told(found.calls).items()} == {number: f"all_reduce of {number} Float" for number in range(8, 16)}


@pytest.mark.parametrize("calls", [
    [call("send 0->1"), call("coalesced"), stuck()],  # counted by those alone that take part
    [stuck(), stuck(sent=9, counts=0)],  # a batch
])  # fmt: skip
def test_twin_what_ranks_need_not_call_alike_is_not_told(calls: list[dict[str, Any]]) -> None:
    found = of_record({"entries": numbered(calls)})
    assert (found is not None and found.pending, found and found.calls) == (True, "")


@pytest.mark.parametrize("told", ["", "?", "1 all_reduce", "x all_reduce 1 1", "1 all_reduce 1 x Float; "])
def test_what_is_no_list_of_calls_is_none(told: str) -> None:
    assert calls_told(told) == {}


def test_calls_survive_their_text() -> None:
    calls = {7: Call("all_reduce", 4, 4, "BFloat16+Float"), 9: Call("barrier")}
    assert calls_told(told_calls(calls)) == calls
