"""The launcher's part of checkpoints in memory: knows those of its workers, has them kept on the next node, keeps those of the one before.

Two threads, that which watches this node's segments and that which keeps the predecessor's copies, and one for each connection to the server: all
of them wait in system calls, so that nothing of it holds up the launcher. What is known is read from the segments, so that it outlives both.
"""

import asyncio
import logging
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from eagle_eye.access.credentials import Credentials
from eagle_eye.errors import EagleEyeError, TemporaryError
from eagle_eye.training.checkpoint.memory_segment import SUFFIX, SlotHold
from eagle_eye.training.save_retry import FIRST_S, LONGEST_S
from eagle_eye.training.storage_failure import UNKNOWN, StorageFailure
from eagle_eye.types import Layout

from .backup_interval import BackupInterval
from .backup_keeper import BackupFailure, BackupKeeper, BackupLimits
from .backup_ring import BackupRing
from .backup_rounds import HOLD_S, BackupRounds
from .cache_settings import CacheSettings
from .copy_files import CopyFiles, CopyName, SegmentTimes
from .copy_search import CopySearch, Found, Wanted
from .copy_server import CopyServer
from .copy_states import (
    Copies,
    Copy,
    CopyState,
    Place,
    StoredMark,
    due,
    neighbour_changed,
    newest_safe_step,
    observe,
    settled,
    stored,
)
from .copy_wire import ProcessorTime, Source
from .round_leader import Round, RoundLeader, told_of, wait_of
from .safety_report import NOWHERE, SafetyReport, Whereabouts, safety_text
from .storage_interval import StorageInterval
from .stored_copies import GATHER_S, EmitStored, StoredCopies, StoredSteps

log = logging.getLogger(__name__)

POLL_S, IDLE_S = 0.02, 0.5
"""How often it is asked whether a worker of this node has written a copy, and how often all is looked at where none has, or there is none."""
ASKED_S = 5.0
"""Nothing is held for a neighbour that has not asked for so long."""
LATE_S = 30.0
"""A copy that is due for so long, and that nobody fetches, is told."""
LEADER_S = 1.0  # pause where the leader of the rounds cannot be asked
FIND_S = 15.0
"""How long another launcher may take to say where it serves its copies."""
END_S = 2.0  # that a thread may take to end
HELD_AGAIN_S = 1.0  # a copy that is being read
TOLD = ("step", "worker", "path", "errno", "reason", "free_bytes", "needed_bytes", "safe_step", "retry_s")
"""Attributes of checkpoint.backup_failed."""

NO_RING = BackupRing((), {})
Ask = Callable[[str, dict[str, Any]], Awaitable[Mapping[str, Any]]]
"""(address of a launcher, question) → what its `answer` gives; raises EagleEyeError."""
Tell = Callable[[str, Mapping[str, str]], object]
"""(message, attributes) of checkpoint.backup_failed; called in the launcher's loop."""


