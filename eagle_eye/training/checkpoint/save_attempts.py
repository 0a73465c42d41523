"""Which attempt at a step a rank's part belongs to: a checkpoint is made of the parts of one attempt, never of two.

A job may come to the same step twice in one start: it went back, or its script saves a step again. Of the first attempt a part may still lie there, since another rank left
its own out (storage did not answer, or refused it). The parts of two attempts together would be a state that never was.

The rule: each call of `save_shard` for a step is an attempt, whatever becomes of it; parts are named by its number, and only those of one number are put together. All ranks make the
same calls in the same order, so a number means the same on all of them, however far one is behind the other, and nobody has to ask. A rank
that begins an attempt deletes the parts of earlier ones: they would be of no use.

What no number can tell is a call that one rank never made. Rank 0: saves A, goes back, saves B; rank 1: goes back, saves B. When rank 1 saves, all that it and the
directory know is the same as in a job that has saved once, where rank 1 is the last: no rule on numbers, times or files tells them apart, nor would a collective, which pairs the first call of the
one with the first of the other. Only going back does: so a rank that `restore`, or `MemoryCheckpoints.load`, has taken back to an older step takes back its parts of newer ones. It does so before it trains on,
and no other rank comes to the step again without it. A new start of the job is another `run` by itself (its epoch is part of it). What is left is a script that goes back within a start by means of
its own, after a call that one rank has not made: nobody here sees that it does, so it gives another `run`.
"""

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import NamedTuple

from eagle_eye.training.object_path import StoragePath

from . import checkpoint_directory
from .checkpoint_directory import PART

REMEMBERED = 4096
"""Steps whose attempts are counted; with as many newer ones an older one begins anew, on all ranks alike."""
_PARTS = 64
"""The newest parts of this process, which may not have become a checkpoint yet."""


class _WrittenPart(NamedTuple):
    home: StoragePath
    rank: int
    step: int
    path: StoragePath


_lock = threading.Lock()
_calls: OrderedDict[tuple[str, str, int, int], int] = OrderedDict()
_written: deque[_WrittenPart] = deque(maxlen=_PARTS)


def begin(home: StoragePath, run: str, rank: int, step: int) -> int:
    """The number of an attempt that a rank begins now, from 1 on."""
    key = str(home.absolute()), run, rank, step
    with _lock:
        _calls[key] = number = _calls.pop(key, 0) + 1
        while len(_calls) > REMEMBERED:
            _calls.popitem(last=False)
    return number


def run_of(run: str, attempt: int) -> str:
    """What the names of an attempt's parts have in common. `run`: digits and letters."""
    return f"{run}-{attempt}"


def delete_earlier(home: StoragePath, step: int, run: str) -> None:
    """Delete the parts of earlier attempts at a step, of all ranks. `run`: as `run_of` has made it. Raises OSError."""
    start, _, number = run.rpartition("-")
    if not number.isdecimal() or int(number) < 2:
        return
    for path in checkpoint_directory.names(home, f"step-{step:012d}.{start}-*{PART}"):
        other = path.name.split(".")[1].rpartition("-")[2]
        if other.isdecimal() and int(other) < int(number):
            path.unlink(missing_ok=True)


def written(home: StoragePath, rank: int, step: int, path: StoragePath) -> None:
    """A rank's part is there."""
    with _lock:
        _written.append(_WrittenPart(home.absolute(), rank, step, path.absolute()))


def take_back(home: StoragePath | None, rank: int, step: int) -> None:
    """A rank goes on from this step: its parts of newer ones become no checkpoint any more. `home` None: wherever it has put them."""
    with _lock:
        newer = [each for each in _written if (home is None or each.home == home.absolute()) and each.rank == rank and each.step > step]
    _delete(each.path for each in newer)


def _delete(paths: Iterable[StoragePath]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
