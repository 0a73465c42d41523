"""A launcher: one process per job and node. Starts, supervises and commands its workers, and may coordinate the job."""

import asyncio
import contextlib
import logging
import os
import secrets
import sys
from pathlib import Path
from typing import Any

import msgspec

from eagle_eye.access import Caller
from eagle_eye.access.credentials import node_credentials
from eagle_eye.access.tokens import VARIABLE as TOKEN_VARIABLE
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.errors import ControlError, EagleEyeError, LaunchError, PermanentError, TemporaryError
from eagle_eye.ports import free_port
from eagle_eye.rpc.command_fence import CommandFence
from eagle_eye.rpc.control_client import ControlClient
from eagle_eye.rpc.control_messages import Body, Command, ConnectionState, Peer
from eagle_eye.rpc.control_server import ControlServer
from eagle_eye.stream.factory import confirmed_by, open_stream_in
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.training import checkpoint

from .console import Console
from .coordinator import Coordinator, JobDeclaration
from .coordinator_election import CoordinatorElection, ProgressWitness
from .cordon_check import check_cordon
from .effect_executor import EffectExecutor
from .elastic_effect_executor import ELASTIC_REPORTS
from .elastic_node import ElasticNode
from .event_log import EventLog, Write
from .follower import ASK_LEADER_S, Follower
from .heal_budget import HealBudget, parse_heal
from .inbox import Inbox
from .job_file import JobFile
from .job_member import JobMember, refuse_other_job
from .launcher_settings import LauncherSettings
from .quorum import voters
from .training_command import parse_training_command
from .vote_log import VoteLog
from .worker_environment import StoreAddress
from .worker_gpus import find_gpus, pynvml
from .worker_process import Worker
from .workers import Workers
from .zygote_client import ZygoteLink

log = logging.getLogger(__name__)

LOOK_S = 0.25
BEAT_SHARE = 0.2
"""Of the lease: how often a beat is sent."""


