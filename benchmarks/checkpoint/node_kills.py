"""Two nodes, each with a launcher's cache; on the first a trainer that saves to memory after each step. One of the three is killed at a random moment.

    python -m benchmarks.checkpoint.node_kills --moments 67 --seed 1

Trainer, launcher and neighbour are processes of their own. After the kill what is there is read: each slot of the trainer's segment and of the neighbour's
that says that it is whole has to be, digests, sums and values, and there has to be one of a step that was said to be safe, or of a later one. Who was killed
begins again, and a later step has to arrive on the neighbour. Last the trainer and its node are lost: its state is fetched from the neighbour and loaded.
With `--slots 2` the trainer has memory for two copies, as where a node has no room for three: what is fetched gives way to saves.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track

from benchmarks.checkpoint.kills import LONGEST_S, NUMBER, SEGMENT, is_torn, state_of, tell, train_in_memory
from benchmarks.checkpoint.neighbour import whole_steps
from benchmarks.report import Row, report
from eagle_eye import MemoryCheckpoints
from eagle_eye.parent_death import end_with_parent, of_ours
from eagle_eye.training.checkpoint.memory_checkpoints import COPIES_VARIABLE
from eagle_eye.training.checkpoint.memory_segment import (
    SLOTS,
    SLOTS_WITH_BACKUP,
    fetched_beside,
)
from eagle_eye.types import Layout, RankPlacement
from remediation.checkpoint import backup_keeper, round_leader
from remediation.checkpoint.cache_settings import CacheSettings
from remediation.checkpoint.checkpoint_cache import CheckpointCache
from remediation.checkpoint.copy_search import CopySearch, Wanted
from remediation.checkpoint.copy_states import newest_safe_step
from remediation.checkpoint.copy_wire import Source

KILLED = ("trainer", "launcher", "neighbour")
NODES = ("n0", "n1")
LAYOUT = Layout(
    job="t/j/r", epoch=2, time=1.0, coordinator="n0", launchers={node: f"127.0.0.1:{node[1]}" for node in NODES},
    placements=tuple(RankPlacement(worker=f"r/{node}/0", node=node, rank=rank, local_rank=0) for rank, node in enumerate(NODES)),
)  # fmt: skip
LOOK_S, SAFE_S = 0.02, 0.005
"""How often a cache looks for its neighbour, and tells which step is safe there."""
GOES_ON_S = 60.0
PAUSE_S = 0.2
"""Between two saves of a trainer with two copies: one that takes longer than two saves are apart never arrives."""


class Told:
    """What a process tells, number by number, and its pid."""

    def __init__(self, work: Callable[[Callable[[int], None]], None]) -> None:
        mine, its = os.pipe()
        self.pid = os.fork()  # torch is loaded
        if not self.pid:
            os.close(mine)
            end_with_parent()
            torch.set_num_threads(1)  # torch makes its pool of threads anew in a child, and not while two threads ask for it
            try:
                work(lambda step: tell(its, step))
            except BaseException as error:  # noqa: BLE001 - of a process that is about to be killed
                sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os.close(its)
        os.set_blocking(mine, False)
        self._pipe, self._bytes, self._lives = mine, b"", True
        self.newest = -1

    def look(self) -> int:
        """The newest number."""
        try:
            while piece := os.read(self._pipe, 1 << 16):
                self._bytes += piece
        except BlockingIOError:
            pass
        whole = len(self._bytes) - len(self._bytes) % NUMBER
        if whole:
            self.newest = int.from_bytes(self._bytes[whole - NUMBER : whole], "little")
            self._bytes = self._bytes[whole:]
        return self.newest

    def after(self, step: int) -> None:
        """Wait for a later number."""
        deadline = time.monotonic() + GOES_ON_S
        while self.look() <= step:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing newer than {step} came within {GOES_ON_S:g} s")
            time.sleep(0.002)

    def kill(self) -> int:
        """The newest number that it had told."""
        if self._lives:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.look()
            os.close(self._pipe)
            self._lives = False
        return self.newest


class Pair:
    """The two nodes, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes = {name: self.begin(name) for name in KILLED}

    def begin(self, name: str) -> Told:
        """One of the three, which goes on where its predecessor was killed."""
        if name == "trainer":
            return Told(partial(train_in_memory, self.folder, pause_s=0.0 if int(os.environ[COPIES_VARIABLE]) > SLOTS else PAUSE_S))
        node = NODES[name == "neighbour"]
        (self.folder / node[1]).unlink(missing_ok=True)
        return Told(lambda told: asyncio.run(serve(node, self.folder, told)))

    @property
    def own(self) -> Path:
        return self.folder / SEGMENT

    @property
    def backup(self) -> Path:
        return self.folder / "n1-backup-0of1.memory"

    def place(self, node: str) -> Source:
        words = json.loads((self.folder / node[1]).read_text())
        return Source(words["host"], words["port"], bytes.fromhex(words["key"]))


