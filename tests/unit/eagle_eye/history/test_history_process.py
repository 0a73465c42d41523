"""The process that writes the history of a server: told what to write, heard, started again, ended. Here it is a thread at the other end of the pipe."""

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection

import pytest

from eagle_eye.app.serving import history_process as module
from eagle_eye.app.serving.history_process import HistoryChild, HistoryProcess
from eagle_eye.clock import FakeClock, SystemClock
from eagle_eye.history.history_metrics import PartitionHistoryMetrics
from eagle_eye.types import Notice

NOTHING = PartitionHistoryMetrics(partition=0, files=0, rows=0, bytes=0, skipped=0, failures=0, behind_s=0.0)


class Writer:
    """Of one partition: says what it is told to have done."""

    def __init__(self, partition: int, on_notice: Callable[[Notice], None]) -> None:
        self.on_notice = on_notice
        self.figures = replace(NOTHING, partition=partition)
        self.runs = False

    def start(self) -> None:
        self.runs = True

    def stop(self) -> None:
        self.runs = False


class Child:
    """A thread in the place of a process, which may be killed."""

    def __init__(self, pipe: Connection, *, deaf: bool = False) -> None:
        self.exitcode: int | None = None
        self.writers: dict[int, Writer] = {}
        self._socket = socket.socket(fileno=socket.dup(pipe.fileno()))
        self._pipe = Connection(socket.dup(pipe.fileno()))
        self._child = HistoryChild(self._pipe, self._service_of)
        self._freed = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(deaf,))
        self._thread.start()

    def _service_of(self, partition: int, on_notice: Callable[[Notice], None]) -> Writer:
        writer = self.writers[partition] = Writer(partition, on_notice)
        return writer

    def _serve(self, deaf: bool) -> None:
        if deaf:
            self._freed.wait()
        else:
            self._child.run()
            self._child.close()
            self.exitcode = 0 if self.exitcode is None else self.exitcode
        self._pipe.close()
        self._socket.close()

    def kill(self) -> None:
        self.exitcode = -9
        self._socket.shutdown(socket.SHUT_RDWR)
        self._freed.set()

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def is_alive(self) -> bool:
        return self._thread.is_alive()


class Server:
    """A server process's side, and the children that it had."""

    def __init__(self) -> None:
        self.children: list[Child] = []
        self.notices: list[Notice] = []
        self.refusals = 0
        self.deaf = False
        self.process = HistoryProcess(self._start, clock=FakeClock(), on_notice=self.notices.append)

    def _start(self, pipe: Connection) -> Child:
        if self.refusals:
            self.refusals -= 1
            raise OSError(11, "no process is left")
        self.children.append(Child(pipe, deaf=self.deaf))
        return self.children[-1]

    def begin(self, *partitions: int) -> None:
        for partition in partitions:
            self.process.partition(partition).start()
        wait(lambda: self.children and {each for each, writer in self.children[-1].writers.items() if writer.runs} >= set(partitions))

    @property
    def told(self) -> list[str]:
        return [notice.name for notice in self.notices]


def wait(look: Callable[[], object]) -> None:
    clock = SystemClock()
    until = clock.monotonic() + 20.0
    while not look():
        assert clock.monotonic() < until, "waited in vain"
        clock.sleep(0.002)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(module, "FIGURES_S", 0.005)
    monkeypatch.setattr(module, "RETRY_S", 0.005)
    server = Server()
    yield server
    server.process.stop()


def test_no_child_is_started_before_there_is_a_partition(server: Server) -> None:
    server.process.start()
    assert server.children == []


def test_partitions_are_written_until_they_are_given_back(server: Server) -> None:
    server.begin(0, 1)
    (child,) = server.children
    child.writers[1].figures = replace(child.writers[1].figures, files=3, rows=30)
    history = server.process.partition(1)
    wait(lambda: history.figures.rows == 30)
    assert server.process.partition(0).figures == NOTHING
    history.stop()
    assert (child.writers[0].runs, child.writers[1].runs) == (True, False)
    server.process.stop()
    assert not child.writers[0].runs
    assert (child.exitcode, server.told) == (0, [])


def test_notices_of_its_services_are_told(server: Server) -> None:
    server.begin(0)
    server.children[0].writers[0].on_notice(Notice(name="history.failing", time=1.0, message="no space"))
    wait(lambda: server.notices == [Notice(name="history.failing", time=1.0, message="no space")])


def test_fault_a_child_that_dies_is_told_once_and_a_new_one_goes_on(server: Server) -> None:
    server.begin(0, 1)
    server.process.partition(1).stop()
    for _ in range(2):
        child = server.children[-1]
        child.writers[0].figures = replace(child.writers[0].figures, files=2, behind_s=7.0)
        before = len(server.children)
        wait(lambda: server.process.partition(0).figures.files == 2 * before)  # noqa: B023 -- used at once
        child.kill()
        wait(lambda: len(server.children) > before and server.children[-1].writers)  # noqa: B023
    assert list(server.children[-1].writers) == [0], "the other partition was given back"
    figures = server.process.partition(0).figures
    assert (figures.files, figures.failures) == (4, 2)
    server.children[-1].writers[0].figures = replace(NOTHING, files=1)
    wait(lambda: server.told.count("history.recovered") == 2)
    assert server.told.count("history.failing") == 2
    assert "signal 9" in server.notices[0].message


def test_a_child_that_cannot_be_started_is_tried_again_and_told_once(server: Server) -> None:
    server.refusals = 3
    server.begin(0)
    assert server.told == ["history.failing"]
    assert "no process is left" in server.notices[0].message


def test_a_child_that_does_not_listen_is_killed_at_the_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_S", 0.02)
    server.deaf = True
    server.process.partition(0).start()
    wait(lambda: server.children)
    server.process.partition(0).stop()
    server.process.stop()
    assert server.children[0].exitcode == -9
    assert server.told == []
