"""The workers of one node: started, supervised, stopped. Each unexpected end is reported once."""

import asyncio
import contextlib
import logging
import os
import re
import secrets
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from eagle_eye.errors import ConfigError, RingError
from eagle_eye.training import messages
from eagle_eye.training.checkpoint.memory_segment import SUFFIX
from eagle_eye.training.checkpoint.shared_chunks import CHUNK_SUFFIX
from eagle_eye.training.ring_buffer import LoopState, RingReader, ScriptEnd
from eagle_eye.types import Layout, RankPlacement, digest_of
from remediation.launcher.coordinator.failure_signature import ended_by_itself
from remediation.launcher.launcher_settings import LauncherSettings
from remediation.launcher.training_command import TrainingCommand

from .death_watch import DeathWatch, process_stat
from .memory_cgroup import POLL_S, OomKill, OomWatch
from .worker_environment import StoreAddress, WorkerPaths, with_gloo_interface, worker_environment
from .worker_exit import code_of
from .worker_process import Worker
from .zygote_client import ZygoteLink, kill_group

log = logging.getLogger(__name__)

STATUS_S = 5.0
"""A process that is gone was reaped by the zygote: its word of how it ended is under way, however busy the machine, or else the zygote is lost, which
is heard of, too. An end without a code would be taken for a death, also of a worker that was done."""
WORDS_S = 0.02
"""How long an exit code that nobody has explained waits for the exception that may be under way in the inbox ..."""
WORDS_LONGEST_S = 5.0
"""... and so long where the ring says that there is one, and this machine is busy."""
TEARDOWN_S = 2.0
"""A process that is at its exit handlers for longer may have kept its connections until its end."""
RECENT = 16
FEWEST = 3
"""Steps whose length says something about the next one's."""
LONGEST_SOCKET = 103
"""Bytes of the path of a unix socket."""


OnEnd = Callable[[Worker, int | None], None]
"""A worker ended by itself: status as of waitpid, None if it cannot be known."""


