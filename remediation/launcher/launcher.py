"""A launcher: one process per job and node. Starts, supervises and commands its workers, and may coordinate the job."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from eagle_eye.access.credentials import Credentials, node_credentials
from eagle_eye.access.tokens import VARIABLE as TOKEN_VARIABLE
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.errors import ControlError, EagleEyeError, LaunchError, PermanentError
from eagle_eye.open_file_limit import is_shortage, raise_open_file_limit, tell_no_room_seldom
from eagle_eye.ports import free_port
from eagle_eye.rpc.command_fence import CommandFence
from eagle_eye.stop_signals import handles, on_user_signals
from eagle_eye.stream.factory import confirmed_by, open_stream_in
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.training import checkpoint
from eagle_eye.training.object_path import ObjectPath
from eagle_eye.writable_text import words_of
from remediation.checkpoint.cache_settings import CacheSettings
from remediation.checkpoint.checkpoint_cache import CheckpointCache
from remediation.launcher.coordinator.heal_budget import HealBudget, parse_heal
from remediation.launcher.worker.console import Console
from remediation.launcher.worker.elastic_node import ElasticNode
from remediation.launcher.worker.worker_environment import StoreAddress
from remediation.launcher.worker.worker_gpus import find_gpus, pynvml
from remediation.launcher.worker.worker_process import Worker
from remediation.launcher.worker.worker_socket import WorkerSocket
from remediation.launcher.worker.workers import Workers
from remediation.launcher.worker.zygote_client import ZygoteLink

from .background_loop import FIRST_PAUSE_S, LONGEST_PAUSE_S, BackgroundLoop
from .control_network import Client, ControlNetwork
from .event_log import EventLog, Write
from .job_changes import JobChanges
from .job_file import JobFile
from .job_member import JobMember
from .launcher_loss_witness import LauncherLossWitness, marks_of
from .launcher_settings import LauncherSettings
from .own_place import OwnPlace
from .participation import Participation
from .path_tester import PathTester, StorageUsed
from .retransmission import host_of
from .start_facts import start_facts
from .training_command import parse_training_command
from .vote_log import VoteLog

log = logging.getLogger(__name__)

STDOUT = 1
ZYGOTE = "the process that forks workers"
MOST_ZYGOTES_LOST, ZYGOTE_WINDOW_S = 3, 600.0
"""If more are gone within that time there is something that ends each of them."""
STORE_S = 10.0
"""A job that ends without being done waits so long for its newest checkpoint in memory to be stored."""


class Launcher:
    """Puts the parts together; `run` lasts as long as the job."""

    def __init__(self, settings: LauncherSettings, write: Write, clock: Clock) -> None:
        """Raises LaunchError, ConfigError before anything is started."""
        self._settings = settings
        self._clock = clock
        budget = HealBudget(parse_heal(settings.heal), clock)
        environment = dict(os.environ if settings.environment is None else settings.environment)
        environment["EAGLE_EYE_STEPS_FROM"] = settings.steps_from
        environment.pop(TOKEN_VARIABLE, None)  # a person's token is none of the training script's business
        self._cwd = settings.working_dir or Path.cwd()
        self._command = parse_training_command(settings.command, self._cwd, environment.get("PATH"))
        self._environment = environment
        self._incarnation = secrets.token_hex(8)
        self._votes = VoteLog(settings.state_dir, settings.job, settings.node)
        self._fence = CommandFence(settings.state_dir / "votes" / settings.job / settings.node)
        self._event_log = EventLog(settings.job, settings.node, self._incarnation, clock, write)
        self._job_changes = JobChanges(
            settings.last_start, settings.node, self._votes, self._event_log,
            lambda: start_facts(settings, self._command, self._cwd, environment, clock.now()), clock,
        )  # fmt: skip
        self._job_file = JobFile(settings.run_dir, settings.job, settings.node, os.getpid(), settings.checkpoints)
        self._workers = Workers(settings, self._command, environment, self._worker_ended)
        self._workers.check_paths()
        self._zygote = ZygoteLink(self._command.interpreter, self._workers.exited, self._zygote_lost, raise_open_file_limit())
        self._workers.zygote = self._zygote
        witness = LauncherLossWitness(clock, settings.lease_s, settings.stall, partial(marks_of, self._workers))
        network = ControlNetwork(settings, self._fence, clock, node_credentials(settings.access, settings.node, clock, settings.job))
        self._place = OwnPlace(settings.node, settings.run_dir, settings.topology)
        part = self._participation = Participation(
            settings, network, self._votes, self._event_log, budget, witness, clock,
            incarnation=self._incarnation, make_store=self._make_store, roll_back=self._roll_back, check_way_back=self._check_way_back,
            place=self._place.now,
        )  # fmt: skip
        self._elastic = ElasticNode(
            settings, self._workers, self._votes, self._job_file, self._event_log, clock, report=part.report, ask_store=part.ask_store
        )
        self._member = JobMember(
            settings, self._workers, self._votes, self._job_file, self._event_log, part.report, part.reported, self._elastic
        )
        part.bind(self._member)
        self._path_tester = PathTester(settings.node, lambda: part.address, part.path_test_client, self._storage_used, self._event_log, clock)
        self._member.test_paths = self._path_tester.begin
        self._cache = self._checkpoint_cache(node_credentials(settings.access, settings.node, clock, settings.job))
        self._inbox = WorkerSocket(settings.inbox, self._member.receive)
        self._inbox.check_free()
        self._console = Console(lambda: self._workers.all, STDOUT)
        self._store_pid = 0
        self._zygotes_lost: list[float] = []
        """When; monotonic."""
        self._restarting: asyncio.Task[None] | None = None

    def _storage_used(self) -> StorageUsed:
        folders = (self._settings.checkpoints, self._cwd)
        return StorageUsed(tuple(worker.pid for worker in self._workers.all if worker.running), tuple(str(folder) for folder in folders if isinstance(folder, Path)))

    def _checkpoint_cache(self, credentials: Credentials | None) -> CheckpointCache | None:
        """None where there is no shared memory."""
        settings, segments = self._settings, self._workers.segments
        share = settings.backup.backup_share if settings.has_backup else 0.0
        if segments is None:
            return None
        cache = CheckpointCache(
            CacheSettings(
                node=settings.node, run=settings.run, host=host_of(settings.address), folder=segments[0], prefix=segments[1], workers=settings.nproc,
                every=settings.backup.backup_every, share=settings.backup.backup_cpu_share, limit_bytes=int(share * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")),
                limit_steps=settings.backup.backup_steps, storage=settings.stored_copies, storage_interval_s=settings.backup.storage_interval_s,
                tune_interval=settings.backup.tune_interval, keep=settings.stored_retention,
            ),
            lambda: None if self._votes.record.over else self._votes.record.last, self._participation.ask_for_copies,
            partial(self._event_log.of_job, "checkpoint.backup_failed"), credentials, self._event_log.of_job,
        )  # fmt: skip
        self._participation.copies = cache.answer
        self._member.fetch = cache.fetch
        self._member.checkpoint_events.stored, self._member.checkpoint_events.refused = cache.stored, cache.refused
        return cache

    async def run(self, stop: asyncio.Event) -> int:
        """Until the job is over or `stop` is set. Returns the exit code; raises LaunchError."""
        tasks: list[asyncio.Task[None]] = []
        code = 1
        on_user_signals(self._pass_on)
        try:
            if not await self._started(stop):
                code = 130
                return code
            tasks = [asyncio.create_task(work) for work in (*self._loops(), self._stopped(stop))]
            if self._settings.console:
                self._console.start()
            code = await self._outcome(tasks)
        finally:
            await self._finish(tasks, code)
        return code

    def _loops(self) -> list[Coroutine[Any, Any, None]]:
        watches: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "the watch for deaths": self._workers.watch_deaths, "the watch of memory": self._workers.watch_memory, "the watch for stalls": self._elastic.watch,
            "the job file": self._job_file.keep, "the socket of workers": self._inbox.keep, "the socket of elastic workers": self._elastic.sessions.keep,
            "the comparison with the run before": self._job_changes.tell, "the look for this node's place": partial(self._place.watch, self._participation.report),
        }  # fmt: skip
        loops = watches | self._participation.loops
        return [BackgroundLoop(name, begin, self._tell_loop, self._clock).run() for name, begin in loops.items()]

    def _tell_loop(self, name: str, why: str) -> None:
        event, message = ("collector.failing", f"{name} failed and begins again: {why}") if why else ("collector.recovered", f"{name} works again")
        self._event_log.of_node(event, self._settings.node, message, {"collector": f"launcher of {self._settings.job}: {name}", "reason": why})

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
            log.error("%s failed: %s", self._settings.job, reason.rstrip())
        return code

    # --- start and end -------------------------------------------------------------------------------------------

    async def _started(self, stop: asyncio.Event) -> bool:
        """False if the user stops it before: what is imported for the workers may take minutes, or never end. Raises LaunchError."""
        starting, stopped = asyncio.create_task(self._start()), asyncio.create_task(stop.wait())
        await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if starting.done():
            await starting
            return True
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return False

    async def _start(self) -> None:
        settings = self._settings
        packages = dict.fromkeys(name.partition(".")[0] for name in settings.preload if not name.startswith("eagle_eye"))
        imported = f"; importing {', '.join(packages)} first, once for all of them (--preload)" if packages else ""
        log.info("starting %s: %d workers on %s, output in %s%s", settings.job, settings.nproc, settings.node, settings.logs, imported)
        make_directories(settings)
        names = {"EAGLE_EYE_JOB": settings.job, "EAGLE_EYE_RUN": settings.run, "EAGLE_EYE_NODE": settings.node}
        await self._zygote.start(settings.preload, self._environment | names, str(self._cwd))
        await self._inbox.start()
        await self._elastic.sessions.start()
        await self._participation.start()
        await self._path_tester.start()
        if self._cache is not None:
            self._cache.start()
        await asyncio.gather(self._zygote.ready(), _check_cordon(self._participation.leader, settings))

    async def _finish(self, tasks: list[asyncio.Task[None]], code: int) -> None:
        """Leave nothing behind: no process, socket, ring or job file."""
        tasks = [*tasks, *([self._restarting] if self._restarting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(ControlError):
            await self._member.stop_workers(self._settings.stop_grace_s if code == 130 else 0.0)
        await asyncio.to_thread(self._console.close)
        if self._cache is not None:
            if code and self._member.job_over:  # it is not done: what its memory holds is where it may go on one day
                await self._cache.store_newest(STORE_S)
            await self._cache.close()
        await self._path_tester.close()
        await self._participation.close()
        await self._zygote.close()
        await self._inbox.stop()
        await self._elastic.close()
        await self._member.close()
        self._workers.close()
        self._job_file.remove()
        if self._member.ended.done():
            self._votes.end()
        if self._member.job_over:
            clean_up(self._settings, self._fence)

    async def _stopped(self, stop: asyncio.Event) -> None:
        """The user stops this launcher: the job if we coordinate it, else our part of it."""
        await stop.wait()
        self._workers.expect_end()
        if not self._participation.stop():
            self._member.end(130, "stopped")

    def _pass_on(self, number: signal.Signals) -> None:
        """A scheduler tells whoever it has started of a preemption (Slurm: --signal=USR1@60): it means those that handle it, and would end the others."""
        workers = [worker for worker in self._workers.all if worker.status is None and handles(worker.pid, number)]
        log.info("%s is passed on to the %d workers here that handle it", number.name, len(workers))
        for worker in workers:
            self._zygote.kill(worker.pid, number, group=False)

    # --- facts of our own workers -------------------------------------------------------------------------------------

    def _worker_ended(self, worker: Worker, status: int | None) -> None:
        self._member.worker_ended(worker, status)

    def _zygote_lost(self) -> None:
        """Its workers have died with it. They are started again by another one, unless the next is gone within a moment, too."""
        self._workers.zygote_lost()
        now = self._clock.monotonic()
        self._zygotes_lost = [*(lost for lost in self._zygotes_lost if now - lost < ZYGOTE_WINDOW_S), now]
        if not self._zygote.can_restart or len(self._zygotes_lost) > MOST_ZYGOTES_LOST:
            error = LaunchError("the zygote is gone: workers can no longer be started here")
            self._zygote.give_up(error)
            self._member.end(1, str(error))
            return
        self._tell_loop(ZYGOTE, "its process was killed; workers are started by another one")
        self._restarting = asyncio.get_running_loop().create_task(self._restart_zygote())

    async def _restart_zygote(self) -> None:
        """A want of descriptors, processes, threads or memory passes: it is told, and tried again for as long as it takes. Anything else ends this launcher."""
        pause_s, told = FIRST_PAUSE_S, False
        while (error := await self._zygote_error()) is not None:
            if not is_shortage(error):
                self._zygote.give_up(LaunchError(f"the zygote could not be started again: {words_of(error)}"))
                self._member.end(1, f"the zygote could not be started again: {words_of(error)}")
                return
            if not told:
                told = True
                self._tell_loop(ZYGOTE, words_of(error))
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._tell_loop(ZYGOTE, "")

    async def _zygote_error(self) -> Exception | None:
        """None once it was started again."""
        try:
            await self._zygote.restart()
        except Exception as error:  # noqa: BLE001 (boundary: LaunchError, or a thread that the system refuses; whatever it is, who calls ends the launcher or tries again)
            log.warning("the zygote could not be started again: %s", words_of(error))
            return error
        return None

    # --- for the coordinator ---------------------------------------------------------------------------------------------

    async def _make_store(self) -> StoreAddress:
        """A new store for each epoch; the one before is ended."""
        host = host_of(self._participation.address)
        old, self._store_pid = self._store_pid, 0
        if old:
            self._zygote.kill(old, 9)
        if "torch" not in self._zygote.modules:
            return StoreAddress(host=host, port=free_port(host), served=False)
        store, self._store_pid = await self._zygote.store(host)
        return store

    def _roll_back(self, step: int) -> None:
        for directory in self._settings.checkpoint_directories:
            checkpoint.discard_after(directory, step)

    def _check_way_back(self, step: int) -> None:
        """A roll-back to where nothing is kept any more would begin the whole training anew. Raises PermanentError."""
        kept = [entry.step for directory in self._settings.checkpoint_directories for entry in checkpoint.entries(directory) if entry.finite]
        if step >= 0 and kept and min(kept) > step:
            raise PermanentError(f"no whole checkpoint at or before step {step} is kept in {self._settings.checkpoints}; the oldest is {min(kept)}")


def make_directories(settings: LauncherSettings) -> None:
    """Raises LaunchError with the option that names another one."""
    for option, directory in (("--state-dir", settings.logs), ("--run-dir", settings.run_dir), ("--checkpoint-dir", settings.checkpoints)):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if isinstance(directory, ObjectPath):
                raise LaunchError(f"{option} {directory} cannot be used: {error.strerror}") from error
            raise LaunchError(f"{directory} cannot be made ({error.filename}: {error.strerror}). Make it for this user, or name another directory with {option}.") from error


def clean_up(settings: LauncherSettings, fence: CommandFence) -> None:
    """After the end of a run: take away the memory of commands, and our own directory of checkpoints if it is empty.

    Logs stay for the operator. The vote log stays too: a start of the same run id must begin above its epochs.
    """
    fence.remove()
    if settings.checkpoint_dir is None:  # a directory that the user chose is the user's
        with contextlib.suppress(OSError):  # not empty: there are checkpoints, or other jobs of its tenant
            own = Path(settings.checkpoints)
            for directory in (own, *own.parents[:2]):
                directory.rmdir()


class CordonAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The leader's answer to `cordon_of`; empty: the node is free."""

    job: str = ""
    """From which it was evicted."""
    reason: str = ""
    since: float = 0.0


