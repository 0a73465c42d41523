"""Of a pickled ring only the entries are built that tell who waits; nothing of what the whole says of that is lost."""

import contextlib
import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye.activity import repeated_entries
from eagle_eye.activity.flight_dump import FlightDump, dump_of, read_dump
from eagle_eye.activity.plain_pickle import plain_content
from eagle_eye.activity.repeated_entries import without_repetition
from eagle_eye.errors import WireError
from tests.fakes.torch_pickle import torch_pickle

GROUPS = (("0", "default_pg"), ("5", "TENSOR_MODEL_PARALLEL_GROUP"))
SHAPES: tuple[list[list[int]], ...] = ([], [[]], [[3]], [[2048, 5120], [70_000, 1]])


def entry(number: int, group: int = 0, *, over: bool = True, p2p: bool = False, shapes: list[list[int]] | None = None, operation: str = "all_reduce", **more: object) -> dict[str, Any]:
    """As torch 2.13 writes it, in its order."""
    sizes = [[4]] if shapes is None else shapes
    types = ["Float"] * len(sizes)
    return {
        **more, "record_id": number, "pg_id": group, "process_group": GROUPS[group], "thread_name": "python", "thread_id": "140633037974400", "collective_seq_id": number, "p2p_seq_id": 0,
        "op_id": number, "profiling_name": f"nccl:{operation}", "time_created_ns": 1_795_770_370_995_575_799 + number, "input_sizes": sizes, "input_dtypes": types, "output_sizes": sizes,
        "output_dtypes": types, "state": "completed" if over else "started", "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": over, "timeout_ms": 600_000,
        "is_p2p": p2p,
    }  # fmt: skip


def record(entries: list[dict[str, Any]]) -> dict[str, Any]:
    configured = {name: {"name": name, "desc": text, "ranks": "[0, 1]"} for name, text in GROUPS}
    return {"version": "2.10", "pg_config": configured, "comm_lib_version": "2.29", "pg_status": {}, "entries": entries}


def read(data: bytes) -> FlightDump:
    with tempfile.NamedTemporaryFile(suffix="_0") as file:
        file.write(data)
        file.flush()
        return read_dump(Path(file.name))


entries = st.lists(
    st.builds(
        entry, st.sampled_from([*range(1, 300), 44_791, 100_000, 1 << 31, 1 << 40]), st.integers(0, 1), over=st.booleans(), p2p=st.booleans(), shapes=st.sampled_from(SHAPES),
        operation=st.sampled_from(["all_reduce", "broadcast", "send 0->1"]),
    ),
    max_size=40,
)  # fmt: skip


@given(entries, st.sampled_from([torch_pickle, pickle.dumps, lambda found: json.dumps(found).encode()]))
@settings(deadline=None, max_examples=60)
def test_of_every_group_the_oldest_pending_and_the_newest_collective_and_what_was_passed_to_each_are_found(ring: list[dict[str, Any]], write: Any) -> None:
    dump = read(write(record(ring)))
    assert dump.recorded == len(ring)
    whole = dump_of(record(ring))
    assert dump.rings == whole.rings
    assert dump.calls == whole.calls
    assert {each.group for each in dump.collectives} == {each["process_group"][0] for each in ring}
    for group, _ in GROUPS:
        of_group = [each for each in ring if each["process_group"][0] == group and not each["is_p2p"]]
        found = [each for each in dump.collectives if each.group == group and not each.peer_to_peer]
        assert max((each.number for each in found), default=0) == max((each["collective_seq_id"] for each in of_group), default=0)
        pending = [(each["collective_seq_id"], each["profiling_name"]) for each in of_group if not each["retired"]][:1]
        assert [(each.number, f"nccl:{each.operation}") for each in found if not each.over][:1] == pending


