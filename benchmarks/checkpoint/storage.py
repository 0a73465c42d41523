"""How fast a shard is written to a disk, and read, beside torch.save and torch.distributed.checkpoint with the same bytes.

    python -m benchmarks.checkpoint.storage                         1 GiB in the temporary directory
    python -m benchmarks.checkpoint.storage --gib 0.5 --folder /data

Each way of writing ends with fsync: what it has written is on the disk. All ways take turns, --rounds times; a figure is a median. Ours computes the CRC-32 of
all bytes meanwhile, and compares it when it reads, which the others do not. Reads are `cold`: the page cache has let go of the file (posix_fadvise).
O_DIRECT is what a writer that goes around the page cache would reach: the same chunks by as many threads, summed up and copied to aligned memory.
"""

import argparse
import mmap
import os
import statistics
import sys
import tempfile
import warnings
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from benchmarks.checkpoint.memory import seconds
from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from eagle_eye.training import atomic_file
from eagle_eye.training.checkpoint import shard_file
from eagle_eye.training.checkpoint.manifest import ShardFile
from eagle_eye.training.elastic.train_state import tensor_bytes
from eagle_eye.training.thread_map import thread_map

TENSORS = 96
SHARD = "step-1.safetensors"
GOAL = 1.0
"""No slower than torch.save, though every byte is summed up."""
Tensors = Mapping[str, torch.Tensor]


def write_ours(folder: Path, tensors: Tensors, threads: int) -> ShardFile:
    """As `checkpoint.save` does, by so many threads."""
    shard_file.THREADS = threads
    return shard_file.write(folder / SHARD, tensors)


def write_direct(folder: Path, tensors: Tensors) -> None:
    """Around the page cache."""
    path = folder / "direct"
    views = [tensor_bytes.view(tensor) for tensor in tensors.values()]
    chunks = [(view, begin) for view in views for begin in range(0, len(view), shard_file.CHUNK_BYTES)]
    offsets = [index * shard_file.CHUNK_BYTES for index in range(len(chunks))]
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)

    def write(index: int) -> int:
        view, begin = chunks[index]
        with mmap.mmap(-1, shard_file.CHUNK_BYTES) as aligned:
            piece = view[begin : begin + shard_file.CHUNK_BYTES]
            aligned[: len(piece)] = piece
            os.pwrite(file, aligned, offsets[index])
        return zlib.crc32(piece)

    try:
        os.truncate(file, len(chunks) * shard_file.CHUNK_BYTES)
        thread_map(write, range(len(chunks)), 4)
        os.fsync(file)
    finally:
        os.close(file)
    path.unlink()


def write_torch(folder: Path, tensors: Tensors) -> None:
    """torch.save, to a file that is then on disk."""
    with atomic_file.replacement(folder / "state.pt") as file:
        torch.save(dict(tensors), file)


def write_dcp(folder: Path, tensors: Tensors) -> None:
    """Its own files, which it syncs."""
    dcp.save(dict(tensors), storage_writer=dcp.FileSystemWriter(folder / "dcp", sync_files=True), no_dist=True)


def forget(folder: Path) -> None:
    """Let the page cache go of all files."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


def measured(folder: Path, tensors: Tensors, rounds: int) -> dict[str, float]:
    """Seconds by what was done, medians."""
    shard = write_ours(folder, tensors, 4)
    target = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
    ways: dict[str, Callable[[], object]] = {
        "write torch.save": lambda: write_torch(folder, tensors), "write dcp.save": lambda: write_dcp(folder, tensors),
        **{f"write ours, {threads}": lambda threads=threads: write_ours(folder, tensors, threads) for threads in (1, 2, 4)},  # type: ignore[misc]
        "write O_DIRECT": lambda: write_direct(folder, tensors),
        "read torch.load": lambda: torch.load(folder / "state.pt"), "read dcp.load": lambda: dcp.load(target, checkpoint_id=folder / "dcp", no_dist=True),
        **{f"read ours, {threads}": lambda threads=threads: read_ours(folder, shard, threads) for threads in (1, 4)},  # type: ignore[misc]
    }  # fmt: skip
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            if name.startswith("read"):
                forget(folder)
            found[name].append(seconds(way))
    return {name: statistics.median(times) for name, times in found.items()}


def read_ours(folder: Path, shard: ShardFile, threads: int) -> None:
    """Verified, as `checkpoint.load` does."""
    shard_file.THREADS = threads
    named = ShardFile(SHARD, shard.bytes, shard.crc32)
    shard_file.tensors_in(shard_file.read(folder, named), folder / SHARD)


def rows_of(size: int, found: Mapping[str, float]) -> list[Row]:
    """Rates, and ratios to the peers."""

    def rate(name: str) -> str:
        return f"{size / found[name] / 1e6:,.0f} MB/s"

    def row(what: str, ours: str, peers: tuple[str, str], *, has_goal: bool) -> Row:
        ratios = [found[peer] / found[ours] for peer in peers]
        beside = "; ".join(f"{peer.partition(' ')[2]} {rate(peer)}" for peer in peers)
        return Row(what, rate(ours), f"≥ {GOAL:g} × torch" if has_goal else "", ratios[0] >= GOAL if has_goal else None, beside, " and ".join(f"{ratio:.2f}×" for ratio in ratios))

    writers, readers = ("write torch.save", "write dcp.save"), ("read torch.load", "read dcp.load")
    return [
        row("written and on disk, 4 threads, with its CRC-32", "write ours, 4", writers, has_goal=True),
        row("the same, 2 threads", "write ours, 2", writers, has_goal=False),
        row("the same, 1 thread", "write ours, 1", writers, has_goal=False),
        row("with O_DIRECT, 4 threads (no product code)", "write O_DIRECT", ("write ours, 4", "write torch.save"), has_goal=False),
        row("read cold and verified, 4 threads", "read ours, 4", readers, has_goal=True),
        row("the same, 1 thread", "read ours, 1", readers, has_goal=False),
    ]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", default=None, help="on the disk that is measured; default: the temporary directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")  # that there is no process group, which is as it is meant
    count = int(options.gib * (1 << 30)) // TENSORS // 4
    tensors = {f"layer{index}": torch.rand(count) for index in range(TENSORS)}
    size, steal, load = count * 4 * TENSORS, neighbours(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="eagle-eye-storage-", dir=options.folder) as folder:
        rows = rows_of(size, measured(Path(folder), tensors, options.rounds))
    waiting = Row("processes that wanted the processors, before and at the end", f"{load:.1f}, {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", peer="above 2 the figures above say little")
    return report([*rows, steal(), waiting], options.json, f"a shard of {size / 1e9:.2f} GB, and what others write of the same tensors")


if __name__ == "__main__":
    sys.exit(main())
