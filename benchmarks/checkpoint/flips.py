"""One bit of a copy is flipped, in each tier: it has to be found, the next tier used, and an event has to say so.

    python -m benchmarks.checkpoint.flips --count 200 --seed 1     positions for each part of each tier

There is one copy of the newest step in the worker's own memory and one on its neighbour, and storage has that step and the one before. What a flip leaves is
put back before the next one. The worker's part of a load is that of a new client (`MemoryCheckpoints`); its launcher's are the socket, the search
(`CopySearch`) over TCP, and the events of the product; what is in storage was brought there by the launcher's part for that (`StoredCopies`). Flipped are
own memory (expected then: the neighbour's copy of the same step), the neighbour's copy, where the own one is lost (expected: that step from storage), and
storage, where both are lost (expected: the step before). Parts of a copy are its description, the table of what lies where, the sums and the tensors; of a
stored one the manifest and the shard.
"""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
from rich.console import Console
from rich.progress import track

from benchmarks.checkpoint.neighbour import fetch
from benchmarks.report import Row, report
from eagle_eye import MemoryCheckpoints, wire
from eagle_eye.clock import SystemClock
from eagle_eye.training import messages
from eagle_eye.training.checkpoint.checkpoint_directory import FROM_MEMORY
from eagle_eye.training.checkpoint.memory_segment import PAGE, MemorySegment, SegmentFile, slot_bytes
from eagle_eye.types import Event, Layout, RankPlacement
from remediation.checkpoint.copy_files import CopyFiles
from remediation.checkpoint.copy_search import CopySearch, Wanted
from remediation.checkpoint.copy_server import CopyServer
from remediation.checkpoint.copy_states import StoredMark
from remediation.checkpoint.storage_interval import StorageInterval
from remediation.checkpoint.stored_copies import StoredCopies
from remediation.launcher.checkpoint_events import CheckpointEvents
from remediation.launcher.event_log import EventLog
from remediation.launcher.worker.worker_socket import WorkerSocket

JOB, RUN, NODE, NEIGHBOUR, WORKER = "benchmark/flips/r", "r", "n0", "n1", "r/n0/0"
NEWEST = 2
"""The step of the copies in memory; storage has the one before, too."""
KEY = b"benchmark's own" * 2
DESCRIPTION = 88
"""Bytes at the beginning of a slot (memory_segment.py)."""
STORED_S, TOLD_S = 30.0, 10.0
NEXT = {"memory": ("neighbour", NEWEST), "neighbour": ("storage", NEWEST), "storage": ("storage", NEWEST - 1)}
"""Flipped tier → tier and step that are to be loaded."""
NAMES = {"memory": "own memory", "neighbour": "the neighbour's copy", "storage": "storage"}
LAYOUT = Layout(job=JOB, epoch=2, time=1.0, coordinator=NODE, launchers={NODE: "127.0.0.1:1"}, placements=(RankPlacement(worker=WORKER, node=NODE, rank=0, local_rank=0),))
T = TypeVar("T")


class Part(NamedTuple):
    """Of a file."""

    name: str
    path: Path
    at: int
    bytes: int


def state_of(step: int) -> dict[str, Any]:
    """Random bits that a step has alone."""
    generator = torch.Generator().manual_seed(step)
    return {"model": {f"layer {number}": torch.randn(count, generator=generator) for number, count in enumerate((50_000, 7, 30_001))}, "moments": [torch.randn(9, 11, generator=generator)]}


def same(state: Mapping[str, Any], step: int) -> bool:
    """Bit for bit."""
    expected = state_of(step)
    pairs = [*((state["model"][name], tensor) for name, tensor in expected["model"].items()), (state["moments"][0], expected["moments"][0])]
    return all(torch.equal(found, wanted) for found, wanted in pairs)