@pytest.mark.parametrize("numbers", [(5, 5, 5, 1 << 31), (5, 6, 7, 1 << 40), (1 << 31, 5, 6, 7)])
def test_a_number_that_no_collective_has_costs_itself_alone(numbers: tuple[int, ...]) -> None:
    ring = record([entry(number) for number in numbers])
    whole = dump_of(ring).rings["0", "nccl"]
    assert {key >> 32 for key in whole.keys} | whole.batches == {number for number in numbers if number < 10}
    assert read(torch_pickle(ring)).rings["0", "nccl"] == whole


def test_of_a_ring_of_torch_nearly_nothing_is_built() -> None:
    ring = [entry(number, number % 2, shapes=SHAPES[3]) for number in range(1, 2000)] + [entry(2000, over=False)]
    left, cut, _ = without_repetition(torch_pickle(record(ring)))
    content = plain_content(left)
    assert isinstance(content, dict)
    assert [each["record_id"] for each in content["entries"] if isinstance(each, dict)] == [1, 2, 3, 1998, 1999, 2000]  # after the first, of each group the first and the newest, and what writes a new text
    assert cut == 1994
    assert read(torch_pickle(record(ring))).rings == dump_of(record(ring)).rings


def test_stacks_and_durations_that_some_entries_have_are_cut_out_with_them() -> None:
    """With a number of more texts than a reference of one byte holds."""
    frames = [{"name": f"function_{number}", "filename": "/train.py", "line": number} for number in range(260)]
    ring = [entry(number, frames=frames, duration_ms=0.5) for number in range(1, 6)] + [entry(number, frames=frames) for number in range(6, 11)]
    assert without_repetition(torch_pickle(record(ring)))[1] == 7


def test_entries_on_either_side_of_a_new_text_are_cut_out() -> None:
    ring = [entry(number, operation="broadcast" if number == 50 else "all_reduce") for number in range(1, 100)]
    left, cut, _ = without_repetition(torch_pickle(record(ring)))
    content = plain_content(left)
    assert isinstance(content, dict)
    assert [each["record_id"] for each in content["entries"] if isinstance(each, dict)] == [1, 2, 50, 99]
    assert cut == 95


@pytest.mark.parametrize("write", [pickle.dumps, lambda found: pickle.dumps(found, protocol=2)])
def test_a_pickle_of_another_hand_stays_whole(write: Any) -> None:
    """Its containers are remembered, and what stands behind counts them."""
    data = write(record([entry(number) for number in range(1, 50)]))
    assert without_repetition(data)[:2] == (data, 0)


def test_no_expression_is_made_of_thousands_of_keys() -> None:
    """It would take minutes."""
    data = torch_pickle(record([entry(number, **{f"key_{key}": 0 for key in range(100)}) for number in range(1, 5)]))
    assert without_repetition(data)[:2] == (data, 0)


def test_a_ring_that_blocks_divide_is_read_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_entries, "BLOCK", 1000)
    left, cut, _ = without_repetition(torch_pickle(record([entry(number) for number in range(1, 100)])))
    content = plain_content(left)
    assert isinstance(content, dict)
    found = [each["record_id"] for each in content["entries"] if isinstance(each, dict)]
    assert (len(found) + cut, found[0], found[-1]) == (99, 1, 99)
    assert cut > 70


@given(st.data())
@settings(deadline=None, max_examples=50)
def test_a_torn_or_changed_ring_of_torch_is_read_in_part_or_refused(data: st.DataObject) -> None:
    whole = torch_pickle(record([entry(number, number % 2) for number in range(1, 12)]))
    place = data.draw(st.integers(0, len(whole) - 1))
    with contextlib.suppress(WireError):
        read(whole[:place] + data.draw(st.binary(max_size=3)) + whole[place + data.draw(st.integers(0, 2)) :])


def test_a_torn_dump_is_told_by_the_place_in_the_whole() -> None:
    whole = torch_pickle(record([entry(number) for number in range(1, 100)]))
    with pytest.raises(WireError, match="it ends too soon"):
        read(whole[:-40])
    at = len(whole) - 3
    with pytest.raises(WireError, match=rf"byte {at} is 0x63"):
        read(whole[:at] + b"cos\nsystem\n.")
