"""How fast a checkpoint in memory comes from another node, beside plain TCP; what a flipped bit and a kill do to it.

    python -m benchmarks.checkpoint.neighbour                       512 MiB, 200 kills
    python -m benchmarks.checkpoint.neighbour --mib 1024 --moments 20

A process serves the copies as a launcher does, on loopback; another one fetches them into a segment, which is verified and stamped. The rate of TCP
is that of plain sockets between two processes in the same run, in turn with ours, over 1, 2 and 4 connections, the best of them: once 4 MiB from one
buffer into one buffer, both of which stay in the cache, so that no memory is read or written (the goal is a share of this), and once the bytes of
such a segment into another one, all of them mapped before, which is what any program has to do. A process that fetches copy after copy is killed (SIGKILL) at random moments; then each slot of its segment is
whole, digest and sums, or says that it is not.
"""

import argparse
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from benchmarks.report import Row, report
from eagle_eye.training.checkpoint.memory_segment import (
    PAGE,
    ROW,
    SLOTS,
    MemorySegment,
    SegmentFile,
    TornCopy,
    rows_of,
    slot_bytes,
)
from remediation.checkpoint.copy_client import CopyChanged, CopyClient
from remediation.checkpoint.copy_files import CopyFiles, CopyName, changed_row
from remediation.checkpoint.copy_server import CopyServer
from remediation.checkpoint.copy_states import StoredMark
from remediation.checkpoint.copy_wire import Source

TRIES = 5
SHARE = 0.8
"""Goal: of the rate of TCP."""
KEY = b"benchmark's own" * 2
LONGEST_S = 0.3
"""Until a kill, at most."""
BUFFER = 1 << 22


