"""Two ranks of DistributedDataParallel that run steps again: their training is the same bit by bit, and of two replicas the one that computes wrongly is named. Of FullyShardedDataParallel none is run again."""

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.errors import LedgerVersion
from eagle_eye.ledger import Ledger
from eagle_eye.types import Incident
from fakes.launchers import free_ports

SCRIPT = Path(__file__).with_name("replayed_ddp.py")
SHARDED = Path(__file__).with_name("replayed_fsdp.py")
STEPS, EVERY = 60, 4
DEADLINE_S = 240.0


def trained(folder: Path, replays: bool, script: Path = SCRIPT, options: tuple[str, ...] = ("0.02", str(EVERY))) -> list[dict[str, Any]]:
    """What both ranks have left."""
    folder.mkdir()
    port = str(free_ports(1)[0])
    ranks = []
    for rank in (0, 1):
        plain = {name: value for name, value in os.environ.items() if not name.startswith("EAGLE_EYE_")}
        group = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        ours = {"EAGLE_EYE_RING": str(folder / f"ring-{rank}"), "EAGLE_EYE_WORKER": f"run/a/{rank}", "EAGLE_EYE_REPLAYS": str(int(replays))}
        line = [sys.executable, str(script), str(folder / "said"), str(STEPS), *options]
        ranks.append(subprocess.Popen(line, env=plain | group | ours, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    for each in ranks:
        output, _ = each.communicate(timeout=DEADLINE_S)
        assert each.returncode == 0, output.decode()
    return [json.loads((folder / f"said.{rank}").read_text()) for rank in (0, 1)]


def test_two_ranks_train_the_same_bits_with_replays_and_without(tmp_path: Path) -> None:
    replayed, plain = trained(tmp_path / "with", True), trained(tmp_path / "without", False)
    assert [each["left"] for each in replayed] == [each["left"] for each in plain]
    assert len({each["left"] for each in replayed}) == 2, "each has its own random numbers"
    assert [each["runs"] for each in plain] == [0, 0]
    assert [each["runs"] for each in replayed] == [1 + 2 * (STEPS // EVERY - 1)] * 2, "none has ended them"
    assert [each["faults"] for each in (*replayed, *plain)] == [0] * 4


@pytest.mark.parametrize("kind", ["flat", "original", "inner"])
def test_a_sharded_model_is_refused_and_its_losses_are_the_same(tmp_path: Path, kind: str) -> None:
    """Its forward pass gathers the parameters, and only the hooks of its backward pass put them away: run again it would train on what is not there."""
    asked, plain = (trained(tmp_path / str(replays), replays, SHARDED, (kind,)) for replays in (True, False))
    assert asked == plain
    assert [(each["runs"], each["faults"], all(math.isfinite(loss) for loss in each["losses"])) for each in asked] == [(0, 0, True)] * 2


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """Of a run in which rank 1 computes wrongly."""
    line = [sys.executable, "-m", "eagle_eye.app.cli", "run", "--nproc-per-node", "2", "--state-dir", str(tmp_path / "state"), "--"]
    with (tmp_path / "output").open("wb") as output:
        run = subprocess.Popen([*line, sys.executable, str(SCRIPT), str(tmp_path / "said"), "100000", "0.02", "32", "broken"], stdout=output, stderr=output)
    try:
        yield tmp_path / "state"
        (tmp_path / "said.go").touch()
        assert run.wait(DEADLINE_S) == 0, (tmp_path / "output").read_text()[-3000:]
    finally:
        if run.poll() is None:
            run.terminate()
            run.wait(DEADLINE_S)


def incidents(state: Path) -> list[Incident]:
    if not (state / "ledger.sqlite").exists():
        return []
    with contextlib.suppress(LedgerVersion), contextlib.closing(Ledger.open(state / "ledger.sqlite", read_only=True)) as ledger:
        return [kept.incident for kept in ledger.incidents() if kept.incident.culprits]
    return []  # it is being made


def test_of_two_replicas_the_one_that_differs_from_itself_is_named(state: Path) -> None:
    until = time.monotonic() + DEADLINE_S
    while not incidents(state) and time.monotonic() < until:
        time.sleep(0.2)
    [incident] = incidents(state)
    assert (incident.cause, [culprit.entity.name.rpartition("/")[2] for culprit in incident.culprits]) == ("silent corruption", ["1"])
    assert any("ran a step again" in line.text for line in incident.evidence)
