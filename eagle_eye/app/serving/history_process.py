"""The history of all partitions of a server process, written by a child process: Python computes in one thread at a time, and detection needs that.

    parent                                                                           child
    PartitionHistory.start, stop ── BeginHistory, EndHistory ─────────────────────►  a HistoryService for each partition
    notices, figures             ◄─ HistoryNotice, HistoryFigures, HistoryEnded ──

It is for a stream of a cluster, which any process may open; the embedded one is of one machine, whose history a thread writes. The child
ends with its parent, since the pipe between them ends then; one that dies is started again, and goes on where the files end.
"""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Protocol

import msgspec

from eagle_eye.app import plugin_wiring
from eagle_eye.clock import Clock, SteadyClock, SystemClock
from eagle_eye.config import Config
from eagle_eye.history.factory import history_service
from eagle_eye.history.history_metrics import PartitionHistoryMetrics
from eagle_eye.stream.factory import open_stream
from eagle_eye.stream.fetcher import ChildProcess
from eagle_eye.types import Notice
from eagle_eye.writable_text import words_of

FIGURES_S = 1.0
RETRY_S = 5.0
"""Before a child that died is started again."""
END_S = 5.0
"""Longer than a service takes to end; a child that takes longer is killed."""
NICENESS = 5
"""Detection comes first: what is not written yet, the stream keeps."""
log = logging.getLogger(__name__)


class BeginHistory(msgspec.Struct, frozen=True, tag=True):
    """Write the history of this partition."""

    partition: int


class EndHistory(msgspec.Struct, frozen=True, tag=True):
    """Write it no longer."""

    partition: int


class QuitHistory(msgspec.Struct, frozen=True, tag=True):
    """Write nothing more, and end."""


class HistoryEnded(msgspec.Struct, frozen=True, tag=True):
    """It is written no longer."""

    partition: int


class HistoryNotice(msgspec.Struct, frozen=True, tag=True):
    """A notice of a service."""

    notice: Notice


class HistoryFigures(msgspec.Struct, frozen=True, tag=True):
    """What a service has done so far, in this child."""

    figures: PartitionHistoryMetrics


HistoryCommand = BeginHistory | EndHistory | QuitHistory
HistoryReport = HistoryEnded | HistoryNotice | HistoryFigures
_COMMANDS = msgspec.msgpack.Decoder(HistoryCommand)
_REPORTS = msgspec.msgpack.Decoder(HistoryReport)


class HistoryWriter(Protocol):
    """Writes the history of one partition, in this process or another."""

    @property
    def figures(self) -> PartitionHistoryMetrics: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


# --- the child -------------------------------------------------------------------------------------------------------------


class HistoryChild:
    """Does what the pipe says, with a service for each partition."""

    def __init__(self, pipe: Connection, service_of: Callable[[int, Callable[[Notice], None]], HistoryWriter]) -> None:
        """`service_of`: (partition, what takes its notices) → its service, not started."""
        self._pipe = pipe
        self._service_of = service_of
        self._services: dict[int, HistoryWriter] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._teller = threading.Thread(target=self._tell_figures, name="history-figures", daemon=True)

    def run(self) -> None:
        """Returns when the pipe ends, or says so."""
        self._teller.start()
        for data in _received(self._pipe):
            command: HistoryCommand = _COMMANDS.decode(data)
            if isinstance(command, QuitHistory):
                return
            if isinstance(command, BeginHistory):
                self._begin(command.partition)
            else:  # it takes up to some seconds, and the others are not to wait for it
                threading.Thread(target=self._end, args=(command.partition,), name=f"history-end-{command.partition}", daemon=True).start()

    def close(self) -> None:
        """EndHistory the services and the pipe."""
        self._over.set()
        self._teller.join()
        for service in list(self._services.values()):
            service.stop()
        self._pipe.close()

    def _begin(self, partition: int) -> None:
        service = self._services[partition] = self._service_of(partition, lambda notice: self._tell(HistoryNotice(notice)))
        service.start()

    def _end(self, partition: int) -> None:
        service = self._services.pop(partition, None)
        if service is not None:
            service.stop()
        self._tell(HistoryEnded(partition))

    def _tell_figures(self) -> None:
        while not self._over.wait(FIGURES_S):
            for service in list(self._services.values()):
                self._tell(HistoryFigures(service.figures))

    def _tell(self, report: HistoryReport) -> None:
        with self._lock:
            _send(self._pipe, report)


