"""What a schedule lets a rank do: harmless behaviour of a training script. Every act takes as long as it is told to."""

import gc
import math
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Act = Callable[[float], None]
"""Seconds → does it for so long."""
CHUNK = 1 << 20
COMPUTE = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end:\n    sorted(str(number) for number in range(20_000))"


class _Batch:
    """A cycle for the garbage collector."""

    def __init__(self) -> None:
        self.myself: Any = self
        self.values = list(range(8))


def compute(seconds: float) -> None:
    """An evaluation: many functions, one after another."""
    end, seen = time.monotonic() + seconds, 0.0
    while time.monotonic() < end:
        seen += _scored(_encoded(range(2_000)))
        seen += _normalized(torch.randn(64, 64))


def _encoded(text: range) -> list[int]:
    return [(each * 7) % 256 for each in text]


def _scored(tokens: list[int]) -> float:
    return sum(_cost(token) for token in tokens) / len(tokens)


def _cost(token: int) -> float:
    return math.sqrt(token)


def _normalized(matrix: torch.Tensor) -> float:
    return float(torch.nn.functional.layer_norm(matrix @ matrix, (64,)).sum())


def multiply(seconds: float) -> None:
    """An evaluation in one line: one large product after another."""
    end, matrix = time.monotonic() + seconds, torch.randn(512, 512)
    sum(float((matrix @ matrix)[0, 0]) for _ in iter(lambda: time.monotonic() < end, False))


def sleep(seconds: float) -> None:
    """A wait of a known length."""
    time.sleep(seconds)


def files(seconds: float) -> None:
    """Writes and reads files."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < end:
            file.seek(0)
            file.write(bytes(8 * CHUNK))
            file.seek(0)
            file.read()
            time.sleep(0.1)


def checkpoint(seconds: float) -> None:
    """Saves to a slow disk: a piece, fsync, and the disk lets the next one wait."""
    end = time.monotonic() + seconds
    with tempfile.TemporaryFile() as file:
        while (left := end - time.monotonic()) > 0:
            file.write(os.urandom(CHUNK))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(min(left, 0.5))


def child(seconds: float) -> None:
    """Waits for a process of its own that computes."""
    subprocess.run([sys.executable, "-c", COMPUTE, str(seconds)], check=True)


def recompile(seconds: float) -> None:
    """Compiles: short processes, several at a time, one after another."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        running = [subprocess.Popen([sys.executable, "-c", COMPUTE, "1.0"]) for _ in range(2)]
        for process in running:
            process.wait()


def collect_garbage(seconds: float) -> None:
    """Full collections over many objects."""
    end = time.monotonic() + seconds
    kept = [_Batch() for _ in range(100_000)]
    while time.monotonic() < end:
        kept[:1000] = [_Batch() for _ in range(1000)]
        gc.collect()


def thread(seconds: float) -> None:
    """Waits for a thread of its own that computes."""
    worker = threading.Thread(target=compute, args=(seconds,))
    worker.start()
    worker.join()


def data_poll(seconds: float) -> None:
    """The loader asks again and again whether the next batch is there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)


def data_thread(seconds: float) -> None:
    """The loader waits for a thread that reads ahead, whose storage asks it to come back later."""
    batches: queue.Queue[int] = queue.Queue()

    def read() -> None:
        time.sleep(seconds)
        batches.put(1)

    threading.Thread(target=read, daemon=True).start()
    batches.get()


def data_socket(seconds: float) -> None:
    """The loader reads from a server that takes its time."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        os.set_inheritable(theirs.fileno(), True)
        answer = f"import socket, time; time.sleep({seconds}); socket.socket(fileno={theirs.fileno()}).send(b'x')"
        with subprocess.Popen([sys.executable, "-c", answer], pass_fds=[theirs.fileno()]):
            ours.recv(1)


ACTS: dict[str, Act] = {
    "compute": compute, "multiply": multiply, "sleep": sleep, "files": files, "child": child, "recompile": recompile,
    "collect_garbage": collect_garbage, "thread": thread, "checkpoint": checkpoint, "data_poll": data_poll,
    "data_thread": data_thread, "data_socket": data_socket,
}  # fmt: skip
"""Name in a schedule → act."""
PHASES = {"checkpoint": "checkpoint", "data_poll": "data", "data_thread": "data", "data_socket": "data"}
"""The phase in which a script with marks does it; the others are evaluations."""


def phase_of(kind: str) -> str:
    """The mark of a script that marks it."""
    return PHASES.get(kind, "evaluation")


def scratch(folder: Path) -> None:
    """Where files are written from now on."""
    tempfile.tempdir = str(folder)