class CheckpointCache:
    """`start` and `close` in the launcher's loop."""

    def __init__(
        self, settings: CacheSettings, layout: Callable[[], Layout | None], ask: Ask, tell: Tell, credentials: Credentials | None, emit_stored: EmitStored = lambda *_: None,
    ) -> None:  # fmt: skip
        self._settings, self._layout, self._ask, self._tell, self._credentials = settings, layout, ask, tell, credentials
        self._key = secrets.token_bytes(32)
        self._server: CopyServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = threading.Event()
        self._changed = threading.Condition()
        """Guards what follows."""
        self._copies: Copies = {}
        self._due: tuple[CopyName, ...] = ()
        self._due_since: float | None = None
        self._told_late = False
        self._kept_by: tuple[str, int] = ("", 0)
        self._ring: tuple[Layout | None, BackupRing] = (None, NO_RING)
        """That of a layout: it is made once for each."""
        self._has_news = False
        """Something is known that the next look is to take in, though no worker has written a copy. Set without the lock."""
        self._is_waited_for = False
        """The neighbour is there, and something is to be sent."""
        self._looked: tuple[Layout | None, float] = (None, float("-inf"))
        """At which layout all was looked at last, and when."""
        self._where = NOWHERE
        self._safety = SafetyReport(time.time, stores=settings.storage is not None)
        self._keeper: BackupKeeper | None = None
        self._asked_at = float("-inf")
        self._rounds = BackupRounds()
        self._leader = RoundLeader()
        self._told = asyncio.Event()
        """There is something to tell the leader of the rounds. In the loop."""
        self._teller: asyncio.Task[None] | None = None
        self._stored = StoredSteps(layout, settings.keep)
        self._sources: dict[str, Source] = {}
        self._search = CopySearch(self._found_source, credentials)
        self._threads: list[threading.Thread] = []
        self._interrupt: Callable[[], None] = lambda: None
        self._read_at: dict[Place, tuple[int, float]] = {}
        """Of a copy that is being fetched: its sequence, and when a piece of it was asked for (or a little before)."""
        self._spent = ProcessorTime()
        self._emit_stored = emit_stored
        self._interval = BackupInterval(settings.every, settings.share, len(os.sched_getaffinity(0)))
        self._storage = self._stored_copies(settings)

    def _stored_copies(self, settings: CacheSettings) -> StoredCopies | None:
        if settings.storage is None:
            return None
        interval = StorageInterval(settings.storage_interval_s, tuned=settings.tune_interval, now=time.monotonic())
        return StoredCopies(settings.storage, settings.node, settings.run, interval, self._files, self._emit, self.stored, self._is_broken, self._stop, settings.keep)

    # --- life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin. A system that refuses a socket or a thread is told, and the job goes on without copies on other nodes."""
        self._loop = asyncio.get_running_loop()
        if self._settings.limit_bytes:
            self._begin("are not copied to another node", self._begin_backup)
            self._teller = self._loop.create_task(self._tell_leader())
        if self._storage is not None:
            self._begin("are not stored", partial(self._start_thread, self._storage.run))
        self._begin("are not looked at", partial(self._start_thread, self._watch))

    def _begin(self, what: str, begin: Callable[[], None]) -> None:
        try:
            begin()
        except (OSError, RuntimeError) as error:
            log.warning("checkpoints in memory %s: %s", what, error)

    def _begin_backup(self) -> None:
        self._server = CopyServer(self._settings.host, self._key, self._files, self._due_names, self._settled, self._reading, self._credentials, self._spent)
        keeper = self._keeper = BackupKeeper(
            self._files(), f"{self._settings.run}/{self._settings.node}", self._predecessor, self._failed_to_keep, self.stored,
            self._credentials, BackupLimits(self._settings.limit_bytes, self._settings.limit_steps), self._stop, self._spent,
        )  # fmt: skip
        self._interrupt = keeper.interrupt
        self._start_thread(keeper.run)

    def _start_thread(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name="eagle-eye-checkpoint-cache", daemon=True)
        thread.start()
        self._threads.append(thread)

    async def store_newest(self, wait_s: float) -> None:
        """The job ends, and so do its segments: bring the newest step to storage, if one is to be stored at all. Waits so long at the most."""
        storage, layout = self._storage, self._layout()
        if storage is None or layout is None:
            return
        files = self._files()
        try:
            await asyncio.to_thread(storage.store_newest, files.seen(layout.rolled_back), files.name_of, layout, wait_s)
        finally:
            files.close()

    async def close(self) -> None:
        """End the threads; the segments stay for whoever removes them."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._interrupt()
        if self._storage is not None:
            self._storage.interrupt()
        await self._search.close()
        if self._teller is not None:
            self._teller.cancel()
            await asyncio.gather(self._teller, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, END_S)

    @property
    def every(self) -> int:
        """So many steps are between two that are copied to another node."""
        return self._interval.every

    # --- for the job's other launchers, and the workers ----------------------------------------------------------

    async def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Where this node serves its copies; to one that tells how its round has ended, the next round. Raises TemporaryError where it serves none, and PermanentError."""
        if self._server is None:
            raise TemporaryError("this launcher serves no copies of checkpoints")
        if question:
            layout = self._layout()
            ring = self._ring_of(layout) if layout is not None else NO_RING
            return dict(msgspec.to_builtins(await self._leader.answer(told_of(question), ring)))
        return {"host": self._server.source.host, "port": self._server.source.port, "key": self._key.hex()}

    def fetch(self, pid: int, wanted: Wanted) -> Found:
        """What other nodes have for a worker of ours: begin to fetch it, or tell how that stands."""
        layout = self._layout()
        if layout is None or self._server is None or layout.epoch <= 1:
            return Found(state="none", why="nothing was copied to another node before")
        wanted = msgspec.structs.replace(wanted, rolled_back=layout.rolled_back)
        return self._search.ask(pid, wanted, (self._settings.node, *self._ring_of(layout).search_order(self._settings.node)), layout.epoch)

    def stored(self, step: int, epoch: int = 0) -> int:
        """A checkpoint of that step is in storage, made in that epoch (0: it is not known). The newest that is there. Without the lock: the launcher's loop calls it, too."""
        self._has_news |= self._stored.add(step, epoch)
        return self._stored.newest().step

    def refused(self, worker: str, tier: str, why: str, file: str) -> None:
        """A worker of ours says that memory or storage has refused its checkpoint. `file`: of its node, where one worker saves for all; '': its own."""
        slot = worker.rpartition("/")[2]
        with self._changed:
            if tier == "storage":
                self._safety.storage_refused(why)
            elif file or slot.isdecimal():
                file = file or self._settings.prefix + slot + SUFFIX
                newest = max((copy.sequence for place, copy in self._copies.items() if place.file == file), default=-1)
                self._safety.memory_refused(file, newest, why)
            self._has_news = True

    # --- the copies of this node -----------------------------------------------------------------------------------

    def _files(self) -> CopyFiles:
        return CopyFiles(self._settings.folder, self._settings.prefix, self._settings.workers)

    def _watch(self) -> None:
        files = self._files()
        times = SegmentTimes(files, self._settings.workers)
        goes_on = self._server is not None or self._storage is not None
        while not self._stop.wait(POLL_S if self._copies and goes_on else IDLE_S):
            try:
                if self._is_to_look(times):
                    self._look(files)
            except Exception:  # boundary: nobody else would look at them
                log.exception("looking at the checkpoints in memory failed; it is done again")
                self._stop.wait(LATE_S)
        files.close()

    def _is_to_look(self, times: SegmentTimes) -> bool:
        """A look takes half a millisecond: where nothing is new it would cost the training more than the copies do."""
        layout, at = self._looked
        return times.have_changed() or self._has_news or self._is_waited_for or self._layout() is not layout or time.monotonic() - at >= IDLE_S

    def _look(self, files: CopyFiles) -> None:
        self._has_news = False
        layout, now = self._layout(), time.monotonic()
        seen = files.seen(layout.rolled_back if layout is not None else ())
        self._looked = layout, now
        with self._changed:
            kept_by = (self._neighbour(layout), layout.epoch) if layout is not None else ("", 0)
            if kept_by != self._kept_by:
                self._kept_by, self._copies, self._due_since, self._told_late = kept_by, neighbour_changed(self._copies), None, False
                self._interval.begin_anew()
                self._where = self._whereabouts(layout)
            stored_step = self._stored.newest().step
            self._copies = stored(observe(self._copies, seen), stored_step, alone=not kept_by[0])
            if self._storage is not None and layout is not None:
                common = self._rounds.common(now) if kept_by[0] else None
                self._storage.look(seen, files.name_of, partial(_hold, files), layout, now, common=common)
            wanted = self._chosen(kept_by[1], now) if kept_by[0] else {}
            asked = now - self._asked_at < ASKED_S
            self._is_waited_for = asked and bool(wanted)
            if self._storage is not None:
                wanted = {place: copy for place, copy in wanted.items() if self._storage.is_free(place)}
            names = tuple(name for place, copy in wanted.items() if (name := self._name(files, place, copy.sequence, asked)) is not None)
            if names != self._due:
                self._due = names
                self._changed.notify_all()
            if kept_by[0]:
                self._rounds.hold(files, self._copies, now)
                if self._rounds.is_over and not self._told.is_set():
                    self._call(self._told.set)
            self._tell_unreadable(files)
            told = self._safety.look(self._copies, lambda place: files.name_of(place) is not None, self._where._replace(agreed=self._rounds.agreed), stored_step, self._failures(), now)
        self._tell_late(bool(wanted), now)
        if told is not None:
            self._emit("checkpoint.safe", safety_text(told), told)

    def _ring_of(self, layout: Layout) -> BackupRing:
        """Asked by each thread; two that make the same one at once do no harm."""
        of, ring = self._ring
        if of is not layout:
            ring = BackupRing.of(layout)
            self._ring = layout, ring
        return ring

    def _neighbour(self, layout: Layout) -> str:
        return self._ring_of(layout).neighbour_of(self._settings.node) if self._server is not None else ""

    def _whereabouts(self, layout: Layout | None) -> Whereabouts:
        """Of a layout that has just begun; a copy in its own failure domain is told once."""
        kept_by, epoch = self._kept_by
        if layout is None:
            return NOWHERE
        shared = self._ring_of(layout).shared(self._settings.node) if kept_by else ""
        if shared:
            log.info("checkpoints in memory of %s are kept by %s, on the same %s: if that fails the job goes on from storage", self._settings.node, kept_by, shared)
        return Whereabouts(kept_by, epoch, shared, len(layout.nodes))

    def _failures(self) -> dict[str, str]:
        """Tier → what keeps a newer checkpoint from being safe there."""
        late = f"{self._kept_by[0]} has not asked for the copies for {LATE_S:g} s" if self._told_late else ""
        backup = late or (self._keeper.failing if self._keeper is not None else "")
        return {"backup": backup, "storage": self._storage.failing if self._storage is not None else ""}

    def _chosen(self, epoch: int, now: float) -> dict[Place, Copy]:
        """What is to be sent."""
        took_s = self._rounds.look(self._copies, epoch, self._interval.every, now)
        if took_s is not None and (changed := self._interval.copied(now, self._spent.seconds, took_s)):
            log.info("%s", changed)
        return due(self._copies, self._rounds.is_chosen)

    def _name(self, files: CopyFiles, place: Place, sequence: int, asked: bool) -> CopyName | None:
        """The due copy, held where somebody is there to fetch it. One that does not fit its digest is broken."""
        segment = files.segment(place.file)
        if segment is None or not asked:
            return None
        if not any((name.file, name.slot, name.sequence) == (*place, sequence) for name in self._due):
            segment.hold(place.slot, sequence, HOLD_S)
        name = files.name_of(place)
        stamp = segment.stamp(place.slot)
        if stamp is None or stamp.sequence != sequence:
            return None  # it was written anew before it was held
        if name is None:
            self._copies = settled(self._copies, place, sequence, broken=True)
            segment.hold(place.slot, sequence, 0.0)
        return name

    def _tell_unreadable(self, files: CopyFiles) -> None:
        """What its worker takes for safe, and no launcher can load, is so for no tier."""
        for place, step, sequence, why in files.unreadable():
            self._safety.memory_refused(place.file, sequence, why)
            if self._storage is not None:
                self._storage.cannot_read(step, f"{self._settings.run}/{self._settings.node}/{place.file.removeprefix(self._settings.prefix).removesuffix(SUFFIX)}", why)
            if self._kept_by[0]:
                self._report(place.file, step, why)

    async def _tell_leader(self) -> None:
        """How each round ends here, until the next one begins."""
        while True:
            await self._told.wait()
            self._told.clear()
            try:
                await self._ask_leader()
            except (EagleEyeError, TimeoutError, KeyError, msgspec.ValidationError) as error:
                log.debug("which checkpoint all nodes copy next cannot be asked for: %s", error)
                await asyncio.sleep(LEADER_S)

    async def _ask_leader(self) -> None:
        layout = self._layout()
        ring = self._ring_of(layout) if layout is not None else NO_RING
        with self._changed:
            told = self._rounds.to_tell(self._settings.node, self._interval.every, wait_of(len(ring)))
        if layout is None or told is None or told.epoch != layout.epoch:
            return
        question = msgspec.to_builtins(told)
        answer = await self.answer(question) if ring.first == self._settings.node else await self._ask(layout.launchers[ring.first], question)
        with self._changed:
            self._rounds.answered(told.epoch, msgspec.convert(answer, Round), time.monotonic())
            is_over, self._has_news = self._rounds.is_over, True
        if is_over:  # the others are not as far: asked again
            await asyncio.sleep(POLL_S)

    def _tell_late(self, waits: bool, now: float) -> None:
        if not waits:
            self._due_since = None
        elif self._due_since is None:
            self._due_since = now
        elif now - max(self._due_since, self._asked_at) > LATE_S and not self._told_late:
            self._told_late = True
            self._report("", -1, f"the launcher on {self._kept_by[0]} has not asked for it for {LATE_S:g} s")

    # --- the server's questions, in its threads ----------------------------------------------------------------------

    def _due_names(self, node: str, wait_s: float) -> tuple[Sequence[CopyName], StoredMark]:
        with self._changed:
            if self._is_neighbour(node):
                self._has_news |= time.monotonic() - self._asked_at >= ASKED_S
                self._asked_at = time.monotonic()
            self._changed.wait_for(lambda: (bool(self._due) and self._is_neighbour(node)) or self._stop.is_set(), wait_s)
            if not self._is_neighbour(node):
                return (), self._stored.newest()
            self._asked_at = time.monotonic()
            return self._due, self._stored.newest()

    def _is_neighbour(self, node: str) -> bool:
        """Who was it in the epoch before may still ask, and be fetching. Launchers of before do not say who they are."""
        return node in {"", self._kept_by[0]}

    def _settled(self, node: str, place: Place, sequence: int, broken: bool, why: str) -> None:
        with self._changed:
            if not broken and not self._is_neighbour(node):
                return  # the neighbour of now is to have it, too
            copy = self._copies.get(place)
            self._copies = settled(self._copies, place, sequence, broken=broken)
            self._due = tuple(name for name in self._due if (name.file, name.slot, name.sequence) != (*place, sequence))
            self._due_since, self._told_late, self._has_news = None, False, True
        files = self._files()
        segment = files.segment(place.file)
        stamp = segment.stamp(place.slot) if segment is not None else None
        if copy is not None and broken and segment is not None:
            segment.hold(place.slot, sequence, 0.0)
        files.close()
        if broken and stamp is not None and stamp.sequence == sequence:  # its worker may have written it anew meanwhile: nothing is wrong then
            self._report(place.file, stamp.step, f"the copy in slot {place.slot} is broken: {why}")

    def _reading(self, place: Place) -> None:
        """It is being fetched: it stays."""
        now = time.monotonic()
        with self._changed:
            copy = self._copies.get(place)
        if copy is None or copy.state is not CopyState.CACHED or self._is_fetched(place, copy, now):
            return
        self._read_at[place] = copy.sequence, now
        files = self._files()
        if (segment := files.segment(place.file)) is not None:
            segment.hold(place.slot, copy.sequence, HOLD_S)
        files.close()

    def _is_fetched(self, place: Place, copy: Copy, now: float) -> bool:
        """A piece of this copy was asked for a moment ago."""
        sequence, at = self._read_at.get(place, (-1, 0.0))
        return sequence == copy.sequence and now - at < HELD_AGAIN_S

    def _is_broken(self, name: CopyName, why: str) -> None:
        """Found on its way to storage."""
        with self._changed:
            self._copies = settled(self._copies, Place(name.file, name.slot), name.sequence, broken=True)
        self._report(name.file, name.step, f"the copy in slot {name.slot} is broken: {why}")

    # --- the neighbours -----------------------------------------------------------------------------------------------

    def _predecessor(self, anew: bool) -> Source | None:
        """In the keeper's thread. Raises EagleEyeError, TimeoutError."""
        layout = self._layout()
        node = self._ring_of(layout).predecessor_of(self._settings.node) if layout is not None else ""
        if not node or self._loop is None or self._loop.is_closed():
            return None
        return asyncio.run_coroutine_threadsafe(self._source_of(node, anew=anew), self._loop).result(2 * FIND_S)

    async def _found_source(self, node: str) -> Source | None:
        """None where it does not answer."""
        try:
            return await self._source_of(node, anew=True)
        except (EagleEyeError, TimeoutError, KeyError, ValueError) as error:
            log.warning("the launcher on %s cannot be asked for copies: %s", node, error)
            return None

    async def _source_of(self, node: str, *, anew: bool) -> Source | None:
        """Where a node of the job serves its copies; asked once for each address of its launcher, unless `anew`."""
        layout = self._layout()
        address = layout.launchers.get(node, "") if layout is not None else ""
        if node == self._settings.node:
            return self._server.source if self._server is not None else None
        if not address:
            return None
        if anew or address not in self._sources:
            async with asyncio.timeout(FIND_S):
                answer = await self._ask(address, {})
            self._sources[address] = Source(address.rpartition(":")[0].strip("[]"), int(answer["port"]), bytes.fromhex(str(answer["key"])))
        return self._sources[address]

    def _failed_to_keep(self, failure: BackupFailure) -> None:
        self._report(failure.file, failure.step, failure.failure.reason, failure.failure, failure.needed_bytes, failure.retry_s)

    def _emit(self, event: str, text: str, attributes: Mapping[str, str]) -> None:
        self._call(self._emit_stored, event, text, attributes)

    def _call(self, what: Callable[..., object], *words: object) -> None:
        """In the launcher's loop."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, *words)

    def _report(self, file: str, step: int, reason: str, failure: StorageFailure | None = None, needed: int = 0, retry_s: float = FIRST_S) -> None:
        failure = failure or StorageFailure(str(self._settings.folder / file) if file else "", "", reason, UNKNOWN)
        safe = newest_safe_step(self._copies)
        values = (step, file, failure.path, failure.errno, reason, failure.free_bytes, needed, safe, min(retry_s, LONGEST_S))
        attributes = {name: str(value) for name, value in zip(TOLD, values, strict=True)}
        text = f"the checkpoint in memory of step {step} ({file or self._settings.node}) is on no second node: {reason}; training goes on, and it is tried again"
        log.warning("%s", text)
        self._call(self._tell, text, attributes)


def _hold(files: CopyFiles, name: CopyName) -> None:
    """Until its copy is on its way to storage."""
    if (segment := files.segment(name.file)) is not None:
        segment.hold(name.slot, name.sequence, GATHER_S, SlotHold.STORED)
