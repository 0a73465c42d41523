"""A launcher as a member of its job: obeys the coordinator, and reports what happens to its own workers."""

import asyncio
import contextlib
import logging
import math
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from eagle_eye.error_statuses import BY_NAME
from eagle_eye.errors import AccessDenied, ControlError
from eagle_eye.exception_status import status_raised, user_frame
from eagle_eye.redaction import last_lines, redact
from eagle_eye.rpc.control_messages import Body, Command
from eagle_eye.training import messages
from eagle_eye.types import Layout, digest_of
from remediation.checkpoint.copy_search import Found, Wanted
from remediation.launcher.coordinator.failure_signature import (
    missed_a_peer,
    other_cause,
    signature_of,
)
from remediation.launcher.coordinator.quorum import electorate_of
from remediation.launcher.worker.death_watch import process_stat
from remediation.launcher.worker.elastic_node import ElasticNode, ReportToCoordinator
from remediation.launcher.worker.worker_dump import dump_workers
from remediation.launcher.worker.worker_environment import StoreAddress
from remediation.launcher.worker.worker_exit import (
    code_of,
    died_at_start,
    exit_attributes,
    exit_message,
    explanation,
    kill_attributes,
)
from remediation.launcher.worker.worker_process import Worker
from remediation.launcher.worker.workers import Workers
from remediation.launcher.worker.zygote_client import kill_group

from .checkpoint_events import CheckpointEvents, step_of
from .computation_events import computation_event
from .event_log import EventLog
from .job_declaration import DEATH
from .job_file import JobFile
from .launcher_settings import LauncherSettings
from .vote_log import VoteLog, check_vote, vote

log = logging.getLogger(__name__)

END_S = 0.05
RELEASE_S, RELEASE_LONGEST_S = 1.0, 30.0
"""Pause before processes that the kernel holds are looked for again; doubled each time up to the longest."""
IN_TURN = frozenset({"prepare", "start", "halt", "fork"})
"""One after another: an epoch that is being started is ended only when all its workers are there."""
SYMPTOM_S = 1.0
"""So long an exception that a healthy worker raises when a peer is gone waits for the worker's end, or for the order that has ended the peer."""
REPORTED_S = 1.0
"""How long a vote waits for reports to arrive that the coordinator is to know before."""

def refuse_other_job(command: Command, job: str) -> None:
    """Raises AccessDenied for a command that names another job than ours."""
    if command.job not in ("", job):
        raise AccessDenied(f"this launcher runs {job}: {command.action!r} for {command.job} is not done here")


