"""Dumps of torch's flight recorder are read without running anything, and name who did not come."""

import contextlib
import json
import os
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_eye.activity.flight_dump import FlightDump, dump_of, read_dump
from eagle_eye.activity.missing_ranks import missing_ranks
from eagle_eye.activity.plain_pickle import plain_content
from eagle_eye.errors import WireError

WORLD = ("0", "default_pg")


def entry(number: int, group: tuple[str, str] = WORLD, *, over: bool = True, operation: str = "nccl:all_reduce", **more: object) -> dict[str, Any]:
    """As torch 2.13 writes it."""
    return {
        "record_id": number, "process_group": group, "collective_seq_id": number, "p2p_seq_id": 0, "profiling_name": operation, "time_created_ns": 1_700_000_000,
        "input_sizes": [[3, 4]], "input_dtypes": ["BFloat16"], "state": "completed" if over else "scheduled", "retired": over, "is_p2p": False, **more,
    }  # fmt: skip


def record(*entries: dict[str, Any], ranks: tuple[int, ...] = (0, 1, 2), groups: tuple[tuple[str, str, tuple[int, ...]], ...] = ()) -> dict[str, Any]:
    configured = {name: {"name": name, "desc": text, "ranks": json.dumps(members)} for name, text, members in (("0", "default_pg", ranks), *groups)}
    status = {"0": {"last_enqueued_collective": 9, "last_started_collective": -1, "last_completed_collective": 8}}
    return {"version": "2.10", "pg_config": configured, "pg_status": status, "entries": list(entries)}


def dumps(*records: dict[str, Any]) -> list[FlightDump]:
    return [dump_of(each, rank) for rank, each in enumerate(records)]


# --- reading


@pytest.mark.parametrize("write", [pickle.dumps, lambda found: json.dumps(found).encode()])
def test_a_pickle_and_its_json_say_the_same(tmp_path: Path, write: Any) -> None:
    (tmp_path / "trace_7").write_bytes(write(record(entry(1), entry(2, over=False))))
    dump = read_dump(tmp_path / "trace_7")
    assert (dump.rank, dump.version, dump.groups["0"].ranks, dump.progress["0"].completed) == (7, "2.10", (0, 1, 2), 8)
    assert [(each.group, each.number, each.operation, each.over, each.bytes) for each in dump.collectives] == [("0", 1, "all_reduce", True, 24), ("0", 2, "all_reduce", False, 24)]


@pytest.mark.parametrize("write", [pickle.dumps, lambda found: json.dumps(found).encode()])
def test_a_dump_of_torch_2_2_and_2_3_is_read(tmp_path: Path, write: Any) -> None:
    """Dump versions 1.1 and 1.4: groups are numbers, all operations of a group are counted together, and none says that it is between two ranks."""
    entries = [
        {"record_id": 0, "pg_id": 3, "seq_id": 7, "op_id": 1, "profiling_name": name, "time_created_ns": 5, "input_sizes": [[2]], "state": "started", "retired": False}
        for name in ("nccl:all_reduce", "nccl:send 0->1")
    ]
    (tmp_path / "nccl_trace_rank_5").write_bytes(write({"version": "1.4", "pg_config": {3: [4, 5]}, "entries": entries}))
    dump = read_dump(tmp_path / "nccl_trace_rank_5")
    assert (dump.rank, dump.version, dump.groups["3"].ranks) == (5, "1.4", (4, 5))
    assert [(each.group, each.number, each.operation, each.over, each.peer_to_peer) for each in dump.collectives] == [("3", 7, "all_reduce", False, False), ("3", 7, "send 0->1", False, True)]


class Attack:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_bytes(pickle.dumps({"entries": [Attack(tmp_path / "proof")]}))
    with pytest.raises(WireError, match=r"dump_0: neither JSON nor a pickle of plain containers"):
        read_dump(tmp_path / "dump_0")
    assert not (tmp_path / "proof").exists()


def test_an_empty_file_is_told_as_that(tmp_path: Path) -> None:
    """As NCCL Inspector leaves it for a communicator of one rank."""
    (tmp_path / "host-pid7.log").touch()
    with pytest.raises(WireError, match="it is empty"):
        read_dump(tmp_path / "host-pid7.log")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_of_any_version_is_read(protocol: int) -> None:
    content: dict[object, Any] = {"text": ["", "a" * 300, "é"], 3: [0, 255, 65535, -1, 1 << 31, -(1 << 70), 1.5, True, False, None], "empty": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}]}
    content["many"] = [str(each) for each in range(300)]  # more than a remembered number of one byte
    assert plain_content(pickle.dumps(content, protocol=protocol)) == content