class Launcher:
    """Puts the parts together; `run` lasts as long as the job."""

    def __init__(self, settings: LauncherSettings, write: Write, clock: Clock) -> None:
        """Raises LaunchError, ConfigError before anything is started."""
        self._settings = settings
        self._clock = clock
        self._budget = HealBudget(parse_heal(settings.heal), clock)
        environment = dict(os.environ if settings.environment is None else settings.environment)
        environment.pop(TOKEN_VARIABLE, None)  # a person's token is none of the training script's business
        self._cwd = settings.working_dir or Path.cwd()
        self._command = parse_training_command(settings.command, self._cwd, environment.get("PATH"))
        self._environment = environment
        self._incarnation = secrets.token_hex(8)
        self._votes = VoteLog(settings.state_dir, settings.run, settings.node)
        self._fence = CommandFence(settings.state_dir / "votes" / f"{settings.run}-{settings.node}")
        self._event_log = EventLog(settings.job, settings.node, self._incarnation, clock, write)
        self._job_file = JobFile(settings.run_dir, settings.job, settings.node, os.getpid())
        self._workers = Workers(settings, self._command, environment, self._worker_ended)
        self._workers.check_paths()
        self._zygote = ZygoteLink(self._command.interpreter, self._workers.exited, self._zygote_lost)
        self._workers.zygote = self._zygote
        self._elastic = ElasticNode(
            settings, self._workers, self._votes, self._job_file, self._event_log, clock, report=self._report,
            ask_store=self._ask_store,
        )  # fmt: skip
        self._member = JobMember(
            settings, self._workers, self._votes, self._job_file, self._event_log, self._report, self._reported, self._elastic
        )
        self._inbox = Inbox(settings.inbox, self._member.receive)
        self._inbox.check_free()
        self._credentials = node_credentials(settings.access, settings.node, clock, settings.job)
        self._server = self._control(settings.address)
        self._console = Console(lambda: self._workers.all, sys.stdout)
        self._leader: ControlClient | None = None
        self._follower: Follower | None = None
        self._executor: EffectExecutor | None = None
        self._witness = ProgressWitness(clock)
        self._store_pid = 0
        self._refused: set[Caller] = set()

    async def run(self, stop: asyncio.Event) -> int:
        """Until the job is over or `stop` is set. Returns the exit code; raises LaunchError."""
        tasks: list[asyncio.Task[None]] = []
        code = 1
        try:
            await self._start()
            tasks = [asyncio.create_task(work) for work in (
                self._workers.supervise(), self._take_part(), self._stopped(stop), self._watch_progress(),
                self._elastic.watch(), *([self._follower.reports.run()] if self._follower else []),
                *([self._console.run()] if self._settings.console else []),
            )]  # fmt: skip
            code = await self._outcome(tasks)
        finally:
            await self._finish(tasks, code)
        return code

    async def _outcome(self, tasks: list[asyncio.Task[None]]) -> int:
        """The code that the coordinator gives at the end; what went wrong here, if that comes first."""
        ended = self._member.ended
        while not ended.done():
            awaited: list[asyncio.Future[Any]] = [ended, *(task for task in tasks if not task.done())]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and (error := task.exception()) is not None:
                    raise error
        code, reason = ended.result()
        if code == 1:
            log.error("%s failed: %s", self._settings.job, reason)
        return code

    def _control(self, address: str) -> ControlServer:
        lease_s = self._settings.lease_s
        return ControlServer(
            self, address, term=0, heartbeat_s=lease_s * BEAT_SHARE, lease_s=lease_s, clock=self._clock,
            credentials=self._credentials, insecure=self._settings.insecure,
        )  # fmt: skip

    async def _listen(self) -> None:
        """At its address; the second launcher at a rendezvous address takes any port beside it, if it may."""
        try:
            await self._server.start()
        except ControlError:
            if not self._settings.or_any_port:
                raise
            self._server = self._control(f"{self._settings.address.rpartition(':')[0]}:0")
            await self._server.start()

    # --- start and end -------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        settings = self._settings
        for directory in (settings.logs, settings.run_dir, settings.checkpoints):
            directory.mkdir(parents=True, exist_ok=True)
        names = {"EAGLE_EYE_JOB": settings.job, "EAGLE_EYE_RUN": settings.run, "EAGLE_EYE_NODE": settings.node}
        await self._zygote.start(settings.preload, self._environment | names, str(self._cwd))
        await self._inbox.start()
        await self._elastic.sessions.start()
        await self._listen()
        if settings.leader:
            self._leader = ControlClient(
                settings.leader, self._peer, on_command=self._obey_leader, on_state=self._leader_state,
                fence=self._fence, clock=self._clock, credentials=self._credentials,
            )  # fmt: skip
            await self._leader.start()
        self._follower = Follower(
            settings, self._peer, self._member, self._votes, self._event_log, self._fence, self._clock,
            witness=self._witness, coordinator_of=self._known_coordinator, credentials=self._credentials,
        )  # fmt: skip
        await asyncio.gather(self._zygote.ready(), check_cordon(self._leader, settings))

    async def _finish(self, tasks: list[asyncio.Task[None]], code: int) -> None:
        """Leave nothing behind: no process, socket, ring or job file."""
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(ControlError):
            await self._member.stop_workers(self._settings.stop_grace_s if code == 130 else 0.0)
        if self._settings.console:
            self._console.look()
        if self._executor is not None:
            await self._executor.close()
        if self._follower is not None:
            await self._follower.close()
        if self._leader is not None:
            await self._leader.stop()
        await self._server.stop()
        await self._zygote.close()
        await self._inbox.stop()
        await self._elastic.close()
        self._workers.close()
        self._job_file.remove()
        if self._member.ended.done():
            self._votes.end()
        if self._member.job_over:
            remove_leftovers(self._settings, self._fence)

    async def _stopped(self, stop: asyncio.Event) -> None:
        """The user stops this launcher: the job if we coordinate it, else our part of it."""
        await stop.wait()
        self._workers.expect_end()
        if self._executor is not None:
            self._executor.do(self._executor.coordinator.stop())
        else:
            self._member.end(130, "stopped")

    # --- who coordinates -----------------------------------------------------------------------------------------

    async def _take_part(self) -> None:
        """Follow or lead, whichever it is, again and again."""
        if self._follower is None:
            return
        last = None if self._votes.record.over else self._votes.record.last
        address = await self._known_coordinator()
        if not address and last is None and self._is_rendezvous():
            self._lead(())
            address = await self._while_candidate(self._follower)
        if not address and last is not None:
            address = await self._search(self._follower)
        while True:
            lost = await self._follower.follow(address or self._settings.rendezvous) if address != self._address else ()
            self._lead(lost)
            address = await self._while_candidate(self._follower)

    async def _search(self, following: Follower) -> str:
        """A launcher that was started again asks those that it knows; our own address: nobody before us is there."""
        last = self._votes.record.last
        if last is None:
            return ""
        others = [node for node in last.launchers if node != self._settings.node]
        for node in others:
            if await following.join(last.launchers[node], self._settings.lease_s / 2):
                return following.address
        before = CoordinatorElection(last, self._settings.node, gone=tuple(others))
        return self._address if before.ours or len(voters(last)) > 1 else self._settings.rendezvous or self._address

    def _lead(self, lost: tuple[str, ...]) -> None:
        settings = self._settings
        record = self._votes.record
        last = None if record.over else record.last
        declaration = JobDeclaration(
            job=settings.job, node=settings.node, min_nodes=settings.nnodes[0], max_nodes=settings.nnodes[1],
            join_timeout_s=settings.join_timeout_s, wait_nodes_s=settings.wait_nodes_s,
            patience_s=settings.patience_s, min_workers=settings.min_workers, respawns=settings.respawns,
            weight=settings.weight, lease_s=settings.lease_s, max_skipped_steps=settings.max_skipped_steps,
            parallel=settings.parallel_sizes, reconnect_s=settings.stall.reconnect_s, boundary_s=settings.stall.boundary_s,
        )  # fmt: skip
        coordinator = Coordinator(declaration, self._budget, self._clock, last, lost)
        self._executor = EffectExecutor(
            coordinator, self._server, self._member.obey, self._event_log,
            leader=self._leader, make_store=self._make_store, roll_back=self._roll_back,
            clock=self._clock, stall=settings.stall,
        )  # fmt: skip
        coordinator.commanded = self._leader is not None and self._leader.connected
        log.info("this launcher coordinates %s", settings.job)
        self._executor.join(
            {"node": settings.node, "address": self._address, "slots": settings.nproc, "gpus": settings.gpus, "incarnation": self._incarnation,
             "promised": record.promised, "last": None, "elastic": self._elastic.registry}
        )  # fmt: skip

    async def _while_candidate(self, following: Follower) -> str:
        """Lead for good, unless another coordinator turns up before a majority has followed: then its address.

        Raises LaunchError if neither happens for as long as more nodes are waited for.
        """
        alone: float | None = None
        while (leading := self._executor) is not None:
            await asyncio.sleep(ASK_LEADER_S)
            last = leading.coordinator.last
            if not leading.coordinator.candidate or last is None:
                alone = None
                continue
            alone = self._clock.monotonic() if alone is None else alone
            self._stays_alone(leading.coordinator.missing, self._clock.monotonic() - alone)
            others = [address for node, address in last.launchers.items() if node != self._settings.node]
            for address in dict.fromkeys([await self._known_coordinator(), *others]):
                if address and leading.coordinator.candidate and await following.join(address, self._settings.lease_s / 4):
                    self._executor = None
                    await leading.yield_to(following.address)
                    return following.address
        return ""

    def _stays_alone(self, missing: tuple[str, ...], seconds: float) -> None:
        """Without a majority. Raises LaunchError after long enough; how the job ends is not ours to say."""
        longest = self._settings.wait_nodes_s
        if seconds > longest:
            raise LaunchError(
                f"{', '.join(missing)} could not be reached for {longest:g} s: without them too few launchers of {self._settings.job} "
                "are here to go on. If it goes on elsewhere, start this launcher again when the network is whole: it joins the others"
            )

    def _is_rendezvous(self) -> bool:
        return self._settings.rendezvous in ("", self._address)

    async def _known_coordinator(self) -> str:
        """Address of the coordinator that the leader knows to be alive; '' if that is nobody, or we."""
        if self._leader is None:
            return ""
        try:
            answer = await self._leader.request("coordinator_of", {"job": self._settings.job}, 1.0)
        except EagleEyeError as error:
            log.info("the server cannot be asked for a coordinator: %s", error)
            return ""
        return "" if answer.get("node") == self._settings.node else str(answer.get("address", ""))

    async def _watch_progress(self) -> None:
        """Second witness of a lost launcher: no worker here moves."""
        broke: float | None = None
        while True:
            await asyncio.sleep(LOOK_S)
            self._witness.observe(self._workers.marks())
            leading = self._executor
            if leading is None or not leading.coordinator.suspects:
                broke = None
                continue
            now = self._clock.monotonic()
            broke = now if broke is None else broke
            if self._witness.proves(now - broke, self._settings.lease_s):
                leading.do(leading.coordinator.no_progress(self._workers.highest_step))

    # --- handler of our control channel ---------------------------------------------------------------------------

    def objection(self, peer: Peer) -> str:
        """Why it may have no session: without certificates a job's launchers run as one user; '' if it may."""
        if peer.caller.local and not peer.caller.owns_server:
            return f"this launcher of {self._settings.job} takes orders and reports of its own user alone, not of {peer.caller}"
        return ""

    def refused(self, peer: Peer, why: str) -> None:
        """It got no session: told once for each caller, however often it tries."""
        if peer.caller not in self._refused:
            self._refused.add(peer.caller)
            log.warning("the %s was refused: %s", peer, why)
            self._event_log.of_node("session.refused", self._settings.node, f"the {peer} was refused: {why}", {"caller": str(peer.caller)})

    def opened(self, peer: Peer) -> None:
        """Its request to join says the rest."""

    def lost(self, peer: Peer, reason: str) -> None:
        if self._executor is not None and peer.role == "launcher":
            log.info("the session of the %s ended: %s", peer, reason)
            self._executor.lost(peer.node)

    async def request(self, peer: Peer, kind: str, body: Body) -> Body:
        if peer.job != self._settings.job:
            raise PermanentError(f"this launcher runs {self._settings.job}, not {peer.job}: check --rdzv")
        leading = self._executor
        if kind == "join":
            if leading is not None:
                return leading.join(body)
            return {"accepted": False, "coordinator": self._follower.address if self._follower else ""}
        if leading is None:
            raise TemporaryError("this launcher does not coordinate the job")
        if kind == "store":
            return await leading.ask_store(body)
        if kind not in {"death", "late_failure", "worker_finished", "finished", *ELASTIC_REPORTS}:
            raise ControlError(f"a coordinator does not know the request {kind!r}")
        leading.report(peer.node, kind, body)
        return {}

    # --- the leader --------------------------------------------------------------------------------------------------

    async def _obey_leader(self, command: Command) -> Body:
        refuse_other_job(command, self._settings.job)
        if self._executor is None:
            raise TemporaryError(f"the launcher on {self._settings.node} does not coordinate {self._settings.job}")
        if command.action == "restart":
            await asyncio.to_thread(self._check_way_back, int(command.arguments.get("resume_step", -1)))
        return await self._executor.command(command)

    def _check_way_back(self, step: int) -> None:
        """A roll-back to where nothing is kept any more would begin the whole training anew. Raises PermanentError."""
        kept = [entry.step for entry in checkpoint.entries(self._settings.checkpoints) if entry.finite]
        if step >= 0 and kept and min(kept) > step:
            raise PermanentError(f"no whole checkpoint at or before step {step} is kept in {self._settings.checkpoints}; the oldest is {min(kept)}")

    def _leader_state(self, connection: ConnectionState) -> None:
        if self._executor is None:
            return
        self._executor.coordinator.commanded = connection.connected
        if connection.connected:
            self._executor.leader_is_back()

    # --- facts of our own workers -------------------------------------------------------------------------------------

    def _worker_ended(self, worker: Worker, status: int | None) -> None:
        self._member.worker_ended(worker, status)

    def _report(self, kind: str, body: Body) -> None:
        if self._executor is not None:
            self._executor.report(self._settings.node, kind, body)
        elif self._follower is not None:
            self._follower.reports.put(kind, body)

    async def _reported(self) -> None:
        if self._executor is None and self._follower is not None:
            await self._follower.reports.sent()

    async def _ask_store(self, question: Body) -> Body:
        if self._executor is not None:
            return await self._executor.ask_store(question)
        if self._follower is not None:
            return await self._follower.ask_store(question)
        raise TemporaryError("there is no coordinator")

    def _zygote_lost(self) -> None:
        self._workers.zygote_lost()
        self._member.end(1, "the zygote is gone: workers can no longer be started here")

    # --- for the coordinator ---------------------------------------------------------------------------------------------

    async def _make_store(self) -> StoreAddress:
        """A new store for each epoch; the one before is ended."""
        host = self._address.rpartition(":")[0].strip("[]")
        old, self._store_pid = self._store_pid, 0
        if old:
            self._zygote.kill(old, 9)
        if "torch" not in self._zygote.modules:
            return StoreAddress(host=host, port=free_port(host), served=False)
        store, self._store_pid = await self._zygote.store(host)
        return store

    def _roll_back(self, step: int) -> None:
        checkpoint.discard_after(self._settings.checkpoints, step)

    @property
    def _address(self) -> str:
        host = self._settings.address.rpartition(":")[0]
        return f"{host}:{self._server.port}"

    @property
    def _peer(self) -> Peer:
        return Peer(
            role="launcher", node=self._settings.node, job=self._settings.job, incarnation=self._incarnation, pid=os.getpid(),
            address=self._address,
        )  # fmt: skip