async def serve(node: str, folder: Path, told: Callable[[int], None]) -> None:
    """A launcher's part. Tells which step of its worker is safe on the other node."""
    backup_keeper.LOOK_S = LOOK_S
    round_leader.ROUND_S = 0.0  # the other node has no trainer: it is not waited for

    async def ask(address: str, _: Mapping[str, Any]) -> Mapping[str, Any]:
        path = folder / address.rpartition(":")[2]
        while not path.exists():
            await asyncio.sleep(SAFE_S)
        return dict(json.loads(path.read_text()))

    settings = CacheSettings(node=node, run="r", host="127.0.0.1", folder=folder, prefix="worker-" if node == "n0" else "n1-", workers=1, limit_bytes=1 << 30)
    cache = CheckpointCache(settings, lambda: LAYOUT, ask, lambda *_: None, None)
    cache.start()
    unfinished = folder / f"{node}.new"
    unfinished.write_text(json.dumps(await cache.answer({})))
    unfinished.replace(folder / node[1])
    newest = -1
    while True:
        safe = newest_safe_step(cache._copies)
        if safe > newest:
            told(newest := safe)
        await asyncio.sleep(SAFE_S)


# --- one moment ----------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What was wrong after a kill, and whether a copy was under way that is not visible."""

    torn: int
    lost: int
    under_way: bool


def moment(folder: Path, killed: str, wait_s: float) -> Outcome:
    """Kill one of the three; see what is there, that it goes on, and what is there when the node is lost."""
    pair = Pair(folder)
    processes = pair.processes
    try:
        processes["launcher"].after(-1)
        time.sleep(wait_s)
        trained = processes["trainer"].look()
        safe = processes[killed].kill()
        torn = lost = 0
        under_way = False
        if killed == "trainer":
            torn, lost, under_way = loaded(pair.own, safe)
        elif killed == "neighbour":
            torn, lost, under_way = kept(pair.backup, processes["launcher"].look())
        if killed != "trainer":
            processes["trainer"].after(trained)  # it trains on while nobody is there
        trained = safe if killed == "trainer" else processes["trainer"].look()
        processes[killed] = pair.begin(killed)
        processes["launcher"].after(trained)
        processes.pop("trainer").kill()
        safe = processes.pop("launcher").kill()
        pair.own.unlink()
        fetched = asyncio.run(fetch(pair))
        torn_there, lost_there, _ = loaded(fetched, safe) if fetched is not None else (0, 1, False)
        processes.pop("neighbour").kill()
        torn_kept, lost_kept, _ = kept(pair.backup, safe)
        return Outcome(torn + torn_there + torn_kept, lost + lost_there + lost_kept, under_way)
    finally:
        for process in processes.values():
            process.kill()


def loaded(path: Path, safe: int) -> Outcome:
    """Each copy in a segment, and what its newest one is for a successor of the trainer."""
    template = state_of(-1)
    torn = sum(not right for _, right in whole_steps(path))
    with closing(MemoryCheckpoints([], path)) as memory:
        found = memory.load(template)
    if found is None:
        return Outcome(torn, 1, False)
    return Outcome(torn + is_torn(template, found.step), found.step < safe, bool(found.skipped))


def kept(path: Path, safe: int) -> Outcome:
    """Each copy in a segment that nobody holds."""
    copies = list(whole_steps(path))
    return Outcome(sum(not right for _, right in copies), max((step for step, _ in copies), default=-1) < safe, len(copies) < SLOTS)


async def fetch(pair: Pair) -> Path | None:
    """What the neighbour has for the trainer's successor; None: nothing."""

    async def find(_: str) -> Source:
        return pair.place("n1")

    search, wanted = CopySearch(find, None), Wanted(rank=0, world=1, path=pair.own, worker="r/n0/0")
    while (answer := search.ask(0, wanted, ("n1",), 1)).state == "busy":
        await asyncio.sleep(0.001)
    return fetched_beside(pair.own) if answer.state == "done" else None


def rows(moments: int, seed: int, slots: int) -> list[Row]:
    """So many moments for each of the three."""
    found = []
    for number, killed in enumerate(KILLED):
        outcomes = []
        for each in track(range(moments), f"{killed} of two nodes", console=Console(stderr=True)):
            with tempfile.TemporaryDirectory(prefix="eagle-eye-kills-", dir="/dev/shm") as folder:
                outcomes.append(moment(Path(folder), killed, LONGEST_S * Random((seed << 34) + (number << 32) + each).random()))
        torn, lost, under_way = (sum(values) for values in zip(*outcomes, strict=True))
        figure = f"{moments} kills: {torn} torn, {lost} older than what was safe or nothing; it went on each time; {under_way} met a copy that was not whole, and said so"
        room = "" if slots == SLOTS_WITH_BACKUP else f" ({slots} copies in memory)"
        found.append(Row(f"{killed} killed while each step goes to memory{room} and to a second node; then the node is lost", figure, "0 torn, 0 lost", not torn and not lost))
    return found


def main() -> int:
    """Kill and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=67, help="for each of the three")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slots", type=int, choices=(SLOTS, SLOTS_WITH_BACKUP), default=SLOTS_WITH_BACKUP, help="copies for which the trainer has memory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger().setLevel(logging.ERROR)  # connections to who was killed are told
    logging.getLogger("eagle_eye").setLevel(logging.ERROR)
    for name in [name for name in os.environ if name.startswith("EAGLE_EYE_")]:
        del os.environ[name]
    os.environ |= {**of_ours(), COPIES_VARIABLE: str(options.slots)}  # as a launcher does that has a neighbour
    return report(rows(options.moments, options.seed, options.slots), options.json, "kills on two nodes")


if __name__ == "__main__":
    sys.exit(main())