class Copies:
    """In a folder: of the worker, of its neighbour, and in storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own, self.backup = folder / "own-0.memory", CopyFiles(folder, "kept-", 1).backup_path(0, 1)
        self.kept = folder / "kept"
        for step in range(1, NEWEST + 1):
            self.own.unlink(missing_ok=True)
            with closing(MemoryCheckpoints([], self.own)) as memory:
                memory.prepare(state_of(step))
                if not memory.save(state_of(step), step):
                    raise RuntimeError("nothing was saved: see the log")
            self._store(step)
        self._back_up()
        self.parts = {"memory": self._slot_parts(self.own), "neighbour": self._slot_parts(self.backup), "storage": self._stored_parts()}
        self._whole = {path: path.read_bytes() for path in (self.own, self.backup, *(self.kept / FROM_MEMORY).iterdir())}

    def _store(self, step: int) -> None:
        stop, files, stored = threading.Event(), self.files("own-"), list[tuple[int, int]]()
        interval = StorageInterval(3600.0, tuned=False, now=0.0)
        copies = StoredCopies(self.kept / FROM_MEMORY, NODE, RUN, interval, lambda: self.files("own-"), lambda *_: None, lambda *mark: stored.append(mark), lambda *_: None, stop)
        thread = threading.Thread(target=copies.run)
        thread.start()
        copies.store_newest(files.seen(()), files.name_of, LAYOUT, STORED_S)
        stop.set()
        copies.interrupt()
        thread.join()
        files.close()
        if [mark[0] for mark in stored] != [step]:
            raise RuntimeError(f"step {step} was not stored: {stored}")

    def _back_up(self) -> None:
        with closing(SegmentFile(self.own)) as own:
            content = next(own.read(slot) for slot in range(own.slots) if own.stamp(slot) is not None)
        server = self.serve("own-")
        try:
            with closing(MemorySegment.create(self.backup, slot_bytes(len(content.table), content.payload_bytes), WORKER)) as target:
                fetch(server.source, target)
        finally:
            server.close()

    def files(self, prefix: str) -> CopyFiles:
        return CopyFiles(self.folder, prefix, 1)

    def serve(self, prefix: str) -> CopyServer:
        """As the launcher of that node does."""
        return CopyServer("127.0.0.1", KEY, lambda: self.files(prefix), lambda *_: ((), StoredMark()), lambda *_: None, lambda _: None, None)

    def _slot_parts(self, path: Path) -> list[Part]:
        with closing(SegmentFile(path)) as segment:
            slot = next(slot for slot in range(segment.slots) if segment.stamp(slot) is not None)
            at, content = PAGE + slot * segment.slot_bytes, segment.read(slot)
        table, sums = len(content.table), len(content.sums)
        return [
            Part("description", path, at, DESCRIPTION), Part("table", path, at + PAGE, table), Part("sums", path, at + PAGE + table, sums),
            Part("tensors", path, content.payload_at, content.payload_bytes),
        ]  # fmt: skip

    def _stored_parts(self) -> list[Part]:
        files = [path for path in (self.kept / FROM_MEMORY).iterdir() if f"{NEWEST:012d}" in path.name]
        return [Part("manifest" if path.suffix == ".json" else "shard", path, 0, path.stat().st_size) for path in files]

    def put_back(self, tier: str) -> None:
        """All as it was; then the nearer tiers are lost."""
        for path, content in self._whole.items():
            path.write_bytes(content)
            path.chmod(0o600)
        for lost in {"memory": (), "neighbour": (self.own,), "storage": (self.own, self.backup)}[tier]:
            lost.unlink()


class LauncherPart:
    """What a worker's load needs of its launcher, in a thread of its own."""

    def __init__(self, copies: Copies) -> None:
        self.events: list[Event] = []
        self._copies, self._server = copies, copies.serve("kept-")
        self._checkpoint_events = CheckpointEvents(EventLog(JOB, NODE, "benchmark", SystemClock(), self._write))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.path = copies.folder / "launcher.sock"
        self._socket = WorkerSocket(self.path, self._receive)
        self._search = CopySearch(self._find, None)
        self.run(self._socket.start())

    def run(self, work: "Awaitable[T]") -> T:
        """In its thread."""

        async def awaited() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(STORED_S)

    def _write(self, _topic: str, _key: str, value: bytes) -> None:
        record = wire.RecordReader().read(value)
        if isinstance(record, Event):
            self.events.append(record)

    async def _find(self, _: str) -> Any:
        return self._server.source

    def _receive(self, message: messages.ProbeMessage) -> bytes | None:
        if message["kind"] == "fetch_memory_checkpoint":
            wanted = Wanted(rank=int(message["rank"]), world=int(message["world"]), at_most=int(message["at_most"]), path=self._copies.own, worker=WORKER)
            return messages.reply(True, **msgspec.to_builtins(self._search.ask(int(message["pid"]), wanted, (NEIGHBOUR,), 2)))
        self._checkpoint_events.take(WORKER, message["kind"], message)
        return None

    def begin(self) -> None:
        """A new process of the worker, which has loaded nothing."""
        self.events.clear()
        self.run(self._search.close())
        self._search = CopySearch(self._find, None)

    def told(self) -> Event | None:
        """The first event; it may come a moment later than the load is over."""
        wait = threading.Event()
        for _ in range(int(TOLD_S / 0.002)):
            if self.events:
                return self.events[0]
            wait.wait(0.002)
        return None

    def close(self) -> None:
        """End the thread."""
        self.run(self._search.close())
        self.run(self._socket.stop())
        self._server.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def flip(part: Part, random: Random) -> None:
    """One bit of it."""
    at = part.at + random.randrange(part.bytes)
    with part.path.open("r+b", buffering=0) as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ (1 << random.randrange(8))]))