def remove_leftovers(settings: LauncherSettings, fence: CommandFence) -> None:
    """Take away the memory of commands, and our own directory of checkpoints if it is empty.

    Logs stay for the operator. the vote log stays too: a start of the same run id must begin above its epochs.
    """
    fence.remove()
    if settings.checkpoint_dir is None:  # a directory that the user chose is the user's
        with contextlib.suppress(OSError):  # not empty: there are checkpoints
            settings.checkpoints.rmdir()


async def _with_gpus(settings: LauncherSettings) -> LauncherSettings:
    visible = (os.environ if settings.environment is None else settings.environment).get("CUDA_VISIBLE_DEVICES")
    return msgspec.structs.replace(settings, gpus=settings.gpus or await find_gpus(settings.nproc, visible, pynvml))


async def run_launcher(settings: LauncherSettings, stop: asyncio.Event) -> int:
    """Run one launcher: 0 the job has finished, 1 it has failed and was not healed, 130 it was stopped.

    Call it from the main thread. Raises LaunchError and ConfigError, before anything was started where possible.
    """
    clock = SystemClock()
    stream = open_stream_in(settings.state_dir, settings.stream, clock)
    name = f"launcher-{settings.run}-{settings.node}"
    writer = SpooledWriter(
        stream, settings.state_dir / "spool", clock=clock, name=name, max_bytes=settings.stream.spool_bytes,
        confirmed_by=confirmed_by(settings.stream),
    )  # fmt: skip

    def write(topic: str, key: str, value: bytes) -> None:
        writer.write(topic, key, value, keep=True)

    try:
        return await Launcher(await _with_gpus(settings), write, clock).run(stop)
    except TimeoutError as error:
        raise LaunchError(str(error)) from error
    finally:
        writer.close()
        stream.close()
        writer.close()  # what it was still handing over when the stream was closed goes to the spool