def serve(config: Config, pipe: Connection) -> None:
    """The child process: until its parent ends it, or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears of it too, and ends this one
    signal.signal(signal.SIGTERM, lambda *_: _exit_within(END_S))
    os.nice(NICENESS)
    plugin_wiring.log_to_stderr()
    try:
        clock = SteadyClock(SystemClock())
        stream = open_stream(config, clock, checked=True)
        child = HistoryChild(pipe, lambda partition, on_notice: history_service(config, stream, partition, clock, on_notice))
        child.run()
        _exit_within(2 * END_S)
        child.close()
        stream.close()
    except Exception:
        log.exception("the history cannot be written")
        os._exit(1)
    os._exit(0)  # whatever thread still waits for a disk: what it has not written is read again


def _exit_within(seconds: float) -> None:
    """Whatever holds this process meanwhile."""
    timer = threading.Timer(seconds, os._exit, (1,))
    timer.daemon = True
    timer.start()


# --- the parent ------------------------------------------------------------------------------------------------------------


def spawn(config: Config, pipe: Connection) -> ChildProcess:
    """Start a child that serves this end of a pipe."""
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(config, pipe), name="history", daemon=True)
    process.start()
    return process


class HistoryProcess:
    """The child of a server process; it is started for the first partition. A service of the process."""

    def __init__(self, start_child: Callable[[Connection], ChildProcess], *, clock: Clock, on_notice: Callable[[Notice], None]) -> None:
        """`start_child`: with the child's end of the pipe. Raises OSError."""
        self._start_child = start_child
        self._clock = clock
        self._on_notice = on_notice
        self._changed = threading.Condition()
        self._wanted: set[int] = set()
        """Partitions whose history is to be written."""
        self._ending: set[int] = set()
        self._figures: dict[int, PartitionHistoryMetrics] = {}
        self._before: dict[int, PartitionHistoryMetrics] = {}
        """Of children that have died."""
        self._pipe: Connection | None = None
        self._child: ChildProcess | None = None
        self._stop = threading.Event()
        self._failing = False
        self._thread: threading.Thread | None = None

    def partition(self, partition: int) -> "PartitionHistory":
        """The service of one partition."""
        return PartitionHistory(self, partition)

    def start(self) -> None:
        """Nothing is started before there is a partition."""

    def stop(self) -> None:
        """EndHistory the child; one that does not is killed."""
        self._stop.set()
        with self._changed:
            self._say(QuitHistory())
        if self._thread is None:
            return
        self._thread.join(END_S)
        if self._thread.is_alive() and (child := self._child) is not None:
            child.kill()
            self._thread.join(END_S)

    # --- of one partition

    def begin(self, partition: int) -> None:
        """Have it written; returns at once."""
        with self._changed:
            self._wanted.add(partition)
            self._figures.pop(partition, None)
            self._before.pop(partition, None)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="history-process", daemon=True)
                self._thread.start()
            self._say(BeginHistory(partition))

    def end(self, partition: int) -> None:
        """Returns once it is written no longer, or after END_S: two that write the same files do no harm."""
        with self._changed:
            self._wanted.discard(partition)
            if self._pipe is not None:
                self._ending.add(partition)
                self._say(EndHistory(partition))
                self._changed.wait_for(lambda: partition not in self._ending, END_S)
                self._ending.discard(partition)

    def figures(self, partition: int) -> PartitionHistoryMetrics:
        """So far, of all children."""
        with self._changed:
            nothing = PartitionHistoryMetrics(partition=partition, files=0, rows=0, bytes=0, skipped=0, failures=0, behind_s=0.0)
            return _sum(self._before.get(partition, nothing), self._figures.get(partition, nothing))

    # --- the thread

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                why = self._serve_child()
            except OSError as error:  # no process or descriptor is left
                why = words_of(error)
            if not self._stop.is_set():
                self._died(why)
            self._stop.wait(RETRY_S)

    def _serve_child(self) -> str:
        """Start a child and take its reports until it ends; returns what it ended with. Raises OSError."""
        ours, theirs = multiprocessing.Pipe()
        try:
            child = self._child = self._start_child(theirs)
            theirs.close()
            with self._changed:
                self._pipe = ours
                for partition in sorted(self._wanted):
                    self._say(BeginHistory(partition))
                if self._stop.is_set():
                    self._say(QuitHistory())
            for data in _received(ours):
                self._take(_REPORTS.decode(data))
        finally:
            with self._changed:
                self._pipe = None
            ours.close()
            theirs.close()
        return _ended(child)

    def _take(self, report: HistoryReport) -> None:
        if isinstance(report, HistoryNotice):
            self._on_notice(report.notice)
            return
        with self._changed:
            if isinstance(report, HistoryEnded):
                self._ending.discard(report.partition)
                self._changed.notify_all()
                return
            self._figures[report.figures.partition] = report.figures
        if self._failing and report.figures.files:
            self._failing = False
            self._on_notice(Notice(name="history.recovered", time=self._clock.now(), message="the process that writes the history writes again"))

    def _died(self, why: str) -> None:
        with self._changed:
            self._ending.clear()
            self._changed.notify_all()
            for partition in self._wanted:
                figures = self._figures.pop(partition, None)
                if figures is not None:
                    self._before[partition] = _sum(self._before[partition], figures) if partition in self._before else figures
                if (before := self._before.get(partition)) is not None:
                    self._before[partition] = replace(before, failures=before.failures + 1)
        if not self._failing:
            self._failing = True
            message = f"the process that writes the history is away: {why}; it is started again, and the stream keeps what is missing"
            log.warning("%s", message)
            self._on_notice(Notice(name="history.failing", time=self._clock.now(), message=message))

    def _say(self, command: HistoryCommand) -> None:
        """To the child, if there is one; a new one is told of all that is wanted. Called with the lock."""
        if self._pipe is not None:
            _send(self._pipe, command)