class JobMember:
    """The commands prepare, start, halt, end, reattempt, dump and test_paths; the events about workers and their checkpoints."""

    def __init__(
        self, settings: LauncherSettings, workers: Workers, votes: VoteLog, job_file: JobFile, event_log: EventLog,
        report: ReportToCoordinator, reported: Callable[[], Awaitable[None]], elastic: ElasticNode,
    ) -> None:  # fmt: skip
        """`reported` returns once the coordinator knows all reports."""
        self._settings = settings
        self._workers = workers
        self._votes = votes
        self._job_file = job_file
        self._event_log = event_log
        self._report = report
        self._reported = reported
        self._elastic = elastic
        elastic.broken = self._is_broken
        self.broken = False
        """The step cannot be completed: a worker has died, or an elastic one's connections to its peers broke."""
        self._turn = asyncio.Lock()
        self._started = 0
        """The epoch whose workers were last started here."""
        self._held: dict[int, dict[str, str]] = {}
        """Pid of a worker that has missed a peer → what it raised, until it is known whether that was our doing."""
        self.moved: Callable[[str], None] = lambda _: None
        """Called with the address of another coordinator, when ours gives way to it."""
        self.waits: Callable[[], bool] = lambda: False
        """Whether every worker of this node waits for its peers."""
        self.released: Callable[[], None] = lambda: None
        """Called when workers have ended that the kernel held: the coordinator has gone on without us, and may use this node again."""
        self.checkpoint_events = CheckpointEvents(event_log)
        self.fetch: Callable[[int, Wanted], Found] = lambda _pid, _wanted: Found(state="none", why="this launcher serves no copies of checkpoints")
        """Called with the pid of a worker that has no usable checkpoint in its memory."""
        self.test_paths: Callable[[Body], Body] = lambda _: {}
        """Begins a test of the network or of storage, and returns at once."""
        self._releasing: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        """Code and reason, once the job is over for this launcher."""
        self.job_over = False
        """The coordinator has said that it is over for all."""

    async def obey(self, command: Command) -> Body:
        """Do what the coordinator asks. Raises ControlError for an action that we do not know, AccessDenied for another job's."""
        refuse_other_job(command, self._settings.job)
        actions = {
            "prepare": self._prepare, "start": self._start, "halt": self._halt, "end": self._end,
            "reattempt": self._reattempt, "dump": self._dump, "test_paths": self._test_paths, "follow": self._follow, "witness": self._witness, "rejoin": self._rejoin,
        } | self._elastic.actions  # fmt: skip
        action = actions.get(command.action)
        if action is None:
            raise ControlError(f"a launcher does not know the command {command.action!r}: is the coordinator newer?")
        if command.action == "regroup":
            self.broken = False
        if command.action not in IN_TURN:
            return await action(command.arguments)
        async with self._turn:
            return await action(command.arguments)

    @property
    def registry(self) -> list[Body]:
        """Join requests of the elastic workers that live here, for a coordinator that does not know them."""
        return self._elastic.registry

    @property
    def highest_step(self) -> int:
        """That any worker of this node has begun; -1 if none is known."""
        return self._workers.highest_step

    @property
    def idle(self) -> bool:
        """No worker is left here, though the epoch has not ended."""
        return not self._workers.finished and not any(worker.running for worker in self._workers.all)

    @property
    def held(self) -> bool:
        """Elastic workers are fenced since the coordinator was lost."""
        return self._elastic.held

    async def stop_workers(self, grace_s: float = 0.0, *, after_death: bool = False) -> None:
        """End them; nothing of it is an event. `after_death`: of a worker of the job."""
        try:
            await self._workers.stop(grace_s, after_death=after_death)
        except TimeoutError as error:
            raise ControlError(str(error)) from error

    async def coordinator_lost(self) -> None:
        """Elastic workers are fenced until another coordinator gives them an epoch. Others wait in their collective; who succeeds ends them."""
        if self._elastic.living:
            self._elastic.hold()

    async def overtaken(self, epoch: int) -> None:
        """The others have gone on under that epoch: workers of an older one end, unless it takes them in as they are. A vote for it, or for a newer one, has ended them."""
        async with self._turn:
            if not self._elastic.living and epoch > self._votes.record.promised:
                await self.abandon()

    async def close(self) -> None:
        """Wait for nothing any more."""
        if self._releasing is not None:
            self._releasing.cancel()
            await asyncio.gather(self._releasing, return_exceptions=True)

    async def abandon(self, *, after_death: bool = False) -> None:
        """End them, and write a job file without workers."""
        try:
            await self.stop_workers(after_death=after_death)
        except ControlError as error:
            log.warning("%s", error)
            self._release_later()
        self._job_file.write(self._votes.record.promised, ())

    # --- commands ------------------------------------------------------------------------------------------------

    async def _prepare(self, arguments: dict[str, Any]) -> Body:
        """The acknowledgement is a vote: given once per epoch, on disk before it is sent."""
        layout = msgspec.convert(arguments["layout"], Layout)
        asked = electorate_of(layout)
        if not self._votes.may_start(asked.epoch, asked.ballot):  # no worker ends for an epoch that is over
            return {"vote": False, "promised": self._votes.record.promised}
        if asked.epoch == self._started:  # asked twice, and valid by now: its workers train
            return await vote(self._votes, asked, arguments.get("given_up", ()))
        stopping = asyncio.create_task(self.stop_workers(after_death=layout.reason == DEATH))
        answer = await vote(self._votes, asked, arguments.get("given_up", ()))
        try:
            await stopping
        except ControlError:
            self._release_later()
            raise
        await self._report_deaths()
        return answer

    def _release_later(self) -> None:
        """The kernel holds processes that were killed: the coordinator goes on without us, and we join it again once they are gone."""
        if self._releasing is None or self._releasing.done():
            self._releasing = asyncio.create_task(self._release())

    async def _release(self) -> None:
        """Their end was ordered: no other worker is meant, whatever is started here meanwhile."""
        wait_s, held = RELEASE_S, self._workers.all
        while any(worker.status is None for worker in held):
            await asyncio.sleep(wait_s)
            wait_s = min(RELEASE_LONGEST_S, 2 * wait_s)
        log.info("the processes that the kernel held have ended: this launcher joins again")
        self.released()

    async def _report_deaths(self) -> None:
        """By what has ended all workers it is judged what their restart is charged to, and whether the program is to blame."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORTED_S):
                await self._reported()

    async def _start(self, arguments: dict[str, Any]) -> Body:
        """Once for each epoch: a coordinator that has not heard our answer asks again."""
        layout = msgspec.convert(arguments["layout"], Layout)
        check_vote(self._votes, layout, digest_of(layout))
        if layout.epoch == self._started:
            if self.idle:
                raise ControlError(f"the workers of epoch {layout.epoch} have ended since they were started here")
            return {}
        saving = asyncio.create_task(asyncio.to_thread(self._votes.valid, layout))
        self.broken = False
        if any(worker.running for worker in self._workers.all):  # forked to join after the others were ended
            await self.stop_workers()
        await self._workers.start(layout, msgspec.convert(arguments["store"], StoreAddress), int(arguments["max_restarts"]))
        self._job_file.write(layout.epoch, self._workers.all)
        await saving
        self._started = layout.epoch
        return {}

    async def _halt(self, arguments: dict[str, Any]) -> Body:
        log.warning("the workers are ended: %s", arguments.get("reason", ""))
        await self.abandon(after_death=bool(arguments.get("after_death")))
        return {}

    async def _end(self, arguments: dict[str, Any]) -> Body:
        """The launcher ends a moment later, so that the coordinator still hears the acknowledgement."""
        self._workers.expect_end()
        self.job_over = True
        self._elastic.ended(str(arguments["reason"]))
        asyncio.get_running_loop().call_later(END_S, self.end, int(arguments["code"]), str(arguments["reason"]))
        return {}

    def end(self, code: int, reason: str) -> None:
        """The job is over for this launcher."""
        if not self.ended.done():
            self.ended.set_result((code, reason))

    async def _follow(self, arguments: dict[str, Any]) -> Body:
        """The candidate that we had joined has found a coordinator."""
        self.moved(str(arguments["address"]))
        return {}

    async def _rejoin(self, _arguments: dict[str, Any]) -> Body:
        """The coordinator went on without us because we answered late: we join it again, unless the kernel holds our workers."""
        if self._releasing is None or self._releasing.done():
            self.released()
        return {}

    async def _witness(self, _arguments: dict[str, Any]) -> Body:
        """Whether the workers here wait, too: the coordinator has lost a session."""
        return {"waits": self.waits()}

    async def _reattempt(self, arguments: dict[str, Any]) -> Body:
        """Continue workers that were stopped by a signal."""
        continued = []
        for worker in self._asked(arguments):
            seen = process_stat(worker.pid)
            if seen is not None and seen.state == "T":
                kill_group(worker.pid, signal.SIGCONT)
                continued.append(worker.name)
        return {"continued": continued}

    async def _dump(self, arguments: dict[str, Any]) -> Body:
        return await dump_workers(self._asked(arguments))

    async def _test_paths(self, arguments: dict[str, Any]) -> Body:
        return self.test_paths(arguments)

    def _asked(self, arguments: dict[str, Any]) -> list[Worker]:
        names = arguments.get("workers") or [worker.name for worker in self._workers.all]
        return [worker for name in names if (worker := self._workers.find(name)) is not None and worker.running]

    # --- ends ----------------------------------------------------------------------------------------------------

    def worker_ended(self, worker: Worker, status: int | None) -> None:
        """A worker ended by itself, or had raised something when its end was ordered."""
        code = code_of(status)
        try:
            self._judge_end(worker, code)
        except Exception:  # boundary: what explains an end must not keep it from being told: nobody would start the worker again
            log.exception("the end of %s cannot be explained", worker.name)
            self._report_bare_end(worker, code)

    def _report_bare_end(self, worker: Worker, code: int | None) -> None:
        if worker.overtaken:
            return
        known = {"epoch": worker.epoch, "worker": worker.name, "lasting": True}
        if worker.expected or (worker.elastic and code == 0):
            self._report("exited", known | {"pid": worker.pid, "code": code})
        elif code != 0:
            self.broken = self.broken or not worker.elastic
            self._report("death", known | {"pid": worker.pid, "code": code})
        elif self._workers.finished:
            self._report("finished", {"epoch": worker.epoch})

    def _judge_end(self, worker: Worker, code: int | None) -> None:
        if worker.doubtful and not worker.overtaken:
            explained = explanation(worker, code, last_lines(worker.log, since=worker.log_from))
            worker.overtaken = missed_a_peer(worker.failure, explained, symptom=worker.symptom)
        self._tell_held(worker)
        if worker.overtaken:
            self._report_late(worker)
            return
        worker.reported = True
        self._elastic.worker_ended(worker)
        known = {"epoch": worker.epoch, "worker": worker.name, "pid": worker.pid, "code": code, "lasting": True,
                 "noticed_s": self._workers.noticed_s}  # fmt: skip
        if code == 0 and not worker.expected:
            self._finished(worker)
        if worker.expected or (worker.elastic and code == 0):
            self._report("exited", known)
            return
        if code == 0:
            return
        self.broken = self.broken or not worker.elastic
        explained = explanation(worker, code, last_lines(worker.log, since=worker.log_from))
        self._ask_for_kill(worker, code, explained)
        attributes = exit_attributes(worker, code, self._workers.step(worker))
        event = self._event_log.of_worker("exit", worker.name, exit_message(worker, code), attributes, happened_s=worker.ended_s)
        lived = asyncio.get_running_loop().time() - worker.began
        early = died_at_start(code, self._workers.completed(), young=lived < self._settings.start_s)
        at_start = f"{event.message}\n{attributes['last_lines']}" if early else ""
        words = {
            "cause": event.id, "at_start": at_start, "step": step_of(attributes["step"]), "failure": msgspec.to_builtins(worker.failure),
            "symptom": worker.symptom, "explained": "out of memory" if worker.oom_kill is not None and worker.failure is None else explained,
        }  # fmt: skip
        self._report("death", known | words)
        log.warning("%s", event.message)

    def _ask_for_kill(self, worker: Worker, code: int | None, explained: str) -> None:
        """Whether it was killed for want of memory; or a process beside it, if nothing else is known of its end. One that raised was asked of then."""
        if code == -signal.SIGKILL:
            worker.oom_kill = self._workers.oom_kill(worker) or worker.oom_kill
        elif not (worker.exception or explained):
            worker.oom_kill = self._workers.oom_kill(worker, child=True)

    def _finished(self, worker: Worker) -> None:
        """It ended with code 0: the end of the training, or too early for the others, which only the job as a whole shows."""
        step = self._workers.step(worker)
        attributes = {"rank": str(worker.place.rank), "epoch": str(worker.epoch), "step": step, "pid": str(worker.pid)}
        self._event_log.of_worker("worker.finished", worker.name, exit_message(worker, 0), attributes, happened_s=worker.ended_s)
        if worker.elastic:
            return
        self._report("worker_finished", {"epoch": worker.epoch, "worker": worker.name, "step": step_of(step), "lasting": True})
        if self._workers.finished:
            self._report("finished", {"epoch": worker.epoch})

    def _is_broken(self) -> None:
        self.broken = True

    # --- what the workers report -----------------------------------------------------------------------------------

    def receive(self, message: messages.ProbeMessage) -> bytes | None:
        """One message of the unix socket."""
        worker = self._workers.sender(str(message.get("worker", "")), int(message.get("pid", 0)))
        kind = message["kind"]
        if kind == "token":
            if worker is None:
                return messages.reply(False, error=f"no worker {message.get('worker')!r} runs on this node")
            return messages.reply(True, token=self._workers.token(worker), socket=str(worker.socket))
        if worker is None or worker.fenced:
            return None
        if not worker.elastic and int(message.get("epoch", worker.epoch)) != worker.epoch:
            return None
        if kind == "exception":
            self._exception(worker, message)
        elif kind == "fetch_memory_checkpoint":
            return self._fetch(worker, message)
        elif (told := computation_event(worker.name, kind, message)) is not None:
            self._event_log.of_worker(told.name, worker.name, told.message, told.attributes)
        else:
            self.checkpoint_events.take(worker.name, kind, message)
        return None

    def _fetch(self, worker: Worker, message: messages.ProbeMessage) -> bytes:
        """The worker asks again and again, until it is done."""
        path = self._workers.memory_path(worker.place.local_rank)
        wanted = Wanted(
            rank=int(message.get("rank", -1)), world=int(message.get("world", 0)), at_most=int(message.get("at_most", -1)), path=path, worker=worker.name,
            replicated=bool(message.get("replicated", False)), newer_from=int(message.get("newer_from", 0)),
        )  # fmt: skip
        return messages.reply(True, **msgspec.to_builtins(self.fetch(worker.pid, wanted)))

    def _exception(self, worker: Worker, message: messages.ProbeMessage) -> None:
        raised_s = max(worker.began, float(message["raised_s"])) if "raised_s" in message else None
        if worker.ordered_s is not None and (math.inf if raised_s is None else raised_s) >= worker.ordered_s:
            return  # our own doing: its peers were ended before it
        raised, thread = str(message.get("type", "")), str(message.get("thread", ""))
        attributes = {
            "type": raised,
            "message": redact(str(message.get("message", ""))),
            "traceback": redact(str(message.get("traceback", ""))),
            "rank": str(worker.place.rank),
            "epoch": str(worker.epoch),
            "step": str(message.get("step", "")),
            "pid": str(worker.pid),
        }
        attributes["frame"] = user_frame(attributes["traceback"])
        notes = redact(str(message.get("notes", "")))
        if notes:
            attributes["notes"] = notes
        attributes |= {name: str(message[name]) for name in ("path", "errno", "free_bytes") if name in message}
        if thread:  # the worker lives on, and dies of something else if it dies
            text = f"thread {thread} of worker {worker.name} ended with {raised}: {attributes['message']}"
            self._event_log.of_worker("thread.exception", worker.name, text, {**attributes, "thread": thread})
            return
        worker.exception, worker.raised_s = raised, raised_s
        refused = "errno" in attributes  # storage refused a file: neither the program nor its data is to blame, nor a GPU
        worker.failure = None if refused else signature_of(raised, attributes["message"], attributes["traceback"], step_of(attributes["step"]), notes)
        status = BY_NAME["storage error"] if refused else status_raised(raised, attributes["message"], attributes["traceback"])
        worker.explained = other_cause(status) if worker.failure is None else ""
        worker.symptom = status.symptom
        if status.name == "other software error" and (kill := self._workers.oom_kill(worker, child=True, ended=False)) is not None:
            worker.oom_kill = kill  # such as a data loader's worker that it missed: another node may have the memory
            worker.failure = msgspec.structs.replace(worker.failure, memory=True) if worker.failure is not None else None
            attributes |= kill_attributes(kill)
        if not worker.symptom:
            self._tell_exception(worker, attributes)
        elif not (worker.ordered or worker.doubtful):  # its peers may have been ended a moment before it
            self._held[worker.pid] = attributes
            if worker.reported:
                self._tell_held(worker)
            else:
                asyncio.get_running_loop().call_later(SYMPTOM_S, self._tell_held, worker)
        if worker.reported or worker.overtaken:
            self._report_late(worker)

    def _tell_exception(self, worker: Worker, attributes: dict[str, str]) -> None:
        why = f": {attributes['reason']}" if "reason" in attributes else ""
        text = f"worker {worker.name} raised {attributes['type']}: {attributes['message']}{why}"
        event = self._event_log.of_worker("exception", worker.name, text, attributes, happened_s=worker.raised_s)
        worker.failed_by = event.id

    def _tell_held(self, worker: Worker) -> None:
        """That a worker missed a peer is told with its end, unless the order to end it came first: the peer was ended by the same order."""
        attributes = self._held.pop(worker.pid, None)
        if attributes is not None and not (worker.ordered or worker.doubtful or worker.overtaken):
            self._tell_exception(worker, attributes)

    def _report_late(self, worker: Worker) -> None:
        """What it failed of, after its death was reported or its end was ordered: it counts where the same comes again, and heals nothing."""
        code, last = code_of(worker.end), last_lines(worker.log, since=worker.log_from)
        failed = {
            "epoch": worker.epoch, "worker": worker.name, "pid": worker.pid, "cause": worker.failed_by, "code": code,
            "step": worker.failure.step if worker.failure is not None else step_of(self._workers.step(worker)), "failure": msgspec.to_builtins(worker.failure),
            "symptom": worker.symptom, "explained": explanation(worker, code, last), "lasting": True,
        }  # fmt: skip
        self._report("late_failure", failed)
