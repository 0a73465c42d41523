"""How fast the output of jobs is searched, and how much memory that takes.

    python -m benchmarks.collect.job_log                        1 GB
    python -m benchmarks.collect.job_log --megabytes 200

The log is like that of a large run: lines of progress and of NCCL, an error in each megabyte, a traceback in each fourth. It is read through the collector
as the agent does, from a file, again and again until it is at its end. Beside it, GNU grep counts the lines with the same texts, and a loop of Python over the
lines, as small tools have it, looks for the same texts in a part of it.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.progress import track

from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from collectors.agent.job_directory import LocalJob, LocalWorker
from collectors.job_log import JobLogCollector
from collectors.log.job_messages import COMPONENTS, TABLES
from collectors.log.message_table import MessageTable
from eagle_eye.training.ring_buffer import start_time_of
from eagle_eye.types import Event

GOAL_MB_S = 200.0
GOAL_MEMORY_MB = 150.0
MEGABYTE = 1 << 20
PART = 16
"""The loop of Python reads one part of so many: it would take minutes for all."""
PROGRESS = (
    "[default{rank}]: iteration {step}/ 500000 | consumed samples: {step}00 | elapsed time per iteration (ms): 1234.5 | lm loss: 2.345E+00 | grad norm: 1.23 |\n"
    "gpu-{rank}:401:8846 [{rank}] NCCL INFO Channel 00/08 : {rank}[{rank}] -> 4[4] via P2P/CUMEM/read\n"
)
ERROR = "[default3]: RuntimeError: CUDA error: misaligned address in step {step}\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line {step}, in <module>\n    main()\nValueError: token {step} is out of range\n'


class Searched(NamedTuple):
    """One way of reading the log."""

    seconds: float
    found: int
    processor_s: float
    """Of all its processes: robust on a busy machine."""
    grown_mb: float = 0.0
    """Peak memory of the process beyond what it had before."""


def write_log(path: Path, megabytes: int) -> None:
    """So many megabytes, each with an error, each fourth with a traceback."""
    piece = "".join(PROGRESS.format(rank=step % 8, step=step) for step in range(5000)).encode()[:MEGABYTE]
    piece = piece[: piece.rfind(b"\n") + 1]
    with path.open("wb") as file:
        for number in track(range(megabytes), "writing the log", transient=True, disable=not sys.stderr.isatty()):
            file.write(piece)
            file.write(ERROR.format(step=number).encode())
            if number % 4 == 0:
                file.write(TRACEBACK.format(step=number).encode())


def follow(folder: Path, log: Path, *, training_values: bool = True) -> JobLogCollector:
    """The collector of an agent, at the beginning of a worker's log."""
    log.touch()
    (folder / "jobs").mkdir(exist_ok=True)
    worker = LocalWorker(worker="run/node/0", slot=0, rank=0, pid=os.getpid(), start_time=start_time_of(os.getpid()), log=str(log))
    (folder / "jobs" / "run.json").write_bytes(msgspec.json.encode(LocalJob(job="t/gpt/run", run="run", node="node", workers=(worker,))))
    collector = JobLogCollector(node="node", run_dir=folder, state_dir=folder / "state", repeat_s=0.0, most_backlog_mb=100_000, training_values=training_values)
    collector.collect()
    return collector


def collect(collector: JobLogCollector, log: Path) -> Searched:
    """Through the collector, until it has read all."""
    before, size = _peak_mb(), log.stat().st_size
    began, used, found = time.perf_counter(), _processor_s(), 0
    while True:
        found += sum(isinstance(each, Event) and each.name == "log.error" for each in collector.collect())
        if collector.position_of(log).offset >= size:
            return Searched(time.perf_counter() - began, found, _processor_s() - used, _peak_mb() - before)


def grep(log: Path) -> Searched:
    """GNU grep with the same texts."""
    began, used = time.perf_counter(), _processor_s()
    command = ["grep", "--count", "--fixed-strings", *(f"--regexp={hint}" for hint in _hints()), str(log)]
    done = subprocess.run(command, capture_output=True, check=True, env={"LC_ALL": "C", "PATH": os.environ["PATH"]})
    return Searched(time.perf_counter() - began, int(done.stdout), _processor_s() - used)


def loop_over_lines(log: Path) -> Searched:
    """Line by line in Python, over a part of the log."""
    hints, began, used = _hints(), time.perf_counter(), _processor_s()
    with log.open(errors="replace") as file:
        found = sum(any(hint in line for hint in hints) for line in _part_of(file, log.stat().st_size // PART))
    return Searched(time.perf_counter() - began, found, _processor_s() - used)


def _part_of(lines: Iterator[str], size: int) -> Iterator[str]:
    for line in lines:
        yield line
        size -= len(line)
        if size < 0:
            return


def _hints() -> list[str]:
    return sorted({row.hint for row in MessageTable.load(TABLES, COMPONENTS).rows})


def _processor_s() -> float:
    """Of this process and the children that have ended."""
    return sum(sum(resource.getrusage(of)[:2]) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rows_of(megabytes: int, ours: Searched, grepped: Searched, looped: Searched) -> list[Row]:
    """Speed, memory, and whether everything was found."""
    speed, of_grep, of_loop = megabytes / ours.seconds, megabytes / grepped.seconds, megabytes / PART / looped.seconds
    a_core, grep_a_core, loop_a_core = megabytes / ours.processor_s, megabytes / grepped.processor_s, megabytes / PART / looped.processor_s
    return [
        Row(
            f"job_log: {megabytes} MB", f"{speed:.0f} MB/s", f"≥ {GOAL_MB_S:g} MB/s", speed >= GOAL_MB_S,
            f"grep -F -c: {of_grep:.0f} MB/s; lines in Python: {of_loop:.0f} MB/s", f"{speed / of_grep:.1f} and {speed / of_loop:.0f} times",
        ),
        Row(
            "the same a second of processor time", f"{a_core:.0f} MB", f"≥ {GOAL_MB_S:g} MB", a_core >= GOAL_MB_S,
            f"grep -F -c: {grep_a_core:.0f} MB; lines in Python: {loop_a_core:.0f} MB", f"{a_core / grep_a_core:.1f} and {a_core / loop_a_core:.0f} times",
        ),
        Row("errors found", f"{ours.found} of {megabytes}", "all", ours.found == megabytes, f"grep: {grepped.found} lines"),
        Row("memory beyond that of the agent's start", f"{ours.grown_mb:.0f} MB", f"≤ {GOAL_MEMORY_MB:g} MB for the whole agent", ours.grown_mb <= GOAL_MEMORY_MB),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.megabytes < PART:
        parser.error(f"--megabytes is at least {PART}")
    with tempfile.TemporaryDirectory(prefix="job-log") as name:
        folder = Path(name)
        log = folder / "0.log"
        collector = follow(folder, log)
        write_log(log, options.megabytes)
        steal = neighbours()
        ours, grepped, looped = collect(collector, log), grep(log), loop_over_lines(log)
    return report([*rows_of(options.megabytes, ours, grepped, looped), steal()], options.json, "errors in the output of jobs")


if __name__ == "__main__":
    sys.exit(main())