class Outcome(NamedTuple):
    """Of one flip."""

    wrong: str = ""
    """What did not go as it should."""
    has_reason: bool = False
    """Whether the event says what is the matter with the copy that was passed over."""


def outcome(copies: Copies, launcher: LauncherPart, tier: str) -> Outcome:
    """Load, as the worker's next process does."""
    launcher.begin()
    template = state_of(0)
    with closing(MemoryCheckpoints([], copies.own)) as memory:
        found = memory.load(template)
    expected_tier, expected_step = NEXT[tier]
    if found is None:
        return Outcome("nothing was loaded")
    if not same(found.state, found.step):
        return Outcome("a state was loaded that is not bit for bit what was saved")
    if found.step != expected_step:
        return Outcome(f"step {found.step} was loaded")
    event = launcher.told()
    if event is None:
        return Outcome("no event")
    attributes = event.attributes
    if (event.name, attributes["tier"], attributes["step"]) != ("checkpoint.loaded", expected_tier, str(expected_step)):
        return Outcome(f"{event.name} of step {attributes['step']} from {attributes['tier']}")
    return Outcome(has_reason=bool(attributes["why"]))


def tried(copies: Copies, launcher: LauncherPart, tier: str, count: int, seed: int) -> dict[str, list[Outcome]]:
    """So many flips in each part of that tier's copy."""
    found: dict[str, list[Outcome]] = {}
    for number, part in enumerate(copies.parts[tier]):
        outcomes = found.setdefault(part.name, [])
        for each in track(range(count), f"{NAMES[tier]}, {part.name}", console=Console(stderr=True)):
            copies.put_back(tier)
            flip(part, Random((seed << 40) + (sorted(NEXT).index(tier) << 36) + (number << 32) + each))
            outcomes.append(outcome(copies, launcher, tier))
    return found


def rows_of(tier: str, found: Mapping[str, list[Outcome]]) -> list[Row]:
    """Of one tier."""
    all_of_it = [each for outcomes in found.values() for each in outcomes]
    wrong = Counter(f"{part}: {each.wrong}" for part, outcomes in found.items() for each in outcomes if each.wrong)
    right, reasons = sum(not each.wrong for each in all_of_it), sum(each.has_reason for each in all_of_it)
    next_tier, step = NEXT[tier]
    used = "the step before, from storage," if step < NEWEST else f"the same step from {NAMES[next_tier]}"
    figure = f"{right} of {len(all_of_it)} (in {', '.join(f'{part} {len(outcomes)}' for part, outcomes in found.items())})"
    failed = [f"{times} × {why}" for why, times in wrong.most_common()]
    return [
        Row(f"one flipped bit in {NAMES[tier]}: found, {used} is loaded bit for bit, event", "; ".join([figure, *failed]), "all", right == len(all_of_it)),
        Row("the same: the event says what is the matter with the copy that was passed over", f"{reasons} of {len(all_of_it)}", "all", reasons == len(all_of_it)),
    ]


@contextmanager
def launched(copies: Copies) -> Iterator[LauncherPart]:
    """A launcher's part, and this process as its worker."""
    launcher = LauncherPart(copies)
    os.environ |= {"EAGLE_EYE_SOCKET": str(launcher.path), "EAGLE_EYE_WORKER": WORKER, "EAGLE_EYE_EPOCH": "2", "EAGLE_EYE_CHECKPOINT_DIR": str(copies.kept)}
    try:
        yield launcher
    finally:
        launcher.close()


def main() -> int:
    """Flip, load, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="positions in each part of a copy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("eagle_eye").setLevel(logging.ERROR)  # each copy that is passed over is counted
    logging.getLogger("remediation").setLevel(logging.ERROR)
    for name in [name for name in os.environ if name.startswith("EAGLE_EYE_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="eagle-eye-flips-", dir="/dev/shm") as folder:
        copies = Copies(Path(folder))
        with launched(copies) as launcher:
            found = [row for tier in NEXT for row in rows_of(tier, tried(copies, launcher, tier, options.count, options.seed))]
    return report(found, options.json, f"flipped bits, seed {options.seed}")


if __name__ == "__main__":
    sys.exit(main())