class Workers:
    """All workers of this node, of one epoch at a time."""

    def __init__(
        self, settings: LauncherSettings, command: TrainingCommand, environment: dict[str, str], on_end: OnEnd, memory: OomWatch | None = None
    ) -> None:
        self._settings = settings
        self._command = command
        self._environment = with_gloo_interface(environment, settings.address)
        self._on_end = on_end
        self._watch = DeathWatch(self._noticed)
        self._memory = memory or OomWatch()
        self._by_pid: dict[int, Worker] = {}
        self._former: tuple[Worker, ...] = ()
        """Of the start before: what one of them raised may be read when its successor runs."""
        self._early: dict[int, tuple[int, float | None]] = {}
        """Ends that were heard of together with the birth: pid → status."""
        self._ended = asyncio.Event()
        self._starting = False
        """Some of the epoch are not forked yet."""
        self._stopping = False
        """All are about to be ended."""
        self._orders = 0
        """How often all were to end."""
        self._after_death = False
        """They were last ended because a worker of the job had died."""
        self._untold: dict[int, Worker] = {}
        """Those that ended with an exit code, and may have raised what is not read yet: pid → worker."""
        self._forking: set[str] = set()
        """Workers whose pid the zygote has not reported yet."""
        self._forked = asyncio.Event()
        self._readers: dict[int, RingReader] = {}
        self._ring_dir = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else settings.run_dir  # noqa: S108 - shared memory, names are ours
        home = digest_of(str(settings.run_dir.absolute()))[:8]  # shared memory is the machine's: two nodes on it may have the same name
        self._rings = f"eagle-eye-{os.getuid()}-{settings.run}-{settings.node}-{home}-"
        self.zygote: ZygoteLink | None = None

    @property
    def segments(self) -> tuple[Path, str] | None:
        """Folder and beginning of the names of this node's segments; None where there is no shared memory."""
        return None if self._ring_dir == self._settings.run_dir else (self._ring_dir, self._rings)

    @property
    def all(self) -> tuple[Worker, ...]:
        """The workers of the present epoch."""
        return tuple(worker for worker in self._by_pid.values() if not worker.replaced)

    def find(self, name: str) -> Worker | None:
        return next((worker for worker in self.all if worker.name == name), None)

    def sender(self, name: str, pid: int) -> Worker | None:
        """The worker that a message is from: also one that has ended, and whose name another has by now."""
        known = (worker for worker in (*self._by_pid.values(), *self._former) if worker.pid == pid and worker.name == name)
        return next(known, None) or self.find(name)

    async def watch_deaths(self) -> None:
        """Until cancelled."""
        await self._watch.run()

    async def watch_memory(self) -> None:
        """Watch for kills of the out-of-memory killer, until cancelled."""
        while True:
            self._memory.look()
            await asyncio.sleep(POLL_S)

    def oom_kill(self, worker: Worker, *, child: bool = False, ended: bool = True) -> OomKill | None:
        """Whether a worker that has just died, or raised, was killed for want of memory, or missed a process of its own (`child`) that was."""
        return self._memory.explain(worker.pid, child=child, ended=ended)

    # --- start -------------------------------------------------------------------------------------------------

    async def start(self, layout: Layout, store: StoreAddress, max_restarts: int) -> None:
        """Fork this node's workers of a layout. Raises LaunchError."""
        self._former = tuple(self._by_pid.values())
        self._by_pid.clear()
        self._memory.forget()
        self._close_readers()
        self._after_death = False
        self._starting = True
        try:
            for place in layout.placements:
                if place.node == self._settings.node:
                    await self._fork(layout, place, store, max_restarts)
        finally:
            self._starting = False
        self._sweep(layout.epoch - 1)

    @property
    def finished(self) -> bool:
        """All workers of the epoch have ended with code 0. The first may do so before the last is forked."""
        return not self._starting and all(worker.end == 0 for worker in self._by_pid.values())

    async def fork_joining(self, layout: Layout, slot: int, store: StoreAddress, max_restarts: int) -> None:
        """Fork an elastic worker that will join the running epoch; its predecessor in the slot is dead. Raises LaunchError."""
        node, run = self._settings.node, self._settings.run
        place = RankPlacement(worker=f"{run}/{node}/{slot}", node=node, rank=len(layout.placements), local_rank=slot)
        before = self.find(place.worker)
        if before is not None:
            self._retire(before)
        widened = msgspec.structs.replace(layout, placements=(*layout.placements, place))
        worker = await self._fork(widened, place, store, max_restarts, joining=True)
        worker.elastic = True

    def is_on_its_way(self, slot: int) -> bool:
        """A process of that slot was forked to join, lives, and has not been part of an epoch yet."""
        found = next((worker for worker in self.all if worker.place.local_rank == slot), None)
        return found is not None and found.elastic and found.running and not (found.member or found.ordered or found.fenced or found.expected)

    def _retire(self, worker: Worker) -> None:
        """Another takes its slot. What it wrote stays for the search for the cause of its death; what its predecessors wrote goes."""
        for old in [old for old in self._by_pid.values() if old.replaced and old.name == worker.name and old.status is not None]:
            reader = self._readers.pop(old.pid, None)
            if reader is not None:
                reader.close()
            del self._by_pid[old.pid]
            for path in {old.ring, old.socket} - {worker.ring, worker.socket}:
                with contextlib.suppress(OSError):  # a later sweep finds it
                    path.unlink(missing_ok=True)
        worker.replaced = True

    def adopt(self, layout: Layout) -> None:
        """The living workers are these ranks now."""
        for place in layout.placements:
            worker = self.find(place.worker)
            if worker is not None:
                worker.place, worker.epoch, worker.member = place, layout.epoch, True

    @property
    def noticed_s(self) -> float:
        """How long ago, at the most, a worker whose end is being reported died."""
        return self._watch.noticed_s

    def quicken(self) -> None:
        """Deaths are to be noticed as fast as elastic workers can do something about them."""
        self._watch.quicken()

    def kill(self, worker: Worker) -> None:
        """End one, at our own wish."""
        worker.order_end(asyncio.get_running_loop().time())
        if worker.status is None and self.zygote is not None:
            self.zygote.kill(worker.pid, signal.SIGKILL)

    async def _fork(self, layout: Layout, place: RankPlacement, store: StoreAddress, max_restarts: int, joining: bool = False) -> Worker:
        if self.zygote is None:
            raise RuntimeError("workers are started after the zygote")
        settings = self._settings
        ring, probe = self._ring_of(place.local_rank, layout.epoch), self._socket_of(place.local_rank, layout.epoch)
        log_file = settings.logs / f"{place.local_rank}.log"
        secret = secrets.token_hex(16)
        paths = WorkerPaths(
            inbox=str(settings.inbox), ring=str(ring), probe=str(probe), checkpoints=str(settings.checkpoints),
            memory=str(self.memory_path(place.local_rank)) if self.segments else "", copies=settings.copies_in_memory, elastic=str(settings.elastic_socket),
        )  # fmt: skip
        environment = worker_environment(self._environment, layout, place, store, paths, secret, max_restarts)
        if joining:
            environment["EAGLE_EYE_JOINING"] = "1"
        length = log_file.stat().st_size if log_file.exists() else 0
        cwd = str(settings.working_dir or Path.cwd())
        self._early.clear()
        orders = self._orders
        self._forking.add(place.worker)
        try:
            pid = await self.zygote.fork(
                str(place.local_rank), self._command.argv, environment, cwd, str(log_file), self._command.python
            )
            self._memory.watch(pid)
            seen = process_stat(pid)
            worker = self._by_pid[pid] = Worker(
                place=place, epoch=layout.epoch, born=layout.epoch, pid=pid, start_time=seen.start_time if seen else 0, secret=secret,
                log=log_file, log_from=length, ring=ring, socket=probe, began=asyncio.get_running_loop().time(),
            )  # fmt: skip
        finally:
            self._forking.discard(place.worker)
            self._forked.set()
        if orders != self._orders:  # it was born into an end
            self.kill(worker)
        if pid in self._early:
            asyncio.get_running_loop().call_soon(self.exited, pid, *self._early.pop(pid))
        else:
            self._watch.watch(pid)
        return worker

    async def until_forked(self, name: str) -> None:
        """Wait while a worker of that name is being forked: it may speak before its pid is known here."""
        while name in self._forking:
            self._forked.clear()
            await self._forked.wait()

    # --- stop --------------------------------------------------------------------------------------------------

    async def stop(self, grace_s: float = 0.0, *, after_death: bool = False) -> None:
        """End all workers: SIGKILL, after SIGTERM and a grace if there is one. Returns when none is left and those that ended before are told.

        `after_death`: one of the job has died, and it may be here. Its peers' words of a broken connection come first, and with them this order.
        Otherwise who has just ended with an exit code has missed a peer that was ended a moment before, and is not told; who was killed is.
        """
        self._after_death = after_death
        self._stopping = True
        self._watch.look()
        self._stopping = False
        self.expect_end()
        await self._end_all(grace_s)
        await self._tell_untold()

    async def _end_all(self, grace_s: float) -> None:
        if grace_s > 0:
            for worker in self._by_pid.values():
                worker.expected = True
            self._signal(signal.SIGTERM)
            if await self._all_gone(grace_s):
                return
        self._signal(signal.SIGKILL)
        if not await self._all_gone(self._settings.stall.end_s):
            stuck = ", ".join(str(worker.pid) for worker in self._by_pid.values() if worker.status is None)
            raise TimeoutError(f"processes {stuck} do not end though killed: the kernel holds them (a dead disk or GPU?)")

    async def _tell_untold(self) -> None:
        """Before a launcher votes for the next epoch: by what has ended the workers it is judged whether the program is to blame."""
        deadline = time.monotonic() + WORDS_S
        while any(self._is_raising(worker) for worker in self._untold.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.001)
        for worker in tuple(self._untold.values()):
            self._tell_now(worker)

    def expect_end(self) -> None:
        """From now on no end of the present workers is an event: their peers may be stopped before they are."""
        self._orders += 1
        now = asyncio.get_running_loop().time()
        for worker in self._by_pid.values():
            worker.order_end(now)

    def _signal(self, number: int) -> None:
        for worker in self._by_pid.values():
            if worker.status is None and self.zygote is not None:
                self.zygote.kill(worker.pid, number)

    async def _all_gone(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(worker.status is None for worker in self._by_pid.values()):
                    self._ended.clear()
                    await self._ended.wait()
                return True
        return False

    # --- ends --------------------------------------------------------------------------------------------------

    def exited(self, pid: int, status: int, ended_s: float | None = None) -> None:
        """The zygote reaped a process. `ended_s`: when, by CLOCK_MONOTONIC."""
        worker = self._by_pid.get(pid)
        if worker is None:
            self._early[pid] = status, ended_s
            return
        worker.status, worker.ended_s = status, ended_s
        self._watch.forget(pid)
        self._ended.set()
        self._tell(worker, status)

    def zygote_lost(self) -> None:
        """The zygote is gone: the kernel has killed the workers, what they had started is ours to end."""
        for worker in self._by_pid.values():
            if worker.status is None:  # of a reaped one the zygote has ended the group, and its pid may be a stranger's now
                kill_group(worker.pid, signal.SIGKILL)
                self.exited(worker.pid, int(signal.SIGKILL))

    def _noticed(self, pid: int, status: int | None) -> None:
        worker = self._by_pid.get(pid)
        if worker is None:
            return
        worker.dying, worker.doubtful = not worker.ordered, self._stopping
        if status is not None:
            self._tell(worker, status)
        else:
            asyncio.get_running_loop().call_later(STATUS_S, self._tell, worker, None)

    def _tell(self, worker: Worker, status: int | None) -> None:
        """One death is reported once, and of those that were ordered only what the worker had raised before."""
        if worker.noticed:
            return
        worker.noticed = True
        worker.end = status if status is not None else worker.status
        if not worker.elastic:
            self._note_script_end(worker)
        code = code_of(worker.end)
        if worker.ordered or (worker.doubtful and not self._after_death and (code is None or code >= 0)):
            self._overtaken(worker)
        elif code is not None and code > 0 and not worker.exception:
            self._untold[worker.pid] = worker
            asyncio.get_running_loop().call_later(WORDS_S, self._tell_late, worker, time.monotonic() + WORDS_LONGEST_S)
        else:
            self._on_end(worker, worker.end)

    def _tell_late(self, worker: Worker, deadline: float) -> None:
        """Its exit may have overtaken its last words."""
        if self._untold.get(worker.pid) is worker and self._is_raising(worker) and time.monotonic() < deadline:
            asyncio.get_running_loop().call_later(WORDS_S, self._tell_late, worker, deadline)
        else:
            self._tell_now(worker)

    def _tell_now(self, worker: Worker) -> None:
        if self._untold.get(worker.pid) is worker:
            del self._untold[worker.pid]
            self._on_end(worker, worker.end)

    def _is_raising(self, worker: Worker) -> bool:
        """What it has raised is on its way."""
        return not worker.exception and self._has_raised(worker)

    def _has_raised(self, worker: Worker) -> bool:
        """It writes its exception into its ring once it has sent it."""
        with contextlib.suppress(RingError):
            reader = self.reader(worker)
            return reader is not None and reader.error() is not None
        return False

    def _note_script_end(self, worker: Worker) -> None:
        """It is dated by the end of its script: its connections are closed then, and its peers end of that, sooner than its process ends.

        Who had left its script before its end was ordered ended by itself.
        """
        ended, ordered_s = self._script_end(worker), worker.ordered_s
        if ordered_s is None:
            now = asyncio.get_running_loop().time()
            if ended is not None and worker.end == ended.code << 8 and now - ended.time_s <= TEARDOWN_S:
                worker.ended_s = ended.time_s
            return
        if not self._after_death or worker.expected:
            return
        if ended is None and worker.end == 0:  # it marks nothing: what a SIGKILL ends has another status
            ended = ScriptEnd(ordered_s, 0)
        if ended is not None and ended.time_s <= ordered_s and worker.end in (None, int(signal.SIGKILL), ended.code << 8):
            worker.end, worker.ended_s, worker.ordered_s = ended.code << 8, ended.time_s, None
            worker.dying = worker.doubtful = True

    def _script_end(self, worker: Worker) -> ScriptEnd | None:
        with contextlib.suppress(RingError):
            reader = self.reader(worker)
            return reader.script_end() if reader is not None else None
        return None

    def _overtaken(self, worker: Worker) -> None:
        """The order to end it came before its death was told: only what it had failed of is."""
        worker.overtaken = True
        code = code_of(worker.end)
        if worker.exception or (ended_by_itself(code) and not worker.expected):  # the order is a SIGKILL
            self._on_end(worker, worker.end)

    # --- progress ----------------------------------------------------------------------------------------------

    def reader(self, worker: Worker) -> RingReader | None:
        """The ring of a worker, None while it has none."""
        if worker.pid not in self._readers:
            try:
                self._readers[worker.pid] = RingReader.open(worker.ring)
            except RingError:
                return None
        return self._readers[worker.pid]

    def step(self, worker: Worker) -> str:
        """The last step that it began, '' if unknown."""
        with contextlib.suppress(RingError):
            reader = self.reader(worker)
            if reader is not None and (step := reader.now().step) >= 0:
                return str(step)
        return ""

    def completed(self) -> int | None:
        """Steps completed in this epoch by the worker that has done most; None if no worker has begun one.

        Every script gets a ring, also one that knows nothing of steps.
        """
        return max((now.completed for now in self._now() if now.step >= 0), default=None)

    @property
    def highest_step(self) -> int:
        """That any worker of this node has begun; -1 if none is known."""
        return max((now.step for now in self._now()), default=-1)

    def now(self, worker: Worker) -> LoopState | None:
        """What a worker does at this moment, None if it does not tell."""
        with contextlib.suppress(RingError):
            reader = self.reader(worker)
            return reader.now() if reader is not None else None
        return None

    def step_s(self, worker: Worker) -> float | None:
        """Median length of its last steps in seconds, None before it has completed some."""
        with contextlib.suppress(RingError):
            reader = self.reader(worker)
            records = reader.steps(reader.now().step - RECENT) if reader is not None else []
            lengths = [record.values["step_s"] for record in records if "step_s" in record.values]
            return statistics.median(lengths) if len(lengths) >= FEWEST else None
        return None

    def _now(self) -> Iterator[LoopState]:
        for worker in self.all:
            reader = self.reader(worker)
            if reader is not None:
                with contextlib.suppress(RingError):
                    yield reader.now()

    # --- tokens and files --------------------------------------------------------------------------------------

    def token(self, worker: Worker) -> str:
        """The next one-time token for drills in a worker."""
        worker.tokens += 1
        return messages.token(worker.secret, worker.tokens - 1)

    def close(self) -> None:
        """Forget everything and remove the rings, the checkpoints in memory, and the sockets of the probes."""
        self._watch.close()
        self._close_readers()
        self._sweep(None)

    def _close_readers(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _ring_of(self, slot: int, epoch: int) -> Path:
        return self._ring_dir / f"{self._rings}{slot}-{epoch}.ring"

    def memory_path(self, slot: int) -> Path:
        """The segment of all the worker's processes: a successor finds what its predecessor has saved there."""
        return self._ring_dir / f"{self._rings}{slot}{SUFFIX}"

    def _socket_of(self, slot: int, epoch: int) -> Path:
        return self._settings.run_dir / f"{self._settings.run}-{slot}-{epoch}.sock"

    def check_paths(self) -> None:
        """Raises ConfigError if a socket's path is too long for the kernel."""
        for path in (self._settings.inbox, self._settings.elastic_socket, self._socket_of(self._settings.nproc, 10**6)):
            if len(os.fsencode(path)) > LONGEST_SOCKET:
                raise ConfigError(f"{path} is too long for a unix socket: choose a shorter --run-dir or run name")

    def _sweep(self, keep_from: int | None) -> None:
        """Remove rings and sockets of epochs before `keep_from`; the last epoch's are still being read. None: all, and checkpoints in memory."""
        for folder, prefix in ((self._ring_dir, self._rings), (self._settings.run_dir, f"{self._settings.run}-")):
            ours = re.compile(rf"{re.escape(prefix)}(?:\d+(-(\d+)\.(ring|sock)|(?:-fetched)?{re.escape(SUFFIX)})|backup-\d+of\d+{re.escape(SUFFIX)}|[0-9a-f]+{re.escape(CHUNK_SUFFIX)})")  # run `7-1` beside run `7` keeps its own
            try:
                for path in folder.glob("*.*"):
                    if (named := ours.match(path.name)) and (keep_from is None or int(named[2] or keep_from) < keep_from):
                        path.unlink(missing_ok=True)
            except OSError as error:  # read-only by now, or no descriptor is left: what stays costs some space, and no epoch
                log.warning("what earlier epochs have left in %s cannot be removed: %s", folder, error)
