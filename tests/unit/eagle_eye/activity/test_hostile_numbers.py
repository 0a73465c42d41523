"""A number that no writer means (infinity, hundreds of digits, a list in its place) in what other programs write: it is left out or the file refused by name, and the other ranks are judged all the same."""

import contextlib
import json
import math
import pickle
import re
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.nccl.ras_json import read_json
from collectors.nccl.ras_report import RasError
from collectors.nccl.ras_text import read_text
from collectors.worker.ring_sizes import ring_sizes
from eagle_eye.activity.dump_reader import read_dumps
from eagle_eye.activity.flight_dump import FlightDump, dump_of
from eagle_eye.activity.inspector_log import InspectorSummary
from eagle_eye.activity.missing_ranks import missing_ranks
from eagle_eye.activity.python_stacks import parse
from eagle_eye.app.commands.collectives import command
from eagle_eye.errors import WireError
from fakes.nccl_ras import communicator, json_report, member, text_report
from tests.fakes.torch_pickle import torch_pickle

MARK = "@here@"
AS_JSON = ("1e999", "-1e999", "Infinity", "NaN", "9" * 400, "9" * 5000, "-1", "1.5", '""', '"9e999"', '"Infinity"', "null", "true", "[]", "{}", "[[[[[[]]]]]]", '"[1e999]"', "9223372036854775808")
AS_PYTHON: tuple[Any, ...] = (
    float("inf"), -float("inf"), float("nan"), 10**400, -(10**400), 1 << 63, -1, 1.5, "", "9" * 5000, "Infinity", None, True, [], {}, [[[[[]]]]], "[1e999]", ["1e999"], ("a", ("b",)),
)  # fmt: skip


def dump(number: int = 9, *, over: bool = False) -> dict[str, Any]:
    """A rank that is in its last collective, or over with it."""
    entries = [
        {
            "record_id": each, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": each, "p2p_seq_id": 0, "op_id": each, "profiling_name": "nccl:all_reduce",
            "time_created_ns": 1_700_000_000_000_000_000 + each, "input_sizes": [[4, 2]], "input_dtypes": ["Float"], "output_sizes": [[4, 2]], "output_dtypes": ["Float"],
            "state": "completed" if each < number or over else "scheduled", "retired": each < number or over, "is_p2p": False,
        }
        for each in range(1, number + 1)
    ]  # fmt: skip
    status = {"0": {"last_enqueued_collective": number, "last_started_collective": number, "last_completed_collective": number - 1 + over}}
    return {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}, "1": {"name": "1", "ranks": [0, 1]}}, "pg_status": status, "entries": entries}


