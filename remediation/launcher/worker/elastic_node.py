"""A node's elastic workers under the coordinator's commands: fenced, regrouped, excluded, forked to join, halted."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import msgspec

from eagle_eye.activity.inspector import ActivityInspector
from eagle_eye.activity.process_counters import runs
from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.rpc.control_messages import Body
from eagle_eye.training import messages
from eagle_eye.types import Layout
from remediation.launcher.coordinator.quorum import Electorate
from remediation.launcher.coordinator.rendezvous_store import AskStore, ask_patiently
from remediation.launcher.event_log import EventLog
from remediation.launcher.job_file import JobFile
from remediation.launcher.launcher_settings import LauncherSettings
from remediation.launcher.vote_log import VoteLog, check_vote, vote

from .stall_detector import InactivityTimer, WorkerSample
from .worker_environment import StoreAddress
from .worker_expiry import WorkerExpiry, is_stopped
from .worker_process import Worker
from .worker_sessions import FenceResult, WorkerSessions
from .workers import Workers

log = logging.getLogger(__name__)

POLL_S = 0.05
"""Between two looks for workers that make no progress."""
LOOK_CLOSER_S = 0.25
"""A worker that has been quiet for as long is looked into."""
FORWARDED_REPORTS = frozenset({"broken", "joined", "resumed", "saving"})
"""Messages of workers that are handed to the coordinator as they are."""

ReportToCoordinator = Callable[[str, Body], None]
"""Brings a report (death, finished, ...) to the present coordinator."""


class ElasticNode:
    """Turns the coordinator's commands into messages to the workers, and their messages into reports for the coordinator."""

    def __init__(
        self, settings: LauncherSettings, workers: Workers, votes: VoteLog, job_file: JobFile, event_log: EventLog,
        clock: Clock, *, report: ReportToCoordinator, ask_store: AskStore,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._workers = workers
        self._votes = votes
        self._job_file = job_file
        self._event_log = event_log
        self._clock = clock
        self._report = report
        self._ask_store = ask_store
        self.sessions = WorkerSessions(settings.elastic_socket, self._is_ours, self._heard, self._runs, settings.stall.answer_s, settings.stall.answer_longest_s)
        self.broken: Callable[[], None] = lambda: None
        """Called when a worker's connections broke."""
        self._join_requests: dict[str, Body] = {}
        self.held = False
        """The workers are fenced since we lost the coordinator: only another epoch frees them."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._quiet = InactivityTimer(clock, POLL_S, settings.stall)
        self._inspector = ActivityInspector(settings.stall.patience_s, clock)
        self._expiry = WorkerExpiry(settings.stall, clock, settings.logs, self._inspector.activity, self._end_expired)
        self._told: dict[str, int | None] = {}
        """Worker → its marks when it was last given an epoch's orders."""

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._expiry.close()
        self._inspector.close()
        await self.sessions.stop()

    @property
    def actions(self) -> dict[str, Callable[[Body], Awaitable[Body]]]:
        """What the coordinator may command."""
        return {
            "fence": self._fence, "regroup": self._regroup, "fork": self._fork, "exclude": self._exclude,
            "dismiss": self._dismiss, "halt_workers": self._halt,
        }  # fmt: skip

    @property
    def living(self) -> tuple[Worker, ...]:
        """Elastic workers that have entered and have not ended; not those whose end is ordered: nobody may count on them."""
        return tuple(worker for worker in self._entered_workers if not worker.ordered)

    @property
    def _entered_workers(self) -> tuple[Worker, ...]:
        return tuple(
            worker for worker in self._workers.all
            if worker.running and self._join_requests.get(worker.name, {}).get("pid") == worker.pid
        )  # fmt: skip

    @property
    def registry(self) -> list[Body]:
        """Their join requests, for a coordinator that does not know them."""
        return [self._join_requests[worker.name] for worker in self.living if not worker.fenced]

    # --- commands ---------------------------------------------------------------------------------------------------

    async def _fence(self, arguments: Body) -> Body:
        """The fence goes out first; the vote is on disk before it is sent; what the workers hold follows as a report."""
        ballot, record = msgspec.convert(arguments["asked"], Electorate), self._votes.record
        epoch = ballot.epoch
        if epoch < record.promised or (epoch == record.promised and ballot.ballot != record.ballot):
            return {"vote": False, "promised": record.promised}
        wanted = {worker.name for worker in self.living} & set(arguments["workers"])  # nobody waits for one that is excluded
        asked = wanted & set(self.sessions.present)
        soft = asked & set(arguments.get("soft", ()))
        self._go(self._collected(epoch, self.sessions.fence(epoch, asked - soft, soft), wanted - asked))
        self._disown(epoch, arguments["workers"])
        return await vote(self._votes, ballot, arguments.get("given_up", ()))

    def _disown(self, epoch: int, names: Iterable[str]) -> None:
        """The coordinator counts on workers whose end we have ordered, which no event tells: it would wait for them for ever."""
        for name in names:
            worker = self._workers.find(name)
            if worker is not None and worker.ordered:
                self._report("abandoned", {"epoch": epoch, "worker": name, "pid": worker.pid, "lasting": True})

    async def _collected(self, epoch: int, fence: "asyncio.Task[FenceResult | None]", mute: set[str]) -> None:
        """`mute`: they live but have no session."""
        fenced = await fence
        if fenced is None:
            return
        holdings = [
            {name: message[name] for name in ("step", "done", "segments", "phase", "fresh")}
            | {"worker": worker, "node": self._settings.node}
            for worker, message in fenced.holdings.items()
        ]
        self._report("held", {"epoch": epoch, "holdings": holdings, "silent": [*fenced.silent, *sorted(mute)]})

    async def _regroup(self, arguments: Body) -> Body:
        layout = msgspec.convert(arguments["layout"], Layout)
        check_vote(self._votes, layout, str(arguments["ballot"]))
        for place in layout.placements:
            if place.node == self._settings.node:
                self._told[place.worker] = self._marks(place.worker)
                self.sessions.tell(place.worker, "assignment", rank=place.rank, **arguments["words"])
        for worker in arguments.get("leaving", ()):
            self._release(str(worker))
        self.held = False
        self._workers.adopt(layout)
        self._job_file.write(layout.epoch, self._workers.all)
        await asyncio.to_thread(self._votes.valid, layout)
        return {}

    def _release(self, name: str) -> None:
        worker = self._workers.find(name)
        if worker is not None:
            self.sessions.tell(name, "halt", reason="the job goes on without this worker", code=0, saves=False, epoch=worker.epoch)
            self._see_off(worker)

    def _see_off(self, worker: Worker) -> None:
        """It was asked to end: its end is no event."""
        worker.expected = True
        if worker.running:
            self._expiry.after_leave(worker)

    async def _fork(self, arguments: Body) -> Body:
        layout, store = msgspec.convert(arguments["layout"], Layout), msgspec.convert(arguments["store"], StoreAddress)
        for slot in arguments["slots"]:
            if not self._workers.is_on_its_way(int(slot)):  # a coordinator that lost our session asks for it again
                await self._workers.fork_joining(layout, int(slot), store, int(arguments["max_restarts"]))
        self._job_file.write(layout.epoch, self._workers.all)
        return {}

    async def _exclude(self, arguments: Body) -> Body:
        """It lives: it may wake up and enter again; if it does not, it is looked into, killed and replaced."""
        name, reason = str(arguments["worker"]), str(arguments["reason"])
        worker = self._workers.find(name)
        if worker is None or not worker.running:
            return {}
        worker.fenced = True
        self.sessions.tell(name, "fenced", reason=reason)
        attributes = {"reason": reason, "epoch": str(worker.epoch), "step": self._workers.step(worker), "pid": str(worker.pid)}
        self._event_log.of_worker("worker.excluded", name, f"worker {name} is excluded: {reason}", attributes)
        self._expiry.after_exclusion(worker, proved=bool(arguments["proved"]))
        return {}

    def _end_expired(self, worker: Worker) -> None:
        self._workers.kill(worker)
        self._report("death", {"epoch": worker.epoch, "worker": worker.name, "pid": worker.pid, "lasting": True})

    async def _dismiss(self, arguments: Body) -> Body:
        self.sessions.tell(str(arguments["worker"]), "ended", reason=str(arguments["reason"]))
        worker = self._workers.find(str(arguments["worker"]))
        if worker is not None:
            self._see_off(worker)
        return {}

    async def _halt(self, arguments: Body) -> Body:
        """One saves a checkpoint, under the epoch that a majority has agreed to; all end."""
        self.held = False
        for worker in self.living:
            worker.expected = True
        for name in self.sessions.present:
            saves = name == arguments["saver"]
            words = {"epoch": arguments["epoch"], "reason": arguments["reason"], "code": arguments["code"], "saves": saves}
            self.sessions.tell(name, "halt", **words)
        return {}

    def ended(self, reason: str) -> None:
        """The job is over: workers that wait to join it are notified. The others know, or are to end as they are."""
        for worker in self._entered_workers:
            if not worker.member:
                self.sessions.tell(worker.name, "ended", reason=reason)

    # --- without a coordinator ----------------------------------------------------------------------------------------

    def hold(self) -> None:
        """The coordinator is gone, and the step cannot be completed: the workers write nothing until one gives them an epoch."""
        self.held = True
        self._go(self.sessions.fence(self._votes.record.promised + 1, {worker.name for worker in self.living}))

    # --- what the workers report --------------------------------------------------------------------------------------

    async def _is_ours(self, name: str, pid: int) -> bool:
        await self._workers.until_forked(name)
        worker = self._workers.find(name)
        return worker is not None and worker.pid == pid and not worker.ordered

    def _heard(self, name: str, message: messages.ProbeMessage) -> None:
        kind = message["kind"]
        if kind == "join":
            self._entered(name, message)
        elif kind == "store":
            self._go(self._stored(name, message))
        elif kind in FORWARDED_REPORTS:
            if kind == "broken":
                self.broken()
            words = {key: value for key, value in message.items() if key not in ("v", "kind")}
            lasting = {"lasting": True} if kind != "broken" else {}  # what a transition cost is told though the next epoch has been voted for
            self._report(kind, words | {"worker": name, "epoch": int(message.get("epoch", 0))} | lasting)
        elif kind == "leave":
            self._report("leave", {"worker": name, "epoch": int(message.get("epoch", 0)), "lasting": True})

    def _entered(self, name: str, message: messages.ProbeMessage) -> None:
        worker = self._workers.find(name)
        if worker is None:
            return
        worker.elastic, worker.fenced = True, False
        self._workers.quicken()
        self._expiry.call_off(name)
        join_request = self._join_requests[name] = {
            "worker": name, "node": self._settings.node, "slot": worker.place.local_rank, "pid": worker.pid,
            "micro_batches": int(message.get("micro_batches", 1)), "layers": [int(size) for size in message.get("layers", ())],
            "segments": int(message.get("segments", 0)),
        }  # fmt: skip
        self._report("entered", {"epoch": worker.epoch, "join_request": join_request, "lasting": True})

    async def _stored(self, name: str, message: messages.ProbeMessage) -> None:
        self.sessions.send(name, await ask_patiently(message, self._ask_store, self._clock))

    def worker_ended(self, worker: Worker) -> None:
        """Its process is gone, for whatever reason."""
        self._join_requests.pop(worker.name, None)
        self.sessions.lost(worker.name)
        self._expiry.call_off(worker.name)

    # --- stalls -------------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Report to the coordinator when no elastic worker here makes progress. Until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            living = [worker for worker in self.living if not worker.fenced]
            view = self._quiet.look(sight for worker in living if (sight := self._sight(worker)) is not None)
            suspects = {*view.suspected, *view.still, *self._quiet.overdue(view.waiting)}
            left_out = [worker for worker in self._workers.all if worker.fenced and worker.running]
            self._inspector.watch((worker.name, worker.pid) for worker in (*living, *left_out) if worker.fenced or worker.name in suspects)
            if living and not view.moving and not self.held:
                epoch = max(worker.epoch for worker in living)
                self._report("no_progress", {"epoch": epoch, "node": self._settings.node, "view": msgspec.to_builtins(view)})

    def _sight(self, worker: Worker) -> WorkerSample | None:
        now = self._workers.now(worker)
        if now is None:
            return None
        if self._quiet.seconds(worker.name) < LOOK_CLOSER_S:
            return WorkerSample(worker=worker.name, marks=now.marks, phase=now.phase)
        return WorkerSample(
            worker=worker.name, marks=now.marks, phase=now.phase, stopped=is_stopped(worker),
            deaf=self._told.get(worker.name) == now.marks, step_s=self._workers.step_s(worker),
            activity=self._inspector.activity(worker.name),
        )  # fmt: skip

    def _runs(self, name: str) -> bool:
        worker = self._workers.find(name)
        return worker is not None and runs(worker.pid)

    def _marks(self, name: str) -> int | None:
        worker = self._workers.find(name)
        now = self._workers.now(worker) if worker is not None else None
        return now.marks if now is not None else None

    # --- small things -------------------------------------------------------------------------------------------------

    def _go(self, work: "Coroutine[Any, Any, Any] | asyncio.Task[Any]") -> None:
        task = work if isinstance(work, asyncio.Task) else asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, EagleEyeError):
            log.error("an elastic worker was not served", exc_info=error)
