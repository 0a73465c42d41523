"""What a user's script does wrong, one function each: the real errors of Python, torch and the kernel, nothing of ours."""

import ctypes
import errno
import os
import resource
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.harm.plan import STRUCK, Note, Plan, PlannedFault, notes, ordered, write_note

MIB = 1 << 20
SMALL_DISK, READ_ONLY, LIMITED = "small-disk", "read-only-disk", "memory-limited"
"""In the job's folder, made by the benchmark (limits.py): two file systems, and a file that says that the memory is limited."""
LIMITED_S = 20.0


class FaultSite(NamedTuple):
    """Where a fault strikes."""

    folder: Path
    step: int
    sample: int


Fault = Callable[[FaultSite], None]


# --- exceptions ---------------------------------------------------------------------------------------------------


def bad_value(site: FaultSite) -> None:
    """A check of the data fails."""
    raise ValueError(f"sample {site.step}.{max(site.sample, 0)} has the negative length -7")


def assertion(site: FaultSite) -> None:
    """An assertion of the script's author."""
    seen = {"step": site.step, "tokens": 0}
    if not seen["tokens"]:
        raise AssertionError(f"no tokens in step {site.step}")


def wrong_shape(_: FaultSite) -> None:
    """A batch that does not fit the model."""
    torch.nn.Linear(64, 64)(torch.randn(8, 63))


def missing_key(site: FaultSite) -> None:
    """A sample without the column that the script reads."""
    record = {"text": "a line", "number": site.step}
    record["label"]


def path_missing(site: FaultSite) -> None:
    """A shard or a configuration that is not there."""
    (site.folder / "data" / "shard-0007.parquet").read_bytes()


# --- ends without a word ------------------------------------------------------------------------------------------


def exit_3(_: FaultSite) -> None:
    """The script gives up."""
    sys.exit(3)


def exit_at_once(_: FaultSite) -> None:
    """A library ends the process."""
    os._exit(1)


def exit_0(_: FaultSite) -> None:
    """The script believes that it is done."""
    sys.exit(0)


def segfault(_: FaultSite) -> None:
    """An extension in C reads where nothing is."""
    ctypes.string_at(8)


# --- memory -------------------------------------------------------------------------------------------------------


def kernel_kill(site: FaultSite) -> None:
    """More memory than the cgroup of the job has: the kernel kills whoever has most."""
    deadline = time.monotonic() + LIMITED_S
    while not (site.folder / LIMITED).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    kept: list[bytearray] = []
    while len(kept) < 64:
        kept.append(bytearray(os.urandom(MIB) * 32))


def host_memory(_: FaultSite) -> None:
    """More memory than the process may have (ulimit -v)."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 64 * MIB, resource.RLIM_INFINITY))
    torch.ones(256 * MIB)


def gpu_memory(_: FaultSite) -> None:
    """What torch raises when the memory of a GPU is used up; this machine need not have one."""
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is free."
    )


# --- storage ------------------------------------------------------------------------------------------------------


def full_disk_save(site: FaultSite) -> None:
    """torch.save to a file system that is full."""
    torch.save({"weights": torch.ones(MIB)}, site.folder / SMALL_DISK / "checkpoint.pt")


def full_disk_write(site: FaultSite) -> None:
    """The same for a script that writes by itself."""
    (site.folder / SMALL_DISK / "checkpoint.bin").write_bytes(bytes(4 * MIB))


def full_device(_: FaultSite) -> None:
    """Where no file system can be mounted: the kernel's device that is always full."""
    with Path("/dev/full").open("wb") as file:
        file.write(bytes(MIB))


def read_only_save(site: FaultSite) -> None:
    """torch.save to a file system that is mounted read-only."""
    torch.save({"weights": torch.ones(1024)}, site.folder / READ_ONLY / "checkpoint.pt")


def read_only_write(site: FaultSite) -> None:
    """The same for a log of the script."""
    with (site.folder / READ_ONLY / "loss.csv").open("a") as file:
        file.write("0.1\n")


def file_limit(site: FaultSite) -> None:
    """A file larger than the process may write (ulimit -f)."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
    (site.folder / f"checkpoint-{os.getpid()}.bin").write_bytes(bytes(4 * MIB))


# --- innocents ----------------------------------------------------------------------------------------------------


def caught(site: FaultSite) -> None:
    """An exception that the script expects, and prints."""
    try:
        bad_value(site)
    except ValueError:
        traceback.print_exc()


def caught_refusal(_: FaultSite) -> None:
    """A write that fails, which the script does without."""
    try:
        full_device(FaultSite(Path(), 0, 0))
    except OSError as error:
        print(f"no log is written: {errno.errorcode[error.errno or 0]}", file=sys.stderr)


def thread_raises(site: FaultSite) -> None:
    """A thread that reports to a dashboard ends with an exception; the training does not need it."""
    thread = threading.Thread(target=bad_value, args=(site,), name="reporter")
    thread.start()
    thread.join()


def child_fails(_: FaultSite) -> None:
    """A command of the script fails, and is not needed."""
    subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], check=False)


def all_done(_: FaultSite) -> None:
    """All workers find that the loss is low enough, and end."""
    sys.exit(0)


FAULTS: dict[str, Fault] = {
    each.__name__: each
    for each in (
        bad_value, assertion, wrong_shape, missing_key, path_missing, exit_3, exit_at_once, exit_0, segfault, kernel_kill, host_memory,
        gpu_memory, full_disk_save, full_disk_write, full_device, read_only_save, read_only_write, file_limit, caught, caught_refusal,
        thread_raises, child_fails, all_done,
    )
}  # fmt: skip
"""Name in a plan → fault."""


class FaultRunner:
    """Lets the faults of the plan strike this worker. Made before the processes meet: then all of them count the same lives."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self._folder, self._rank, self._world = folder, rank, world
        struck = notes(folder)
        self._faults = [
            (number, fault, sum(note.act == number and note.what == STRUCK for note in struck) // max(1, len(fault.ranks)))
            for number, fault in enumerate(Plan.read(folder).faults)
        ]

    def strike(self, step: int, sample: int = -1) -> None:
        """Where the worker begins a step, or makes a micro-batch of it."""
        for number, fault, life in self._faults:
            if self._is_ordered(number, life) if fault.ordered else self._is_due(fault, life, step, sample):
                write_note(self._folder, Note(number, self._rank, STRUCK, time.time()))
                FAULTS[fault.kind](FaultSite(self._folder, step, sample))

    def _is_ordered(self, number: int, life: int) -> bool:
        return life == 0 and ordered(self._folder, number) == os.environ["EAGLE_EYE_WORKER"]

    def _is_due(self, fault: PlannedFault, life: int, step: int, sample: int) -> bool:
        if fault.sample != sample:
            return False
        if fault.sample < 0 and self._rank not in {(rank + life * fault.moves) % self._world for rank in fault.ranks}:
            return False
        return step >= fault.step if fault.onwards else step == fault.step - life * fault.earlier
