"""A launcher as a member of its job: obeys the coordinator, and reports what happens to its own workers."""

import asyncio
import logging
from collections.abc import Callable
from signal import SIGCONT
from typing import Any

import msgspec

from eagle_eye.errors import ControlError, Stale
from eagle_eye.rpc.control_messages import Body, Command
from eagle_eye.training import messages
from eagle_eye.types import Layout

from .death_watch import glimpse
from .elastic_node import ElasticNode
from .event_log import Journal
from .job_file import Presence
from .process_exit import code_of, died_at_start, exit_attributes, exit_message
from .redaction import redact
from .settings import LauncherSettings
from .vote_log import TermsFile
from .worker_dump import dump_workers
from .worker_environment import Store
from .workers import Worker, Workers
from .zygote_client import kill_group

log = logging.getLogger(__name__)

END_S = 0.05
IN_TURN = frozenset({"prepare", "start", "halt", "fork"})
"""One after another: an epoch that is being started is ended only when all its workers are there."""

Report = Callable[[str, Body], None]
"""Brings a fact to the coordinator, whoever that is: death or finished."""


class Participant:
    """The commands prepare, start, halt, end, reattempt and dump; the events exit, exception and checkpoint.saved."""

    def __init__(
        self, settings: LauncherSettings, workers: Workers, terms: TermsFile, presence: Presence, journal: Journal,
        report: Report, elastic: ElasticNode,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._workers = workers
        self._terms = terms
        self._presence = presence
        self._journal = journal
        self._report = report
        self._elastic = elastic
        elastic.broken = self._is_broken
        self.broken = False
        """The step stands still, whoever is lost: a worker has died, or an elastic one's connections to its peers broke."""
        self._turn = asyncio.Lock()
        self.moved: Callable[[str], None] = lambda _: None
        """Called with the address of another coordinator, when ours gives way to it."""
        self.ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()
        """Code and reason, once the job is over for this launcher."""
        self.job_over = False
        """The coordinator has said that it is over for all."""

    async def obey(self, command: Command) -> Body:
        """Do what the coordinator asks. Raises ControlError for an action that we do not know."""
        actions = {
            "prepare": self._prepare, "start": self._start, "halt": self._halt, "end": self._end,
            "reattempt": self._reattempt, "dump": self._dump, "follow": self._follow,
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
    def roster(self) -> list[Body]:
        """Elastic workers that live here, for a coordinator that has not heard of them."""
        return self._elastic.roster

    async def stop_workers(self, grace_s: float = 0.0) -> None:
        """End them; nothing of it is an event."""
        try:
            await self._workers.stop(grace_s)
        except TimeoutError as error:
            raise ControlError(str(error)) from error

    async def without_coordinator(self) -> None:
        """Nothing of this side may be written any more: elastic workers are fenced, others end."""
        if self._elastic.living:
            self._elastic.hold(self.abandon)
        else:
            await self.abandon()

    async def abandon(self) -> None:
        """End them, and say that there are none now."""
        await self.stop_workers()
        self._presence.write(self._terms.terms.promised, ())

    # --- commands ------------------------------------------------------------------------------------------------

    async def _prepare(self, arguments: dict[str, Any]) -> Body:
        """The acknowledgement is a vote: given once per epoch, on disk before it is sent."""
        layout = msgspec.convert(arguments["layout"], Layout)
        promised = self._terms.terms.promised
        stopping = asyncio.create_task(self.stop_workers())
        vote = await asyncio.to_thread(self._terms.promise, layout.epoch)
        await stopping
        return {"vote": vote, "promised": promised}

    async def _start(self, arguments: dict[str, Any]) -> Body:
        layout = msgspec.convert(arguments["layout"], Layout)
        if layout.epoch < self._terms.terms.promised:
            raise Stale(f"epoch {layout.epoch} is over: this launcher voted for {self._terms.terms.promised}")
        saving = asyncio.create_task(asyncio.to_thread(self._terms.valid, layout))
        self.broken = False
        if any(worker.running for worker in self._workers.all):  # forked to join after the others were ended
            await self.stop_workers()
        await self._workers.start(layout, msgspec.convert(arguments["store"], Store), int(arguments["max_restarts"]))
        self._presence.write(layout.epoch, self._workers.all)
        await saving
        return {}

    async def _halt(self, arguments: dict[str, Any]) -> Body:
        log.warning("the workers are ended: %s", arguments.get("reason", ""))
        await self.abandon()
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

    async def _reattempt(self, arguments: dict[str, Any]) -> Body:
        """Continue workers that were stopped by a signal."""
        continued = []
        for worker in self._asked(arguments):
            seen = glimpse(worker.pid)
            if seen is not None and seen.state == "T":
                kill_group(worker.pid, SIGCONT)
                continued.append(worker.name)
        return {"continued": continued}

    async def _dump(self, arguments: dict[str, Any]) -> Body:
        return await dump_workers(self._asked(arguments))

    def _asked(self, arguments: dict[str, Any]) -> list[Worker]:
        names = arguments.get("workers") or [worker.name for worker in self._workers.all]
        return [worker for name in names if (worker := self._workers.find(name)) is not None and worker.running]

    # --- ends ----------------------------------------------------------------------------------------------------

    def worker_ended(self, worker: Worker, status: int | None) -> None:
        """A worker ended and nobody here had ordered it."""
        code = code_of(status)
        self._elastic.worker_ended(worker)
        known = {"epoch": worker.epoch, "worker": worker.name, "pid": worker.pid, "code": code, "lasting": worker.elastic,
                 "noticed_s": self._workers.noticed_s}  # fmt: skip
        if worker.expected or (worker.elastic and code == 0):
            self._report("exited", known)
            return
        if code == 0:
            if all(other.end == 0 for other in self._workers.all):
                self._report("finished", {"epoch": worker.epoch})
            return
        self.broken = self.broken or not worker.elastic
        attributes = exit_attributes(worker, code, self._workers.step(worker))
        event = self._journal.of_worker("exit", worker.name, exit_message(worker, code), attributes)
        lived = asyncio.get_running_loop().time() - worker.began
        early = died_at_start(code, self._workers.completed(), lived)
        at_start = f"{event.message}\n{attributes['last_lines']}" if early else ""
        self._report("death", known | {"cause": event.id, "at_start": at_start, "step": int(attributes["step"] or -1)})
        log.warning("%s", event.message)

    def _is_broken(self) -> None:
        self.broken = True

    # --- what the workers say --------------------------------------------------------------------------------------

    def receive(self, message: messages.Message) -> bytes | None:
        """One message of the unix socket."""
        worker = self._workers.find(str(message.get("worker", "")))
        kind = message["kind"]
        if kind == "token":
            if worker is None:
                return messages.reply(False, error=f"no worker {message.get('worker')!r} runs on this node")
            return messages.reply(True, token=self._workers.token(worker), socket=str(worker.socket))
        if worker is None or worker.fenced:
            return None
        if not worker.elastic and int(message.get("epoch", worker.epoch)) != worker.epoch:
            return None
        if kind == "exception" and not worker.ordered:  # else it is our own doing: its peers were ended before it
            self._exception(worker, message)
        elif kind == "checkpoint":
            attributes = {name: str(message.get(name, "")) for name in ("step", "path", "finite")}
            self._journal.of_job("checkpoint.saved", f"checkpoint of step {attributes['step']}", attributes)
        return None

    def _exception(self, worker: Worker, message: messages.Message) -> None:
        worker.exception = str(message.get("type", ""))
        attributes = {
            "type": worker.exception,
            "message": redact(str(message.get("message", ""))),
            "traceback": redact(str(message.get("traceback", ""))),
            "rank": str(worker.place.rank),
            "epoch": str(worker.epoch),
            "step": str(message.get("step", "")),
            "pid": str(worker.pid),
        }
        text = f"worker {worker.name} raised {worker.exception}: {attributes['message']}"
        self._journal.of_worker("exception", worker.name, text, attributes)