async def _check_cordon(leader: Client | None, settings: LauncherSettings) -> None:
    """At a launcher's start: whether another job's eviction keeps this node out. The job that evicted it knows so itself, by its layout.

    Raises LaunchError on a cordoned node. Without a server, or without an answer of it, the job starts as if there were none.
    """
    if leader is None or settings.new_server:
        return
    try:
        body = await leader.request("cordon_of", {"node": settings.node, "job": settings.job}, settings.cordon_answer_s)
        cordon = msgspec.convert(body, CordonAnswer)
    except (EagleEyeError, msgspec.ValidationError) as error:
        log.warning("the server could not be asked whether %s is cordoned: %s", settings.node, error)
        return
    if not cordon.since:
        return
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(cordon.since))
    why = f"{settings.node} is cordoned since {when}: it was evicted from {cordon.job} ({cordon.reason or 'no reason given'})"
    if settings.ignore_cordon:
        log.warning("%s; workers of %s are started here all the same (--ignore-cordon)", why, settings.job)
        return
    raise LaunchError(
        f"{why}. No worker of {settings.job} is started here. After its repair: eagle-eye release {settings.node}; "
        "to start here all the same: --ignore-cordon"
    )


async def _with_gpus(settings: LauncherSettings) -> LauncherSettings:
    visible = (os.environ if settings.environment is None else settings.environment).get("CUDA_VISIBLE_DEVICES")
    return msgspec.structs.replace(settings, gpus=settings.gpus or await find_gpus(settings.nproc, visible, pynvml))


async def run_launcher(settings: LauncherSettings, stop: asyncio.Event) -> int:
    """Run one launcher: 0 the job has finished, 1 it has failed and was not healed, 130 it was stopped.

    Call it from the main thread. Raises LaunchError and ConfigError, before anything was started where possible.
    """
    clock = SystemClock()
    stream = open_stream_in(settings.state_dir, settings.stream, clock, access=settings.access, node=settings.node)
    name = f"launcher-{settings.run}@{settings.node}"  # no name has an @: the run a-b on c is not the run a on b-c
    writer = SpooledWriter(
        stream, settings.state_dir / "spool", clock=clock, name=name, max_bytes=settings.stream.spool_bytes,
        confirmed_by=confirmed_by(settings.stream),
    )  # fmt: skip

    def write(topic: str, key: str, value: bytes) -> None:
        writer.write(topic, key, value, keep=True)

    tell_no_room_seldom(asyncio.get_running_loop())
    try:
        return await Launcher(await _with_gpus(settings), write, clock).run(stop)
    except TimeoutError as error:
        raise LaunchError(str(error)) from error
    finally:
        writer.close()
        stream.close()
        writer.close()  # what it was still handing over when the stream was closed goes to the spool
