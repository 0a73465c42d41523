"""Real dumps of torch's flight recorder, of a real job in which one rank passes another type, and then another one does not come."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

from eagle_eye.ports import free_port
from tests.fakes.torch_pickle import torch_pickle

RANK = """
import os, pathlib, pickle, threading, sys, time
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
rank, folder = int(sys.argv[1]), pathlib.Path(sys.argv[2])
dist.init_process_group("gloo", rank=rank, world_size=3)
for number in range(3):
    dist.all_reduce(torch.ones(4, dtype=torch.int32 if (rank, number) == (2, 2) else torch.float32))  # gloo adds up its bytes
def recorded(): return [(each["collective_seq_id"], each["retired"]) for each in pickle.loads(c10d._dump_fr_trace(True, False, False))["entries"]]
pending = []
if rank != 1:
    threading.Thread(target=lambda: dist.all_reduce(torch.ones(4)), daemon=True).start()
    pending = [(4, False)]
while recorded() != [(1, True), (2, True), (3, True), *pending]:  # gloo notes the end of one a moment after whoever waited for it has gone on
    time.sleep(0.01)
(folder / f"trace_{rank}").write_bytes(c10d._dump_fr_trace(True, False, False))
(folder / f"done_{rank}").touch()
while len(list(folder.glob("done_*"))) < 3:
    time.sleep(0.01)
os._exit(0)
"""


def test_the_rank_that_did_not_come_is_named_from_the_dumps_of_a_real_job(tmp_path: Path) -> None:
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    folder = tmp_path / "dumps"
    folder.mkdir()
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(folder)], env=environment) for rank in range(3)]
    try:
        assert [rank.wait(120.0) for rank in ranks] == [0, 0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    for done in folder.glob("done_*"):
        done.unlink()
    whole = (folder / "trace_0").read_bytes()
    assert torch_pickle(pickle.loads(whole)) == whole, "the tests' rings are no longer as torch writes them"
    command = [sys.executable, "-m", "eagle_eye.app.cli", "collectives", str(folder)]
    shown = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=60)
    found = json.loads(shown.stdout)
    assert found["ranks"] == [1]
    assert [(wait["operation"], wait["number"], wait["waiting"], wait["missing"]) for wait in found["waits"]] == [("all_reduce", 4, [0, 2], [1])]
    assert [(each["kind"], each["number"], each["ranks"]) for each in found["mismatches"]] == [("type", 3, [2])]
    assert "The others wait for rank 1. 2 others wait because of that." in subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
