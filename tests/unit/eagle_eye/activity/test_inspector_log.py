"""NCCL Inspector's logs of several ranks, added up; and what is no such log."""

import json
import math
import os
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye.activity.inspector_log import InspectorSummary, is_inspector_log, measured_operation
from eagle_eye.app.commands.collectives import command
from eagle_eye.errors import WireError
from fakes.inspector_log import inspector_line


def test_a_line_of_a_collective() -> None:
    one = measured_operation(inspector_line(rank=2, group="default_pg", us=61974, size=1 << 34, bus_gbs=485.1).encode())
    assert one == ("0x9e", "default_pg", 2, 4, "AllReduce", False, 1 << 34, 0.061974, 485.1e9)


def test_a_line_of_a_message_from_one_to_one() -> None:
    one = measured_operation(inspector_line(operation="Send", peer=3).encode())
    assert one is not None
    assert (one.operation, one.peer_to_peer, one.group) == ("Send", True, "")


def test_a_time_with_a_fraction_and_a_record_of_what_was_dropped() -> None:
    """Of later formats (v4.1 to v5.1)."""
    one = measured_operation(b'{"header":{"id":"0xad","rank":1,"n_ranks":3,"nnodes":3},"metadata":{"inspector_output_format_version":"v4.0","pid":48},"coll_perf":'
                             b'{"coll":"AllReduce","coll_sn":8995,"coll_msg_size_bytes":2360832,"coll_exec_time_us":5663.0,"coll_busbw_gbs":0.55}}')  # fmt: skip
    assert one is not None
    assert (one.rank, one.seconds) == (1, 0.005663)
    assert measured_operation(b'{"header":{"id":"0xad","rank":1},"metadata":{"inspector_output_format_version":"v4.3"},"dump_stats":{"coll_records":1024}}') is None


@pytest.mark.parametrize("bus_gbs", ["nan", -1.0, 1e305, 2e6])
def test_a_bandwidth_that_cannot_be_is_not_told(bus_gbs: float | str) -> None:
    one = measured_operation(inspector_line(bus_gbs=bus_gbs).encode())
    assert one is not None
    assert math.isnan(one.bus_bytes_per_s)


def write(folder: Path, rank: int, *lines: str) -> Path:
    path = folder / f"h-pid{100 + rank}.log"
    path.write_text("".join(lines))
    return path


def test_fault_the_rank_that_comes_last_is_told_by_its_short_time(tmp_path: Path) -> None:
    """The others' kernels wait for it."""
    summary = InspectorSummary()
    for rank in range(4):
        summary.read(write(tmp_path, rank, *(inspector_line(rank=rank, number=number, us=1000 if rank == 2 else 9000, bus_gbs=50.0) for number in range(3))))
    [found] = summary.operations()
    assert (found.operation, found.size, found.ranks, found.count, found.mean_bytes, found.bus_bytes_per_s) == ("AllReduce", 4, (0, 1, 2, 3), 3, float(1 << 20), 50e9)
    assert found.mean_s == pytest.approx(0.007)
    assert (found.last_rank, found.last_rank_s) == (2, pytest.approx(0.001))


def test_twin_ranks_that_take_about_as_long_wait_for_nobody(tmp_path: Path) -> None:
    summary = InspectorSummary()
    for rank in range(4):
        summary.read(write(tmp_path, rank, inspector_line(rank=rank, us=1000 + 300 * rank)))
    assert [found.last_rank for found in summary.operations()] == [None]


def test_operations_that_took_the_most_time_come_first(tmp_path: Path) -> None:
    summary = InspectorSummary()
    summary.read(write(tmp_path, 0, inspector_line(us=10), inspector_line(operation="AllGather", us=90), inspector_line(communicator="0x1", us=50)))
    assert [(found.operation, found.communicator) for found in summary.operations()] == [("AllGather", "0x9e"), ("AllReduce", "0x1"), ("AllReduce", "0x9e")]


def test_fault_lines_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    strange = ["{\n", "[1]\n", '{"header": {"id": "x"}}\n', inspector_line().replace("coll_sn", "number"), inspector_line()[:80]]
    summary = InspectorSummary()
    summary.read(write(tmp_path, 0, inspector_line(), *strange))
    assert (summary.lines, summary.unreadable, len(list(summary.operations()))) == (6, 5, 1)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_fault_a_torn_or_changed_line_is_read_or_refused(draw: st.DataObject) -> None:
    whole = inspector_line().encode()
    cut = draw.draw(st.integers(0, len(whole)))
    with suppress(ValueError):
        measured_operation(whole[:cut] + draw.draw(st.binary(max_size=4)) + whole[cut + draw.draw(st.integers(0, 8)) :])


def test_fault_a_line_nested_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        measured_operation(b'{"header":' * 5000)


def test_what_is_no_log_of_the_inspector(tmp_path: Path) -> None:
    (tmp_path / "dump").write_text('{"entries": []}')
    os.mkfifo(tmp_path / "fifo")
    assert not any(is_inspector_log(tmp_path / name) for name in ("dump", "fifo", "none"))
    assert is_inspector_log(write(tmp_path, 0, inspector_line()))
    with pytest.raises(WireError, match="no regular file"):
        InspectorSummary().read(tmp_path / "fifo")


def test_the_command_shows_what_was_measured(tmp_path: Path) -> None:
    for rank in range(4):
        write(tmp_path, rank, inspector_line(rank=rank, group="default_pg", us=1000 if rank == 2 else 9000), "torn\n")
    shown = CliRunner().invoke(command, [str(tmp_path)])
    assert shown.exit_code == 0
    assert "rank 2: 1 ms" in shown.output
    assert "left out: 4 of 8 lines of NCCL Inspector" in shown.output
    told = json.loads(CliRunner().invoke(command, [str(tmp_path), "--json"]).stdout)
    assert [(each["operation"], each["group"], each["last_rank"]) for each in told["operations"]] == [("AllReduce", "default_pg", 2)]


def test_the_command_without_anything_says_what_it_looks_for(tmp_path: Path) -> None:
    shown = CliRunner().invoke(command, [str(tmp_path)])
    assert (shown.exit_code, "no log of NCCL Inspector" in shown.output) == (1, True)
