"""The example as it is: the same loss whoever does the work, and after a restart as without one."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "train_gpt.py"
SMALL = ["--layers", "1", "--width", "32", "--context", "32", "--evaluate-every", "10"]
STEPS = 21


def losses(output: str) -> dict[str, float]:
    """`step N` and `step N held-out` → loss."""
    found = re.findall(r"^(step \d+(?: held-out)?) loss (\S+)$", output, re.MULTILINE)
    return {where: float(loss) for where, loss in found}


def train(launcher: Any, world: int, *arguments: str) -> str:
    """Run on `world` ranks with torchrun's environment and no launcher's; returns what rank 0 printed."""
    launcher.tell("store", host="127.0.0.1")
    store = launcher.hear("stored")
    env = {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store["port"]),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    slots = [f"gpt-{store['port']}-{rank}" for rank in range(world)]
    command = [sys.executable, str(SCRIPT), *SMALL, *arguments]
    pids = [launcher.fork(*command, slot=slot, RANK=str(rank), **env) for rank, slot in enumerate(slots)]
    statuses = [launcher.hear("exited", pid=pid)["status"] for pid in pids]
    assert statuses == [0] * world, launcher.words(slots[0])
    launcher.tell("kill", pid=store["pid"])
    launcher.hear("exited", pid=store["pid"])
    return str(launcher.words(slots[0]))


@pytest.fixture(scope="module")
def alone(torch_launcher: Any) -> dict[str, float]:
    return losses(train(torch_launcher, 1, "--steps", str(STEPS)))


def test_the_loss_falls(alone: dict[str, float]) -> None:
    assert alone["step 20"] < alone["step 0"] - 0.5
    assert alone["step 19 held-out"] < alone["step 9 held-out"]


@pytest.mark.parametrize("world", [2, 3])
def test_any_number_of_ranks_has_the_loss_of_one(torch_launcher: Any, alone: dict[str, float], world: int) -> None:
    assert losses(train(torch_launcher, world, "--steps", str(STEPS))) == pytest.approx(alone, abs=1e-4)


def test_a_resumed_run_has_the_loss_of_an_undisturbed_one(
    torch_launcher: Any, alone: dict[str, float], tmp_path: Path
) -> None:
    there = ["--checkpoint-dir", str(tmp_path), "--checkpoint-every", "6"]
    train(torch_launcher, 1, "--steps", "14", *there)
    output = train(torch_launcher, 2, "--steps", str(STEPS), *there)
    assert "resumed at step 12" in output
    assert losses(output)["step 20"] == pytest.approx(alone["step 20"], abs=1e-4)
