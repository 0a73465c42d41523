"""Feeds mutated records to one target in a process of its own, which is watched: it may neither end, nor hang, nor grow."""

import faulthandler
import logging
import multiprocessing
import os
import re
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psutil

from .target import Fault, Subject, Tally, Target

HANG_S = 5.0
"""A record that takes longer hangs its reader."""
MEMORY = Path("/dev/shm")
"""Files are written to memory, where there is such a place: not the disk is tried."""
FAULTS_KEPT = 20
FILLED = 2
"""After so many further tenths what is bounded has filled up: the streams of the targets keep 20,000 records of each topic."""
POLL_S = 0.25
SHOWN_S = 1.0
"""What hangs writes down where, within this time."""
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
_NUMBERS = re.compile(r"\d+")


class Failure(NamedTuple):
    """One record after which the process would not have gone on as it should."""

    number: int
    """Of the record: `--replay SEED:NUMBER` makes it again."""
    what: str


class Trial(NamedTuple):
    """What became of all records of one target."""

    records: int
    tally: Tally
    failures: list[Failure]
    """The first of each kind."""
    failed: int
    """How many records failed in all."""
    longest_ms: float
    """Of one record, less what the machine let its thread wait for a processor."""
    grown_mib: float
    """Memory at the end of the last tenth, less that at the end of the third."""


def random_of(seed: int, number: int) -> Random:
    """The chance of one record, the same in every run."""
    return Random((seed << 40) + number)


def trial(target: Target, seed: int, records: int, progress: Callable[[int], None]) -> Trial:
    """All records of a target. A process that hangs or dies is replaced, and goes on behind the record that did it."""
    parts, first, failures = list[Trial](), 0, list[Failure]()
    while first < records:
        with _folder() as folder:
            part, first = _part(target, Path(folder), seed, first, records, progress)
        parts.append(part)
        failures += part.failures
    tally = sum((part.tally for part in parts[1:]), parts[0].tally)
    return Trial(
        records, tally, failures[:FAULTS_KEPT], sum(part.failed for part in parts), max(part.longest_ms for part in parts), max(part.grown_mib for part in parts),
    )  # fmt: skip


def replay(target: Target, seed: int, number: int, first: int) -> str:
    """What a record does, fed behind those from `first` on, in this process; '' if nothing goes wrong."""
    with _folder() as folder, target.open(Path(folder)) as subject:
        for each in range(first, number):
            _taken(subject, seed, each)
        return _taken(subject, seed, number)


# --- the watching side ---------------------------------------------------------------------------------------------------


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Of the watching process: what one that is ended leaves goes with it."""
    return tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)


def _part(target: Target, folder: Path, seed: int, first: int, records: int, progress: Callable[[int], None]) -> tuple[Trial, int]:
    """(what one process did, the number of the record that is next)."""
    context = multiprocessing.get_context("spawn")  # this process has threads
    now = context.Array("d", [float(first), time.monotonic(), 0.0], lock=False)
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(target, folder, seed, first, records, now, its), daemon=True)
    process.start()
    its.close()
    while not mine.poll(POLL_S):
        progress(int(now[0]))
        late = time.monotonic() - now[1] > HANG_S + _slack(int(now[0]) == first)
        if process.is_alive() and (not late or _is_starved(process.pid, now[2])):
            continue
        if not mine.poll(POLL_S):
            return _ended(process, int(now[0])), int(now[0]) + 1
    try:
        done: Trial = mine.recv()
    except EOFError:
        return _ended(process, int(now[0])), int(now[0]) + 1
    process.join()
    progress(records)
    return done, records


def _is_starved(pid: int | None, began_s: float) -> bool:
    """It could go on, and has not had the processor for as long as a record may take: a busy machine, no hang. `began_s`: processor time when its record began."""
    try:
        status = psutil.Process(pid)
        used = status.cpu_times()
        return bool(status.status() == psutil.STATUS_RUNNING and used.user + used.system - began_s <= HANG_S)
    except psutil.NoSuchProcess:
        return False


def _slack(opening: bool) -> float:
    """To open a target takes a while: libraries are loaded, servers started."""
    return 60.0 if opening else 5.0


def _ended(process: Any, number: int) -> Trial:
    """It hangs, or has died."""
    hangs = process.is_alive()
    if hangs:
        os.kill(process.pid, signal.SIGUSR1)  # where it stands, on its standard error
        process.join(SHOWN_S)
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    what = f"hangs for more than {HANG_S:g} s" if hangs else f"the process has ended with {process.exitcode}"
    return Trial(0, Tally(0, 0), [Failure(number, what)], 1, 0.0, 0.0)


# --- the process that is watched -----------------------------------------------------------------------------------------


def _work(target: Target, folder: Path, seed: int, first: int, records: int, now: Any, out: Connection) -> None:
    faulthandler.register(signal.SIGUSR1)
    logging.disable(logging.INFO)
    logging.getLogger().addHandler(logging.NullHandler())  # targets listen for what they want to know
    warnings.simplefilter("ignore")
    out.send(_fed(target, folder, seed, range(first, records), now))


def _fed(target: Target, folder: Path, seed: int, numbers: range, now: Any) -> Trial:
    failures: dict[str, Failure] = {}
    longest, tally, failed, sizes = 0.0, None, 0, list[float]()
    tenth = max(1, len(numbers) // 10)
    with ExitStack() as opened:
        subject = opened.enter_context(target.open(_fresh(folder)))
        for number in numbers:
            now[0], now[1], now[2] = number, time.monotonic(), time.process_time()
            began = time.perf_counter() - _queued_s()
            wrong = _taken(subject, seed, number)
            longest = max(longest, time.perf_counter() - _queued_s() - began)
            if wrong:
                failed += 1
                failures.setdefault(_kind(wrong), Failure(number, wrong))
                if not wrong.startswith(Fault.__name__):  # its process would be started again
                    tally = subject.tally() if tally is None else tally + subject.tally()
                    opened.close()
                    subject = opened.enter_context(target.open(_fresh(folder)))
            if (number - numbers.start + 1) % tenth == 0:
                sizes.append(_mib())
        told = subject.tally()
    grown = sizes[-1] - sizes[FILLED] if len(sizes) > FILLED else 0.0
    return Trial(len(numbers), told if tally is None else tally + told, list(failures.values())[:FAULTS_KEPT], failed, 1000 * longest, grown)


def _taken(subject: Subject, seed: int, number: int) -> str:
    """What went wrong; '' if nothing."""
    try:
        subject.take(random_of(seed, number))
    except Fault as error:
        return f"{Fault.__name__}: {error}"
    except BaseException as error:  # whatever it is would have ended the process
        if isinstance(error, KeyboardInterrupt):
            raise
        return "".join(traceback.format_exception(error)[-6:])
    return ""


def _fresh(folder: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=folder))


def _kind(what: str) -> str:
    """The same mistake with other numbers is the same."""
    return _NUMBERS.sub("N", what)[-300:]


def _queued_s() -> float:
    """For how long this thread has waited for a processor so far: what a busy machine takes of a record's time."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def _mib() -> float:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_MIB


def numbers_of(text: str) -> tuple[int, int]:
    """SEED:NUMBER. Raises ValueError."""
    seed, number = text.split(":")
    return int(seed), int(number)


def failures_of(found: Trial, target: str, seed: int) -> Iterator[str]:
    """For people: each kind once, and how to see it again."""
    for failure in found.failures:
        yield f"{target} {seed}:{failure.number}: {failure.what.strip()}\n  again: python -m benchmarks.faults.mutations --only {target} --replay {seed}:{failure.number}"
