"""A training script on a GPU whose ranks share it; in one step, and in its first life alone, something goes wrong.

    eagle-eye launch --nproc-per-node 2 -- python -m benchmarks.gpu.train --folder DIR --fault "wild kernel" --step 40
"""

import argparse
import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import eagle_eye
from benchmarks.gpu.kernels import spin, write_wildly

WIDTH = 512
PAUSE_S = 0.02
"""Of a step, beside the work on the GPU: several ranks share a GPU and a host."""
NEVER_S = 1e9
LONG_S = 6.0


def wild_kernel() -> None:
    """Writes where nothing is."""
    write_wildly()
    torch.cuda.synchronize()


def assertion() -> None:
    """An index beyond the end: an assertion on the GPU."""
    table = torch.zeros(8, device="cuda")
    table[torch.tensor([9], device="cuda")].cpu()


def out_of_memory() -> None:
    """More than any GPU has."""
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")


def endless_kernel() -> None:
    """The host waits for a kernel that does not end."""
    spin(NEVER_S)
    torch.cuda.synchronize()


def long_kernel() -> None:
    """The host waits for a kernel that takes its time."""
    spin(LONG_S)
    torch.cuda.synchronize()


def deadlock() -> None:
    """The host waits for a lock that nobody gives back."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def killed() -> None:
    """From outside, as it were."""
    os.kill(os.getpid(), signal.SIGKILL)


def graph() -> None:
    """A CUDA graph is captured and replayed."""
    source = torch.ones(64, 64, device="cuda")
    with torch.cuda.graph(captured := torch.cuda.CUDAGraph()):
        source @ source
    for _ in range(100):
        captured.replay()
    torch.cuda.synchronize()


def compilation() -> None:
    """A model is compiled, for one shape and another."""
    compiled = torch.compile(torch.nn.Linear(32, 32).cuda(), dynamic=False)
    for rows in (3, 5, 7):
        compiled(torch.ones(rows, 32, device="cuda"))
    torch.cuda.synchronize()


FAULTS: dict[str, Callable[[], None]] = {
    "wild kernel": wild_kernel, "assertion": assertion, "out of memory": out_of_memory, "endless kernel": endless_kernel,
    "long kernel": long_kernel, "deadlock": deadlock, "killed": killed, "graph": graph, "compilation": compilation,
}  # fmt: skip
BAD_LOSS = "bad loss"
NONE = "none"
"""The last: all is well."""


def train(folder: Path, fault: str, at: int, rank: int, steps: int, device: str) -> None:
    """The loop of one rank."""
    mine, done, struck = dist.get_rank(), folder / f"steps-{dist.get_rank()}", folder / "struck"
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    monitor = eagle_eye.monitor()
    for step in monitor.steps(range(steps)):
        ill = False
        with monitor.phase("forward"):
            if step >= at and fault != NONE and mine == rank and not struck.exists():
                struck.write_text(repr(time.time()))
                ill = fault == BAD_LOSS
                if not ill:
                    FAULTS[fault]()
            loss = model(torch.randn(256, WIDTH, device=device)).square().mean() * (math.nan if ill else 1.0)
            time.sleep(PAUSE_S)
        with monitor.phase("backward"):
            loss.backward()
        with monitor.phase("communication"):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        with monitor.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        monitor.log(loss=loss.detach(), tokens=256.0)
        done.write_text(f"{step + 1}")


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--fault", choices=(NONE, BAD_LOSS, *FAULTS), default=NONE)
    parser.add_argument("--step", type=int, default=40, help="the step of the fault (40)")
    parser.add_argument("--rank", type=int, default=0, help="the rank that it strikes (0)")
    parser.add_argument("--steps", type=int, default=400, help="how long to train (400)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo", help="NCCL takes one rank for each GPU")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    with contextlib.suppress(KeyboardInterrupt):
        train(options.folder, options.fault, options.step, options.rank, options.steps, options.device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
