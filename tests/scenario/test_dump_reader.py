"""Dumps that several processes read at once."""

import multiprocessing
import pickle
from pathlib import Path

from eagle_eye.activity.dump_reader import BATCH, read_dumps
from eagle_eye.activity.flight_dump import FlightDump

ENTRY = {"process_group": ("0", "default_pg"), "collective_seq_id": 1, "state": "completed"}
LONG = 8192
"""Characters of a name: a batch is more than a pipe takes, so that no reader has ended before it is asked."""


def test_they_come_in_order_with_what_cannot_be_read_and_of_a_process_that_dies_this_one_reads_the_rest(tmp_path: Path) -> None:
    paths = [tmp_path / f"dump_{rank}" for rank in range(6 * BATCH)]
    for rank, path in enumerate(paths):
        path.write_bytes(pickle.dumps({"entries": [{**ENTRY, "profiling_name": f"nccl:all_reduce of {rank}".ljust(LONG)}]}))
    paths[40].write_bytes(b"torn")
    found = read_dumps(paths, processes=2)
    outcomes = [next(found)]
    readers = multiprocessing.active_children()
    readers[0].kill()
    outcomes += found
    assert [outcome.rank if isinstance(outcome, FlightDump) else str(outcome).partition(":")[0] for outcome in outcomes] == [*range(40), str(paths[40]), *range(41, len(paths))]
    assert len(readers) == 2
    assert not multiprocessing.active_children()
