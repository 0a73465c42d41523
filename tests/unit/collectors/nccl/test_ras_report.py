"""RAS's report in both of its formats: the same ranks stand out, and a torn or strange one is named."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.nccl.ras_json import read_json
from collectors.nccl.ras_report import RasCommunicator, RasError
from collectors.nccl.ras_text import read_text
from fakes.nccl_ras import absent, communicator, json_report, member, text_report

NAME = "0x27a079b828ff1a75"
LAGGING = """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 100 on node 172.16.64.210
  Rank 2 -- GPU 2 (NVML 5) managed by process 102 on node 172.16.64.210

"""
SILENT = """\
INCOMPLETE
  Missing communicator data from 1 job process
  Process 105 on node 172.16.64.210 managing GPU 5

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 5 -- GPU 5 managed by process 105 on node 172.16.64.210

"""
DEAD = SILENT.replace("INCOMPLETE\n  Missing communicator data from 1 job process", "DEAD\n  1 job process is considered dead (unreachable via the RAS network)", 1)
ROW = "    0         1         1         8         8         8   RUNNING  MISMATCH"


def only(data: bytes) -> RasCommunicator:
    [found] = (read_json if data.startswith(b"{") else read_text)(data).communicators
    return found


def lagging_json() -> bytes:
    return json_report(communicator(NAME, [member(rank, {"AllReduce": 6650 - (rank in (0, 2))}) for rank in range(8)]))


@pytest.mark.parametrize("data", [text_report([ROW], warnings=LAGGING), lagging_json()], ids=["text", "json"])
def test_fault_ranks_that_lag(data: bytes) -> None:
    found = only(data)
    assert (found.name, found.size, found.absent, found.failed) == (NAME, 8, (), ())
    [lag] = found.lags
    assert (lag.operation, lag.newest, lag.count) == ("AllReduce", 6650, 2)
    assert [(each.process.rank, each.process.pid, each.count) for each in lag.ranks] == [(0, 100, 6649), (2, 102, 6649)]


def test_fault_one_rank_alone_is_named_in_its_own_line() -> None:
    """As it is written where a rank is the only one with its count; and so is who is ahead, who does not lag."""
    lines = (
        "#0-0 (9e) MISMATCH\n  Communicator ranks have different AllGather operation counts\n  6 ranks have launched up to operation 7\n"
        "  Rank 3 has not launched any operations -- GPU 3 managed by process 103 on node h\n  Rank 1 has launched up to operation 6 -- [process information not found]\n\n"
        "  Communicator ranks have different Broadcast operation counts\n  7 ranks have launched up to operation 2\n"
        "  Rank 4 has launched up to operation 3 -- GPU 4 managed by process 104 on node h\n\n"
    )
    gathers, broadcasts = only(text_report([ROW], warnings=lines)).lags
    assert [(each.process.rank, each.process.pid, each.count) for each in gathers.ranks] == [(3, 103, 0), (1, 0, 6)]
    assert (broadcasts.newest, broadcasts.count, broadcasts.ranks) == (3, 7, ())


@pytest.mark.parametrize(("data", "dead"), [
    (text_report([ROW], errors=SILENT), False),
    (text_report([ROW], errors=DEAD), True),
    (json_report(communicator(NAME, [member(rank, {}) for rank in range(8) if rank != 5], [absent(5)])), False),
    (json_report(communicator(NAME, [member(rank, {}) for rank in range(8) if rank != 5], [absent(5, dead=True)])), True),
], ids=["text", "text dead", "json", "json dead"])  # fmt: skip
def test_fault_a_rank_that_does_not_answer(data: bytes, dead: bool) -> None:
    found = only(data)
    assert (found.size, found.absent_count, found.lags) == (8, 1, ())
    [rank] = found.absent
    assert (rank.process.rank, rank.process.pid, rank.process.gpu, rank.unresponsive, rank.dead) == (5, 105, 5, True, dead)


def test_absent_and_lagging_ranks_of_a_communicator_are_told_together() -> None:
    found = only(text_report([ROW], errors=SILENT, warnings=LAGGING))
    assert (len(found.absent), len(found.lags)) == (1, 1)


HEALTHY = "    0         8         4         1         4        32   RUNNING      OK\n"


@pytest.mark.parametrize(("kept", "says"), [(HEALTHY, []), (SILENT, [(1, 0)]), (LAGGING, [(0, 1)])], ids=["table", "errors", "warnings"])
def test_the_part_of_a_report_that_somebody_kept_is_read(kept: str, says: list[tuple[int, int]]) -> None:
    """As the guide of NCCL shows them."""
    found = read_text(f"Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n{kept}".encode()).communicators
    assert [(each.absent_count, len(each.lags)) for each in found] == says


def test_the_words_of_the_first_releases() -> None:
    """NCCL 2.24 and 2.25 give numbers of ranks alone, and count all operations together."""
    errors = "#0-0 (cf264af53edbe986) INCOMPLETE\n  Missing communicator data from 2 ranks\n  The missing ranks: 20,21\n\n"
    warnings = LAGGING.replace("AllReduce", "collective").replace("27a079b828ff1a75", "cf264af53edbe986")
    found = only(text_report([ROW], errors, warnings))
    assert ([each.process.rank for each in found.absent], found.lags[0].operation) == ([20, 21], "")


@pytest.mark.parametrize("data", [
    text_report([ROW], errors="#0-0 (27) ERROR\n  Asynchronous error on 1 rank\n  Rank 6 reported Remote process error -- GPU 6 managed by process 106 on node h\n\n"),
    text_report([ROW], errors="#0-0 (27) ERROR\n  Asynchronous errors on 2 ranks\n  2 ranks reported Remote process error\n  Rank 6 -- [process information not found]\n\n"),
    json_report(communicator("0x27", [member(5, {}), member(6, {}, async_error=6)])),
    json_report(communicator("0x27", [member(5, {}, init_state=7), member(6, {}, init_state=6)])),
], ids=["text", "text of several", "json", "json of the start"])  # fmt: skip
def test_fault_a_rank_in_an_error_state(data: bytes) -> None:
    assert [(each.process.rank, each.error) for each in only(data).failed] == [(6, "Remote process error")]


def test_twin_ranks_with_another_status_do_not_lag() -> None:
    lines = (
        "#0-0 (9e17999afaa87dbb) MISMATCH\n  Communicator ranks have different status\n  26 ranks have status FINALIZE\n  4 ranks have status RUNNING\n"
        "  Rank 0 -- GPU 0 managed by process 507285 on node 172.16.64.210\n  Rank 9 has status NOCOMM -- GPU 1 managed by process 9 on node h\n\n"
    )
    found = only(text_report([ROW], warnings=lines))
    assert (found.lags, found.failed) == ((), ())
    assert [(each.process.rank, each.unresponsive) for each in found.absent] == [(9, False)]


@pytest.mark.parametrize("data", [text_report([ROW]), json_report(communicator(NAME, [member(rank, {"AllReduce": 7}) for rank in range(8)])), json_report()], ids=["text", "json", "none"])
def test_twin_in_a_healthy_job_nobody_stands_out(data: bytes) -> None:
    assert not any(each.stands_out for each in (read_json if data.startswith(b"{") else read_text)(data).communicators)


def test_fields_that_are_added_or_left_out_later_cost_nothing() -> None:
    found = read_json(b'{"communicators": [{"hash": "0x1", "ranks": [{"rank": 3, "new": [1]}, {"rank": 4}], "missing_ranks": [{"rank": 5}], "more": {}}], "x": null}')
    assert [each.process.rank for each in found.communicators[0].absent] == [5]


TEXT, JSON = text_report([ROW], DEAD, LAGGING), json_report(communicator(NAME, [member(0, {"AllReduce": 3}), member(1, {})], [absent(2, dead=True)]))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([TEXT, JSON]), st.data())
def test_fault_a_torn_or_changed_report_is_read_or_named(whole: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(whole)))
    data = whole[:cut] + draw.draw(st.binary(max_size=4)) + whole[cut + draw.draw(st.integers(0, 8)) :]
    for read in (read_json, read_text):
        with suppress(RasError):
            read(data)


@pytest.mark.parametrize("data", [TEXT[: TEXT.index(b"Group ")], JSON[:-1], b"", b"[]", b"{}", b'{"communicators": [{"hash": "x"}]}', b"[" * 100_000, b"ERROR: Unknown command STATUS\n"])
def test_fault_what_is_no_whole_report_is_refused(data: bytes) -> None:
    for read in (read_json, read_text):
        with pytest.raises(RasError):
            read(data)
