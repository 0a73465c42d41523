"""Worker killed → first step done after the restart: our launchers beside torchrun, same script, same kill.

    python -m benchmarks.chain.restart [--kills 5] [--json]

Four workers of examples/train_gpt.py: under two of our launchers with two workers each (no server), and under
`torchrun --standalone --max-restarts` with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, without which torch 2.13 does not
come back at all. What ends the measurement is the script's own line about its first step after it resumed.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.report import Row, report
from eagle_eye.ports import free_port
from remediation.launcher.__main__ import settings_json
from remediation.launcher.launcher_settings import LauncherSettings

GOAL_S = 1.0
DEADLINE_S = 60.0
LOOK_S = 0.002
SCRIPT = Path(__file__).parents[2] / "examples" / "train_gpt.py"
WORDS = ("--steps", "1000000", "--checkpoint-every", "10", "--evaluate-every", "1000000")
"""The script prints every tenth step, and a checkpoint every ten steps makes the first one after a restart a tenth."""
STEP = re.compile(r"^step \d+ loss", re.MULTILINE)
RESUMED = re.compile(r"^resumed at step (\d+)", re.MULTILINE)


class Log:
    """What rank 0 has written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def since(self, at: int) -> str:
        with self.path.open("rb") as file:
            file.seek(at)
            return file.read().decode(errors="replace")

    def wait(self, at: int, done: Callable[[str], bool]) -> float:
        """Seconds until what was written after byte `at` satisfies `done`."""
        began = time.monotonic()
        while time.monotonic() - began < DEADLINE_S:
            if self.path.exists() and done(self.since(at)):
                return time.monotonic() - began
            threading.Event().wait(LOOK_S)
        raise SystemExit(f"nothing came within {DEADLINE_S:g} s; the log is {self.path}:\n{self.since(at)[-2000:]}")


def resumed_and_stepped(text: str) -> bool:
    """Whether the script has resumed and then completed a step."""
    found = RESUMED.search(text)
    return found is not None and STEP.search(text, found.end()) is not None


def measure(log: Log, pids: Callable[[], list[int]], kills: int, chance: random.Random) -> list[float]:
    """Kill a random worker `kills` times; seconds until the first step after each."""
    log.wait(0, lambda text: len(STEP.findall(text)) >= 2)
    seconds = []
    for _ in range(kills):
        at = log.size()
        log.wait(at, lambda text: len(STEP.findall(text)) >= 2)
        threading.Event().wait(chance.uniform(0.0, 0.5))
        victim = chance.choice(pids())
        at = log.size()
        os.kill(victim, signal.SIGKILL)
        seconds.append(log.wait(at, resumed_and_stepped))
    return seconds


@contextlib.contextmanager
def running(*processes: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the processes in order when the block ends."""
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def with_launchers(directory: Path, kills: int, chance: random.Random) -> list[float]:
    """Two launchers, two workers each."""
    run = f"bench{os.getpid()}"
    ports = [free_port(), free_port()]
    processes = []
    for node in (0, 1):
        settings = LauncherSettings(
            job=f"bench/restart/{run}", node=f"n{node}", command=(sys.executable, str(SCRIPT), *WORDS),
            state_dir=directory / "state", run_dir=directory / f"run{node}", nproc=2, nnodes=(2, 2), console=False,
            address=f"127.0.0.1:{ports[node]}", rendezvous=f"127.0.0.1:{ports[0]}", heal="restart:1000",
        )  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "remediation.launcher"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if process.stdin is not None:
            process.stdin.write(settings_json(settings))
            process.stdin.close()
        processes.append(process)

    def pids() -> list[int]:
        files = [directory / f"run{node}" / "jobs" / f"{run}.json" for node in (0, 1)]
        return [worker["pid"] for file in files for worker in json.loads(file.read_text())["workers"]]

    with running(*processes):
        return measure(Log(directory / "state" / "logs" / run / "n0" / "0.log"), pids, kills, chance)


def with_torchrun(directory: Path, kills: int, chance: random.Random) -> list[float]:
    """One torchrun with four workers."""
    log = directory / "torchrun.log"
    words = ["--standalone", "--nproc-per-node", "4", "--max-restarts", "1000", str(SCRIPT), *WORDS]
    environment = os.environ | {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
        "EAGLE_EYE_CHECKPOINT_DIR": str(directory / "checkpoints"), "PYTHONPATH": str(SCRIPT.parents[1]),
    }  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words], stdout=out, stderr=out, env=environment
        )
    with running(process):
        return measure(Log(log), lambda: children(process.pid), kills, chance)


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def main() -> int:
    """Measure both and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eagle-eye-") as ours, tempfile.TemporaryDirectory() as theirs:
        mine = with_launchers(Path(ours), options.kills, random.Random(options.seed))
        peers = with_torchrun(Path(theirs), options.kills, random.Random(options.seed))
    median, peer = statistics.median(mine), statistics.median(peers)
    rows = [
        Row(
            f"worker killed → first step after, median of {options.kills}", f"{median:.2f} s", f"≤ {GOAL_S:.1f} s",
            median <= GOAL_S, f"torchrun {peer:.2f} s", f"{peer / median:.1f}×",
        ),
        Row("the slowest of them", f"{max(mine):.2f} s", peer=f"torchrun {max(peers):.2f} s"),
    ]  # fmt: skip
    return report(rows, options.json, title="restart of a job of four workers")


if __name__ == "__main__":
    sys.exit(main())
