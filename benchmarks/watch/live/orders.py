"""What the benchmark orders the workers of a job to do, while it trains: a file for each order, which every worker looks for at each step."""

import os
from pathlib import Path

FOLDER = "orders"
EVERYBODY = -1


def give(folder: Path, order: str, rank: int, amount: float = 1.0, *, step: int = 0) -> None:
    """From that step on. `folder`: the job's; `rank` may be EVERYBODY, who need a step that none of them has begun to do it together."""
    file = _file(folder, order, rank)
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".new")
    fresh.write_text(f"{amount!r} {step}")
    fresh.rename(file)


def take_back(folder: Path, order: str, rank: int) -> None:
    """It was never given, or is over."""
    _file(folder, order, rank).unlink(missing_ok=True)


def _file(folder: Path, order: str, rank: int) -> Path:
    return folder / FOLDER / f"{order}@{'all' if rank == EVERYBODY else rank}"


class Orders:
    """Those to one rank. What is done once is done by one process only, also after a restart."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._places = {order: [_file(folder, order, each) for each in (rank, EVERYBODY)] for order in LASTING + ONCE}

    def amount(self, order: str, step: int) -> float:
        """Of a lasting order in this step; 0 where there is none."""
        return next((amount for place in self._places[order] if (amount := _read(place, step))), 0.0)

    def once(self, order: str, step: int) -> float:
        """The amount, the first time that it is asked for; 0 later, and where there is none."""
        amount = self.amount(order, step)
        if not amount:
            return 0.0
        try:
            os.close(os.open(self._folder / FOLDER / f"{order}@{self._rank}.done", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return 0.0
        return amount


def _read(place: Path, step: int) -> float:
    try:
        with place.open() as file:
            amount, first = file.read().split()
    except FileNotFoundError:
        return 0.0
    return float(amount) if step >= int(first) else 0.0


LASTING = ("slower", "slow_data", "same_data", "garbage")
"""`slower`: times as long for all that is computed; `slow_data`: seconds until a batch is there; `same_data`: each batch is the one before; `garbage`: objects that are collected at each step."""
DAMAGES = ("bad_gradient", "flipped_bit")
"""One gradient is NaN before it is exchanged; the bit of that number of one parameter's float32 is turned round."""
ERRORS = ("bad_value", "missing_key", "exit_0", "kernel_kill", "host_memory", "full_disk_save")
"""Of benchmarks/harm/faults.py."""
HANGS = ("deadlock", "event", "interpreter", "kernel")
"""Of benchmarks/harm/hanging.py."""
SAVE = "own_checkpoint"
"""Saved by eagle_eye where the small disk is."""
PAUSES = ("sleep", "compute", "checkpoint", "collect_garbage", "data_poll")
"""Of benchmarks/harm/acts.py, for so many seconds."""
ONCE = (*DAMAGES, *ERRORS, *HANGS, SAVE, *PAUSES)
