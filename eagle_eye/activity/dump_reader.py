"""Reads the dumps of a job's ranks: many of them on several processors at once, since those of a thousand ranks hold millions of collectives."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from eagle_eye.errors import WireError

from .flight_dump import FlightDump, read_dump

SIDE_BY_SIDE = 64 << 20
"""Bytes of all dumps above which it pays to start processes, which takes half a second; and what they have open at once: one that is built takes twenty times its size."""
MOST_PROCESSES = 8
BATCH = 16
"""Dumps that a process reads before it answers."""

_Outcome = FlightDump | WireError


def read_dumps(paths: Sequence[Path], processes: int | None = None) -> Iterator[_Outcome]:
    """Of each path, in their order: the dump, or why it cannot be read. `processes`: None = as many as pay, 1 = this one."""
    batches = [paths[place : place + BATCH] for place in range(0, len(paths), BATCH)]
    with contextlib.ExitStack() as stack:
        readers = _readers(stack, batches, _processes(paths) if processes is None else processes)
        for place, batch in enumerate(batches):
            yield from _answer(readers[place % len(readers)], batch) if readers else map(_outcome, batch)


def _processes(paths: Sequence[Path]) -> int:
    sizes = [_size(path) for path in paths]
    if sum(sizes) < SIDE_BY_SIDE:
        return 1
    return min(MOST_PROCESSES, len(os.sched_getaffinity(0)), SIDE_BY_SIDE // max(sizes))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _outcome(path: Path) -> _Outcome:
    try:
        return read_dump(path)
    except WireError as error:
        return error


def _readers(stack: contextlib.ExitStack, batches: Sequence[Sequence[Path]], processes: int) -> list[Connection]:
    """Processes that read every so many batches each, until `stack` is closed; none where this one reads by itself, or no other can be started."""
    context = multiprocessing.get_context("spawn")  # whoever calls may have threads
    readers: list[Connection] = []
    for number in range(processes if processes > 1 else 0):
        mine, its = context.Pipe(duplex=False)
        stack.enter_context(mine)
        process = context.Process(target=_read_batches, args=(batches[number::processes], its), name="dump reader", daemon=True)
        try:
            process.start()
        except OSError:
            return []
        finally:
            its.close()
        stack.callback(process.join)
        stack.callback(process.terminate)
        readers.append(mine)
    return readers


def _read_batches(batches: Sequence[Sequence[Path]], answers: Connection) -> None:
    """In a process of its own. The ranks of a group, which all its dumps name, go over once a batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    with contextlib.suppress(OSError), answers:  # nobody wants the rest
        for batch in batches:
            answers.send([_outcome(path) for path in batch])


def _answer(reader: Connection, batch: Sequence[Path]) -> Sequence[_Outcome]:
    """Of a reader that is gone, as for want of memory, the batches are read here."""
    try:
        outcomes: Sequence[_Outcome] = reader.recv()
    except (EOFError, OSError):
        return [_outcome(path) for path in batch]
    return outcomes
