"""What every worker writes about every step that it committed, ours and the peers' alike: one JSON line, one file a process.

Only the standard library: peers run in environments of their own.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = "EAGLE_EYE_BENCHMARK_COMMITS"
LOOK_S = 0.02
BEGAN = ".began"


class Commit(NamedTuple):
    """A worker has applied a step."""

    worker: str
    pid: int
    step: int
    at: float
    """CLOCK_MONOTONIC, which all processes of a machine share."""
    loss: float
    more: dict[str, Any]


class Written:
    """Where a worker writes its commits: in the folder that the environment names, or in a given one."""

    def __init__(self, worker: str, folder: Path | None = None) -> None:
        place = folder or Path(os.environ[FOLDER])
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{worker.replace('/', '-')}-{os.getpid()}.jsonl"
        self._worker, self._file = worker, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, step: int, loss: float, **more: Any) -> None:
        """The worker has applied this step."""
        words = {"worker": self._worker, "pid": os.getpid(), "step": step, "at": time.monotonic(), "loss": loss}
        os.write(self._file, json.dumps({**words, "more": more}).encode() + b"\n")


class Commits:
    """Reads what the workers of one run have written, as it grows."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.all: list[Commit] = []
        self._read: dict[Path, int] = {}

    def look(self) -> list[Commit]:
        """All commits so far, oldest first."""
        fresh = [commit for path in self.folder.glob("*.jsonl") for commit in self._rest(path)]
        if fresh:
            self.all = sorted([*self.all, *fresh], key=lambda commit: commit.at)
        return self.all

    def _rest(self, path: Path) -> Iterable[Commit]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        return [Commit(**json.loads(line)) for line in whole.splitlines()]


def be_late(steps: int) -> None:
    """A worker that is to join waits until so many steps were done without it, and notes when it goes on."""
    folder, since = Path(os.environ[FOLDER]), time.monotonic()
    commits = Commits(folder)
    while len({commit.step for commit in commits.look() if commit.at > since}) < steps:
        time.sleep(LOOK_S)
    (folder / f"{os.getpid()}{BEGAN}").write_text(repr(time.monotonic()))


def began(folder: Path, pid: int) -> float | None:
    """When a worker that was late went on."""
    path = folder / f"{pid}{BEGAN}"
    return float(path.read_text()) if path.exists() else None


def hang_when_told() -> None:
    """From SIGUSR1 on the main thread sleeps for ever, between two lines of Python; other threads go on."""
    signal.signal(signal.SIGUSR1, lambda *_: threading.Event().wait())
