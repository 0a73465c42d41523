"""The record that torch 2.13 gives of a rank's collectives."""

from typing import Any

import pytest

from eagle_eye.activity.last_collective import LastCollective, last_collective, of_record


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
    assert found == LastCollective("0 default_pg", number, "all_reduce", pending)
    assert str(found) == f"all_reduce {number} of group 0 default_pg"


@pytest.mark.parametrize("record", [{}, {"entries": []}, {"entries": [{"profiling_name": "gloo:all_reduce"}]}, {"entries": ["?"]}])
def test_what_another_torch_writes_is_not_guessed_at(record: dict[str, Any]) -> None:
    assert of_record(record) is None


def test_nobody_listens() -> None:
    assert last_collective("/nowhere/0.sock.fr") is None