@pytest.mark.parametrize("index", [b"\xff\xff\xff\x7f", b"ank\x05"])
def test_a_torn_number_does_not_ask_for_gigabytes(index: bytes) -> None:
    """The standard reader makes room for as many objects as it says."""
    with pytest.raises(WireError, match="torn at byte 3: it remembers more objects than it has bytes"):
        plain_content(b"\x80\x02]r" + index + b".")


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"plain text", b'{"entries": 3}', pickle.dumps([1]), pickle.dumps({"entries": {}})])
def test_what_is_no_dump_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "dump_0").write_bytes(content)
    with pytest.raises(WireError, match="dump_0: "):
        read_dump(tmp_path / "dump_0")


def test_a_fifo_and_a_missing_file_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dump_0")
    for name in ("dump_0", "dump_1"):
        with pytest.raises(WireError, match=name):
            read_dump(tmp_path / name)


@given(st.data())
def test_a_torn_or_changed_dump_is_read_in_part_or_refused(data: st.DataObject) -> None:
    whole = pickle.dumps(record(entry(1), entry(2, over=False)))
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = whole[:place] + data.draw(st.binary(max_size=3)) + whole[place + data.draw(st.integers(0, 2)) :]
    with tempfile.NamedTemporaryFile(suffix="_0") as file:
        file.write(changed)
        file.flush()
        with contextlib.suppress(WireError):
            read_dump(Path(file.name))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)))
def test_entries_of_any_shape_are_left_out(junk: object) -> None:
    found = dump_of({"entries": [entry(1), junk], "pg_config": {"a": junk}, "pg_status": {"0": junk}})
    assert found.collectives[0].number == 1


# --- who is missing


def test_fault_a_rank_that_did_not_enter_the_collective_is_named() -> None:
    waiting, missing = record(entry(1), entry(2, over=False)), record(entry(1))
    found = missing_ranks(dumps(waiting, missing, waiting))
    assert found.ranks == (1,)
    assert [(wait.operation, wait.number, wait.waiting, wait.missing) for wait in found.waits] == [("all_reduce", 2, (0, 2), (1,))]


def test_twin_ranks_that_wait_at_the_same_place_accuse_nobody() -> None:
    waiting = record(entry(1), entry(2, over=False))
    assert missing_ranks(dumps(waiting, waiting, waiting)).ranks == ()


def test_twin_a_healthy_job_accuses_nobody() -> None:
    found = missing_ranks(dumps(record(entry(1), entry(2)), record(entry(1)), record(entry(1), entry(2))))
    assert (found.ranks, found.waits) == ((), ())


def test_who_waits_for_another_is_not_the_one() -> None:
    """Rank 0 waits for rank 1 in the world; rank 1 waits for rank 2 in their pair: rank 2 is the one."""
    pair = ("5", "pair")
    groups = (("5", "pair", (1, 2)),)
    zero = record(entry(1), entry(2, over=False), ranks=(0, 1))
    one = record(entry(1), entry(7, pair, over=False), ranks=(0, 1), groups=groups)
    two = record(entry(6, pair), ranks=(0, 1), groups=groups)
    assert missing_ranks(dumps(zero, one, two)).ranks == (2,)


def test_a_gpu_that_does_not_finish_what_the_others_have_finished_is_the_one() -> None:
    """It has enqueued less than the others wait for, and waits itself in what they have behind them."""
    stuck = record(entry(4, over=False), entry(5, over=False))
    others = record(entry(4), entry(5), entry(6, over=False))
    assert missing_ranks(dumps(others, stuck, others)).ranks == (1,)


def test_where_all_wait_for_a_rank_without_a_dump_that_one_is_named() -> None:
    waiting = record(entry(1), entry(2, over=False))
    found = missing_ranks(dumps(waiting, waiting))
    assert (found.ranks, found.without_dump) == ((2,), (2,))


def test_groups_without_a_configuration_belong_to_those_who_used_them() -> None:
    """As gloo's dumps are."""
    waiting, missing = record(entry(1), entry(2, over=False)), record(entry(1))
    for each in (waiting, missing):
        each["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
    assert missing_ranks(dumps(waiting, missing)).ranks == (1,)


def test_lists_among_the_entries_of_a_file_are_not_taken_for_what_was_left_out_of_it() -> None:
    found = dump_of({"entries": [entry(1), [["0"], "nccl:broadcast", "input_sizes", [[9]]]]}, 0)
    assert [list(ring.keys) for ring in found.rings.values()] == [[1 << 32 | number for number in found.calls]]
    assert [str(each) for each in found.calls.values()] == ["all_reduce of 12 BFloat16"]


def test_a_send_that_nobody_took_is_no_collective() -> None:
    """The others are not 28 collectives behind; who is to take it is waited for."""
    sender = record(entry(1), entry(29, operation="nccl:send 0->1", over=False, is_p2p=True))
    found = missing_ranks(dumps(sender, record(entry(1)), record(entry(1))))
    assert (found.ranks, found.waits) == ((1,), ())