def _ended(child: ChildProcess) -> str:
    """Its pipe has ended, and so does it; what it ended with."""
    child.join(END_S)
    if child.is_alive():
        child.kill()
        child.join()
    code = child.exitcode
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


class PartitionHistory:
    """The history of one partition, as long as it is owned here: a service of it."""

    def __init__(self, process: HistoryProcess, partition: int) -> None:
        self._process = process
        self._partition = partition

    @property
    def figures(self) -> PartitionHistoryMetrics:
        return self._process.figures(self._partition)

    def start(self) -> None:
        self._process.begin(self._partition)

    def stop(self) -> None:
        self._process.end(self._partition)


def _sum(first: PartitionHistoryMetrics, then: PartitionHistoryMetrics) -> PartitionHistoryMetrics:
    return replace(
        then, files=first.files + then.files, rows=first.rows + then.rows, bytes=first.bytes + then.bytes, skipped=first.skipped + then.skipped,
        failures=first.failures + then.failures,
    )  # fmt: skip


# --- the pipe --------------------------------------------------------------------------------------------------------------


def _send(pipe: Connection, message: HistoryCommand | HistoryReport) -> None:
    try:
        pipe.send_bytes(msgspec.msgpack.encode(message))
    except OSError as error:  # whoever reads it notices the same
        log.info("the pipe of the history has ended: %s", words_of(error))


def _received(pipe: Connection) -> Iterator[bytes]:
    """Until it ends."""
    while True:
        try:
            yield pipe.recv_bytes()
        except (EOFError, OSError):
            return