def places_of(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of each value that holds no other."""
    pairs: Any = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    if not pairs:
        yield path
    for key, value in pairs:
        yield from places_of(value, (*path, key))


def with_value(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    holder = content
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return content


def with_json(content: Any, path: tuple[Any, ...], written: str) -> bytes:
    return json.dumps(with_value(content, path, MARK)).replace(f'"{MARK}"', written).encode()


def files(folder: Path, odd: bytes) -> list[Path]:
    """Ranks 0 and 1 wait in collective 9, rank 2 has not come to it; the file of rank 1 is the odd one, and there is another of rank 3."""
    contents = (json.dumps(dump()).encode(), odd, json.dumps(dump(8, over=True)).encode())
    paths = [folder / f"trace_{rank}" for rank in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    return paths


def judged(odd: bytes) -> set[int]:
    with tempfile.TemporaryDirectory() as folder:
        read = list(read_dumps(files(Path(folder), odd)))
    assert all(isinstance(each, FlightDump) or "trace_1" in str(each) for each in read)
    found = missing_ranks([each for each in read if isinstance(each, FlightDump)])
    msgspec.json.encode(found)
    return set(found.ranks)


PLACES = list(places_of(dump()))


@given(st.sampled_from(PLACES), st.sampled_from(AS_JSON))
@settings(deadline=None, max_examples=200)
def test_fault_a_dump_in_json_with_such_a_number_costs_no_other_rank_its_verdict(path: tuple[Any, ...], written: str) -> None:
    assert 0 not in judged(with_json(dump(), path, written))


@given(st.sampled_from(PLACES), st.sampled_from(AS_PYTHON), st.sampled_from([pickle.dumps, torch_pickle]))
@settings(deadline=None, max_examples=200)
def test_fault_a_pickle_with_such_a_number_costs_no_other_rank_its_verdict(path: tuple[Any, ...], value: Any, write: Any) -> None:
    try:
        odd = write(with_value(dump(), path, value))
    except (AssertionError, TypeError, ValueError, OverflowError, KeyError, struct.error):  # torch's way has no such value
        odd = pickle.dumps(with_value(dump(), path, value))
    assert 0 not in judged(odd)


@pytest.mark.parametrize("value", [float("inf"), 10**400])
def test_fault_a_progress_or_rank_that_cannot_be_is_left_out_and_the_rest_is_read(value: Any) -> None:
    found = dump_of(with_value(with_value(dump(), ("pg_status", "0", "last_enqueued_collective"), value), ("pg_config", "1", "ranks"), [0, value]), 1)
    assert (found.progress, found.groups["1"].ranks, found.groups["0"].ranks, found.recorded) == ({}, (), (0, 1, 2), 9)


@pytest.mark.parametrize("written", ["1e999", "9" * 400, "Infinity"])
def test_fault_an_entry_with_a_number_that_cannot_be_costs_itself_alone(written: str) -> None:
    assert dump_of(json.loads(with_json(dump(), ("entries", 3, "collective_seq_id"), written)), 0).recorded == 8


def test_fault_sizes_that_no_memory_holds_are_not_known() -> None:
    content = with_value(dump(), ("entries", 8, "input_sizes"), [[10**400] * 64])
    found = dump_of(content, 0)
    assert found.collectives[-1].bytes == 0
    assert {call.sent for call in found.calls.values()} == {8, -1}


def test_fault_what_nobody_has_foreseen_in_one_file_is_named_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> FlightDump:
        raise OverflowError("cannot convert")

    paths = files(tmp_path, b"{}")
    monkeypatch.setattr("eagle_eye.activity.flight_dump.dump_of", fail)
    [first, *_] = read_dumps(paths)
    assert isinstance(first, WireError)
    assert "trace_0: no dump of a flight recorder: OverflowError: cannot convert" in str(first)


def test_fault_the_command_judges_the_other_ranks(tmp_path: Path) -> None:
    files(tmp_path, with_json(dump(), ("pg_status", "0", "last_enqueued_collective"), "1e999"))
    shown = CliRunner().invoke(command, [str(tmp_path), "--json"])
    assert (shown.exit_code, json.loads(shown.stdout)["ranks"]) == (0, [2])


# --- what NCCL itself tells


def ras() -> Any:
    return json.loads(json_report(communicator("0x27a079b828ff1a75", [member(rank, {"AllReduce": 6650 - (rank == 2)}) for rank in range(3)])))


@given(st.sampled_from(list(places_of(ras()))), st.sampled_from(AS_JSON))
@settings(deadline=None, max_examples=200)
def test_fault_a_report_of_ras_in_json_is_read_or_refused(path: tuple[Any, ...], written: str) -> None:
    with contextlib.suppress(RasError):
        msgspec.json.encode(read_json(with_json(ras(), path, written)))


LAGGING = """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 100 on node 172.16.64.210

"""
TEXT = text_report(["    0         1         1         8         8         8   RUNNING  MISMATCH"], warnings=LAGGING)


@given(st.sampled_from(list(re.finditer(rb"\d+", TEXT))), st.sampled_from(AS_JSON))
@settings(deadline=None, max_examples=200)
def test_fault_a_report_of_ras_in_text_is_read_or_refused(number: re.Match[bytes], written: str) -> None:
    with contextlib.suppress(RasError):
        msgspec.json.encode(read_text(TEXT[: number.start()] + written.encode() + TEXT[number.end() :]))


def inspected() -> Any:
    return {
        "header": {"id": "0xad", "rank": 1, "n_ranks": 3, "comm_name": "0"},
        "coll_perf": {"coll": "AllReduce", "coll_sn": 8995, "coll_msg_size_bytes": 2360832, "coll_exec_time_us": 5663.0, "coll_busbw_gbs": 0.55},
    }


@given(st.lists(st.tuples(st.sampled_from(list(places_of(inspected()))), st.sampled_from([*AS_JSON, "1e305", "1e15"])), min_size=1, max_size=6))
@settings(deadline=None, max_examples=200)
def test_fault_a_line_of_the_inspector_is_added_up_or_counted(changes: list[tuple[tuple[Any, ...], str]]) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.writelines(with_json(inspected(), path, written) + b"\n" for path, written in changes)
        file.flush()
        summary = InspectorSummary()
        summary.read(Path(file.name))
    assert summary.lines == len(changes)
    msgspec.json.encode(list(summary.operations()))


@given(st.sampled_from(list(places_of({"entries": [{**dump()["entries"][0], "duration_ms": 2.5}]}))), st.sampled_from([*AS_JSON, "1e308", "-1e308"]))
@settings(deadline=None, max_examples=200)
def test_fault_what_a_living_recorder_answers_is_added_up_or_refused(path: tuple[Any, ...], written: str) -> None:
    ring = {"entries": [{**each, "duration_ms": 1.0} for each in dump()["entries"]]}
    with contextlib.suppress(ValueError):
        found = ring_sizes([with_json(ring, path, written)], {"0": 3})
        assert all(math.isfinite(number) for sizes in found.values() for number in (sizes.mean_bytes, sizes.bus_s, sizes.bus_bytes))


STACKS = [{"pid": 7, "thread_id": 1, "os_thread_id": 7, "thread_name": "MainThread", "owns_gil": True, "frames": [{"name": "main", "filename": "train.py", "line": 3}]}]


@given(st.sampled_from(list(places_of(STACKS))), st.sampled_from(AS_JSON))
@settings(deadline=None, max_examples=100)
def test_fault_stacks_as_py_spy_prints_them_are_read_or_none(path: tuple[Any, ...], written: str) -> None:
    parse(with_json(json.loads(json.dumps(STACKS)), path, written), 7)