def main() -> int:
    """Measure, flip, kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--moments", type=int, default=200)
    parser.add_argument("--flips", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="neighbour-", dir="/dev/shm") as folder:
        rows = rate(Path(folder), given.mib << 20)
        rows += [flips(Path(folder), given.flips, Random(given.seed))] if given.flips else []
        rows += [kills(Path(folder), given.moments, Random(given.seed))] if given.moments else []
    return report(rows, given.json, f"copies of another node, {given.mib} MiB, seed {given.seed}")


def rate(folder: Path, size: int) -> list[Row]:
    """Of a copy, and of plain sockets, in turn."""
    write(folder / "r-0.memory", [1], size)
    cached, moved, ours = [], [], []
    with served(folder, "r-") as source, closing(MemorySegment.create(folder / "fetched.memory", slot_bytes(200, size), "r/n/0")) as target, closing(MemorySegment.open(folder / "r-0.memory")) as content:
        for segment in (target, content):
            segment.populate()
        buffer = memoryview(bytearray(BUFFER))
        for _ in range(TRIES):
            cached.append(max(tcp_rate(size, count, buffer, buffer) for count in (1, 2, 4)))
            moved.append(max(tcp_rate(size, count, content.memory[PAGE:], target.memory[PAGE:]) for count in (1, 2, 4)))
            began = time.perf_counter()
            fetch(source, target)
            ours.append(size / (time.perf_counter() - began))
    (folder / "r-0.memory").unlink()
    (folder / "fetched.memory").unlink()
    best, found, same = max(cached), statistics.median(ours), max(moved)
    what = f"load from the neighbour, verified, {size >> 20} MiB: median of {TRIES}"
    return [
        Row(what, f"{found / 1e9:.2f} GB/s", f"≥ {SHARE:.0%} of TCP", found >= SHARE * best, f"TCP from cache to cache {best / 1e9:.2f} GB/s", f"{found / best:.2f}"),
        Row("the same beside plain sockets that move the same bytes, not verified", f"{found / 1e9:.2f} GB/s", peer=f"TCP from memory to memory {same / 1e9:.2f} GB/s", ratio=f"{found / same:.2f}"),
    ]


def flips(folder: Path, count: int, random: Random) -> Row:
    """One bit of the payload, of the copy that is served: found before the copy is visible."""
    size, found = 4 << 20, 0
    for _ in range(count):
        path = folder / "f-0.memory"
        write(path, [1], size)
        with closing(SegmentFile(path)) as segment:
            at = segment.read(0).payload_at + random.randrange(size)
        with path.open("r+b", buffering=0) as file:
            file.seek(at)
            [byte] = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ (1 << random.randrange(8))]))
        with served(folder, "f-") as source, closing(MemorySegment.create(folder / "flipped.memory", slot_bytes(200, size), "r/n/0")) as target:
            try:
                fetch(source, target)
            except CopyChanged:
                found += target.memory[PAGE : PAGE + 8] == bytes(8)
        path.unlink()
    return Row(f"one flipped bit in the neighbour's copy, {count} times: found, and nothing visible", f"{found} of {count}", "all", found == count)


def kills(folder: Path, moments: int, random: Random) -> Row:
    """Of a process that fetches copy after copy into the two slots."""
    write(folder / "k-0.memory", [1, 2], 2 << 20)
    torn = silent = 0
    path = folder / "killed.memory"
    with served(folder, "k-") as source:
        for _ in range(moments):
            child = forked(lambda: fetch_for_ever(source, path))
            deadline = time.monotonic() + 60
            while not path.exists() and time.monotonic() < deadline:
                threading.Event().wait(0.005)
            threading.Event().wait(random.uniform(0, LONGEST_S))
            end(child)
            whole = list(whole_steps(path))
            torn += any(not right for _, right in whole)
            silent += not whole
            path.unlink(missing_ok=True)
    return Row(f"fetching killed at {moments} random moments: torn copies that look whole, moments without a whole one", f"{torn}, {silent}", "0, 0", not torn and not silent)


def whole_steps(path: Path) -> Iterator[tuple[int, bool]]:
    """Step of each slot that says that it is whole, and whether it is."""
    with closing(MemorySegment.open(path)) as segment:
        for slot in range(segment.slots):
            try:
                content = segment.read(slot)
            except TornCopy:
                continue
            payload = segment.memory[content.payload_at : content.payload_at + rows_of(content.payload_bytes) * ROW]
            yield content.step, changed_row(payload, content.sums, 0) < 0


def fetch_for_ever(source: Source, path: Path) -> None:
    """Until it is killed."""
    segment = MemorySegment.create(path, slot_bytes(200, 2 << 20), "r/n/0")
    number = 0
    while True:
        fetch(source, segment, number % SLOTS, number := number + 1)


def fetch(source: Source, target: MemorySegment, slot: int = 0, sequence: int = 1) -> None:
    """One copy into that slot."""
    client = CopyClient(source, None)
    with client.connected() as connection:
        names = connection.ask({"kind": "list", "rank": 0, "world": 1})["copies"]
        name = msgspec.convert(names[sequence % len(names)], CopyName)
        client.fetch(name, client.describe(connection, name), target, slot, sequence)


def write(path: Path, steps: list[int], size: int) -> None:
    """A segment with random copies of these steps."""
    with closing(MemorySegment.create(path, slot_bytes(200, size), "r/n/0")) as segment:
        for slot, step in enumerate(steps):
            at, count = segment.payload_at(slot, size), rows_of(size) * ROW
            words = np.frombuffer(segment.memory[at : at + count], dtype=np.int64)
            words[:] = np.random.default_rng(step).integers(-(1 << 62), 1 << 62, len(words))
            sums = words.reshape(-1, ROW // 8).sum(axis=1).tobytes()
            segment.stamp(slot, step, slot + 1, msgspec.json.encode({"rank": 0, "world": 1, "finite": True}), sums, size)


@contextmanager
def served(folder: Path, prefix: str) -> Iterator[Source]:
    """By another process."""
    read, written = os.pipe()

    def serve() -> None:
        server = CopyServer("127.0.0.1", KEY, lambda: CopyFiles(folder, prefix, 1), lambda *_: ((), StoredMark()), lambda *_: None, lambda _: None, None)
        os.write(written, str(server.source.port).encode())
        signal.pause()

    child = forked(serve)
    try:
        yield Source("127.0.0.1", int(os.read(read, 16)), KEY)
    finally:
        end(child)
        os.close(read)
        os.close(written)


def tcp_rate(size: int, connections: int, source: memoryview, target: memoryview) -> float:
    """Bytes a second of plain sockets: each connection has its share of `size`, from and to its part of the buffers, over and over where they are shorter."""
    share = size // connections
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()

        def serve() -> None:
            accepted = [listener.accept()[0] for _ in range(connections)]
            at_once([partial(send, each, part_of(source, number, share), share) for number, each in enumerate(accepted)])
            signal.pause()

        child = forked(serve)
        try:
            ends = [socket.create_connection(address) for _ in range(connections)]
            began = time.perf_counter()
            at_once([partial(take, each, part_of(target, number, share), share) for number, each in enumerate(ends)])
            seconds = time.perf_counter() - began
            for each in ends:
                each.close()
        finally:
            end(child)
    return size / seconds


def part_of(buffer: memoryview, number: int, share: int) -> memoryview:
    """Of one connection; all of it where the parts are not all in it."""
    return buffer[number * share : (number + 1) * share] if len(buffer) > BUFFER else buffer


def at_once(work: list[Callable[[], None]]) -> None:
    """Each in a thread."""
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def send(connection: socket.socket, content: memoryview, count: int) -> None:
    """So many bytes."""
    done = 0
    while done < count:
        at = done % len(content)
        done += connection.send(content[at : at + min(BUFFER, count - done)])


def take(connection: socket.socket, buffer: memoryview, count: int) -> None:
    """So many bytes."""
    done = 0
    while done < count:
        at = done % len(buffer)
        done += connection.recv_into(buffer[at : at + min(BUFFER, count - done)])


def forked(work: Callable[[], None]) -> int:
    """Pid of a process that does it."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - of a process that is about to be killed
        sys.stderr.write(f"{error!r}\n")
    os._exit(1)


def end(child: int) -> None:
    """Kill it, and wait."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


if __name__ == "__main__":
    sys.exit(main())
