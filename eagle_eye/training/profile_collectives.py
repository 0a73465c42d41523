"""All-reduce times of a real group of local processes: gloo on the host, NCCL on GPUs.

The parent starts one process a rank, `python -m eagle_eye.training.profile_collectives RANK SIZE BACKEND FOLDER BYTES...`; they
meet in a file, so that no port is needed, and rank 0 prints the medians of the slowest rank as JSON.
"""

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

WARM_UP, MEASURED = 2, 7
TIMEOUT_S = 300.0


def all_reduce_ms(sizes: Sequence[int], ranks: int, backend: str, timeout_s: float = TIMEOUT_S) -> dict[int, float]:
    """Bytes -> median milliseconds of an all-reduce among so many local processes; one alone reduces nothing.

    Raises RuntimeError with the error output of the processes if they cannot form a group. They are ended in any case.
    """
    distinct = sorted({size for size in sizes if size > 0})
    if ranks == 1 or not distinct:
        return dict.fromkeys(distinct, 0.0)
    with tempfile.TemporaryDirectory(prefix="eagle-eye-profile-") as folder:
        started: list[subprocess.Popen[str]] = []
        try:
            started.extend(_start(rank, ranks, backend, folder, distinct) for rank in range(ranks))
            return _answer(started, timeout_s)
        finally:
            _end(started)


def _start(rank: int, ranks: int, backend: str, folder: str, sizes: Sequence[int]) -> "subprocess.Popen[str]":
    package = Path(__file__).resolve().parents[2]
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    command = [sys.executable, "-m", __name__, str(rank), str(ranks), backend, folder, *map(str, sizes)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _answer(started: "Sequence[subprocess.Popen[str]]", timeout_s: float) -> dict[int, float]:
    output = ""
    for process in started:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{len(started)} processes took more than {timeout_s:g} s to all-reduce; profile with fewer or smaller layers") from None
        if process.returncode:
            raise RuntimeError(f"a process of the all-reduce group ended with {process.returncode}: {errors[-800:]}")
        if process is started[0]:
            answer = output
    return {int(size): float(time_ms) for size, time_ms in json.loads(answer.splitlines()[-1]).items()}


def _end(started: "Sequence[subprocess.Popen[str]]") -> None:
    for process in started:
        if process.poll() is None:
            process.kill()
    for process in started:
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def main(arguments: Sequence[str]) -> None:
    """One rank."""
    import torch
    from torch import distributed

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    rank, ranks, backend, folder = int(arguments[0]), int(arguments[1]), arguments[2], Path(arguments[3])
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    distributed.init_process_group(backend, init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    medians = {}
    for size in map(int, arguments[4:]):
        buffer = torch.zeros(max(1, size // 4), device=device)
        medians[size] = _median(buffer, device)
    slowest = torch.tensor(list(medians.values()), device=device)
    distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
    if rank == 0:
        sys.stdout.write(json.dumps(dict(zip(medians, slowest.tolist(), strict=True))) + "\n")
    with contextlib.suppress(RuntimeError):  # peers may be gone already
        distributed.destroy_process_group()


def _median(buffer: Any, device: str) -> float:
    import torch
    from torch import distributed

    times = []
    for _ in range(WARM_UP + MEASURED):
        distributed.barrier()
        begin = time.perf_counter()
        distributed.all_reduce(buffer)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times[WARM_UP:])


if __name__ == "__main__":
    main(sys.argv[1:])
