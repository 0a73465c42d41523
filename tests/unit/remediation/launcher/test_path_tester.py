"""A launcher tests the ways to others and its workers' mounts when it is asked to, within bounds, and tells what it found as events."""

import asyncio
import io
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eagle_eye import wire
from eagle_eye.clock import FakeClock
from eagle_eye.errors import TemporaryError
from eagle_eye.rpc.control_messages import Body
from eagle_eye.types import Event
from remediation.launcher import network_path, path_tester, storage_test
from remediation.launcher.coordinator.path_test_peers import MOST_SUSPECTS, SUSPECTED_BY, peers_of
from remediation.launcher.event_log import EventLog
from remediation.launcher.network_path import BULK, CONNECTIONS, echo
from remediation.launcher.path_tester import PROGRAM, PathTester, StorageProcess, StorageUsed

OWN = "10.0.0.1:1"
ORDER: Body = {"test": "t1", "incident": "i1", "tests": ["network.tested"], "testers": ["a", "b"], "peers": {"b": "10.0.0.2:1", "c": "10.0.0.3:1"}}


class Wires:
    """What is between launchers: nothing here opens a socket. Each connection takes a millisecond."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.written: list[bytes] = []
        self.ports: dict[str, BaseException | float] = {}
        """Host → what becomes of a connection; a millisecond if nothing is said."""
        self.silent: set[str] = set()
        self.asked: list[str] = []
        self.sent = 0
        log = EventLog("t/j/r", "a", "x", self.clock, lambda _topic, _key, value: self.written.append(value))
        self.tester = PathTester("a", lambda: OWN, self.client, lambda: StorageUsed((os.getpid(),), ("/",)), log, self.clock, connect=self.connect)

    async def connect(self, host: str, port: int, timeout: float) -> None:
        self.asked.append(host)
        outcome = self.ports.get(host, 0.0)
        if isinstance(outcome, BaseException):
            raise outcome
        self.clock.advance(outcome)

    def client(self, address: str, welcome_s: float) -> "Peer":
        return Peer(self, address)

    def run(self, order: Body = ORDER) -> list[Event]:
        async def test() -> None:
            self.tester.begin(order)
            assert self.tester._running is not None
            await self.tester._running
            await self.tester.close()

        asyncio.run(test())
        reader = wire.RecordReader()
        return [record for value in self.written if isinstance(record := reader.read(value), Event)]


class Peer:
    """A client to another launcher."""

    connected = True

    def __init__(self, wires: Wires, address: str) -> None:
        self.wires, self.address = wires, address

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    async def request(self, kind: str, body: Body, timeout: float = 5.0) -> Body:
        if self.address.partition(":")[0] in self.wires.silent:
            raise TemporaryError("it does not answer")
        self.wires.sent += len(body.get("payload", ""))
        self.wires.clock.advance(0.001)
        return await echo(body)


def test_what_each_peer_does_is_told_in_one_event() -> None:
    wires = Wires()
    wires.ports = {"10.0.0.3": TimeoutError()}
    (event,) = wires.run()
    told = event.attributes
    assert (event.name, event.entity.name, event.node) == ("network.tested", "a", "a")
    assert {name: told[name] for name in ("test", "incident", "testers", "answered", "lost", "refused", "silent")} == {
        "test": "t1", "incident": "i1", "testers": "a b", "answered": "b", "lost": "c", "refused": "", "silent": ""
    }  # fmt: skip
    assert told["mb_per_s"].startswith("b=")
    assert "unsure" not in told
    assert event.message.endswith("c no answer to 3 connections within 2 s")


def test_twin_a_host_without_a_launcher_and_one_that_is_stopped_are_not_lost() -> None:
    wires = Wires()
    wires.ports, wires.silent = {"10.0.0.2": ConnectionRefusedError()}, {"10.0.0.3"}
    (event,) = wires.run()
    assert (event.attributes["refused"], event.attributes["silent"], event.attributes["lost"]) == ("b", "c", "")


def test_twin_who_does_not_reach_its_own_port_accuses_nobody() -> None:
    wires = Wires()
    wires.ports = dict.fromkeys(("10.0.0.1", "10.0.0.2", "10.0.0.3"), TimeoutError())
    (event,) = wires.run()
    assert event.attributes["unsure"] == "it does not reach its own port either (lost)"


def test_twin_a_launcher_that_was_stopped_in_between_says_so() -> None:
    wires = Wires()
    wires.ports = {"10.0.0.2": 60.0}
    (event,) = wires.run()
    assert "so the launcher itself was held up" in event.attributes["unsure"]


def test_a_connection_that_needed_a_second_packet_is_told() -> None:
    wires = Wires()
    wires.ports = {"10.0.0.2": 1.1}
    (event,) = wires.run()
    assert event.attributes["sent_again"].startswith("b=")


def test_a_test_is_bounded_and_one_too_many_is_left_out() -> None:
    wires = Wires()
    many = {f"n{number}": f"10.0.1.{number}:1" for number in range(100)}
    wires.run({**ORDER, "peers": many})
    assert len(wires.asked) == CONNECTIONS * (path_tester.MOST_PEERS + 1)
    assert wires.sent == BULK * (path_tester.MOST_PEERS + 1)
    assert wires.tester.begin(ORDER) == {"begun": False}


def test_what_fails_in_a_test_concerns_nobody() -> None:
    wires = Wires()
    wires.ports = {"10.0.0.2": ValueError("no port"), "10.0.0.3": RuntimeError("a mistake of ours")}
    assert wires.run() == []


@pytest.mark.parametrize("order", [{"peers": [1, 2]}, {"peers": 3}, {"testers": 5}, {"tests": None}, {"peers": "ab"}])
def test_an_order_that_cannot_be_read_is_logged_and_nothing_is_tested(order: Body, caplog: pytest.LogCaptureFixture) -> None:
    wires = Wires()
    assert wires.run({**ORDER, **order}) == []
    assert [record.getMessage() for record in caplog.records] == ["no path test is run: what is asked for cannot be read"]


def test_twin_an_order_without_peers_or_with_words_of_a_later_version_is_none_of_these(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    wires = Wires()
    assert wires.run({"test": "t1", "tests": ["network.tested", "a later one"], "later": 1}) == []
    assert not caplog.records


# --- names -------------------------------------------------------------------------------------------------------------


class Names:
    """What looks names up; one that hangs does so until the test is over."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.over = threading.Event()

    def look_up(self, host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        self.asked.append(host)
        if host not in self.known:
            self.over.wait(60)
            raise socket.gaierror(-3, "no answer")
        return [(0, 0, 0, "", (address, 0)) for address in self.known[host]]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made.look_up)
    monkeypatch.setattr(network_path, "RESOLVE_S", 0.05)
    yield made
    made.over.set()


class NoThread(ThreadPoolExecutor):
    """The threads that a launcher writes its votes and reads its checkpoints with."""

    def submit(self, *_: object, **__: object) -> None:  # type: ignore[override]
        raise AssertionError("a look-up is in the way of others")


def test_a_name_that_nobody_looks_up_holds_neither_others_nor_the_end_and_accuses_nobody(names: Names) -> None:
    wires = Wires()

    async def test() -> None:
        asyncio.get_running_loop().set_default_executor(NoThread())
        for _ in range(2):
            wires.tester._began = -1e9
            wires.tester.begin({**ORDER, "peers": {"b": "10.0.0.2:1", "c": "host-c:1"}})
            assert wires.tester._running is not None
            await wires.tester._running
        await wires.tester.close()

    asyncio.run(test())
    assert names.asked == ["host-c"], "once, and not again before that has ended"
    reader = wire.RecordReader()
    told = [record.attributes for value in wires.written if isinstance(record := reader.read(value), Event)]
    assert [(each["answered"], each["lost"], each["unresolved"]) for each in told] == [("b", "", "c")] * 2
    assert not names.over.is_set()


def test_twin_a_name_is_looked_up_once_and_each_of_its_addresses_is_tried(names: Names) -> None:
    names.known = {"host-b": ["10.0.0.8", "10.0.0.9"], "host-c": ["10.0.0.8"]}
    wires = Wires()
    wires.ports = {"10.0.0.8": ConnectionRefusedError()}
    (event,) = wires.run({**ORDER, "peers": {"b": "host-b:1", "c": "host-c:1"}})
    assert (event.attributes["answered"], event.attributes["refused"]) == ("b", "c")
    assert sorted(names.asked) == ["host-b", "host-c"]


def test_an_echo_sends_back_no_more_than_a_test_sends() -> None:
    assert len(asyncio.run(echo({"payload": "x" * 10 * BULK}))["payload"]) == BULK


# --- who tests whom ----------------------------------------------------------------------------------------------------


def test_a_large_job_tests_neighbours_and_never_all_to_all() -> None:
    addresses = {f"n{number:04}": f"h{number}:1" for number in range(1000)}
    peers = peers_of(addresses, list(addresses), [f"n{number:04}" for number in range(500, 520)])
    assert sum(map(len, peers.values())) <= 2 * 1000 + MOST_SUSPECTS * SUSPECTED_BY
    assert set(peers["n0700"]) == {"n0699", "n0701"}
    assert "n0500" in peers["n0003"]


def test_two_launchers_test_each_other_and_one_alone_nobody() -> None:
    assert peers_of({"a": "x", "b": "y"}, ["a", "b"], ["b"]) == {"a": {"b": "y"}, "b": {"a": "x"}}
    assert peers_of({"a": "x"}, ["a"], ["a"]) == {}


# --- storage -----------------------------------------------------------------------------------------------------------


def answers(found: tuple[tuple[str, ...], dict[str, path_tester._Answer]]) -> Callable[[StorageUsed], Awaitable[object]]:
    async def answer(_storage: StorageUsed) -> tuple[tuple[str, ...], dict[str, path_tester._Answer]]:
        return found

    return answer


def test_each_mount_is_an_event_and_one_that_does_not_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    wires = Wires()
    found = ("/data", "/gone"), {"/data": path_tester._Answer(mount="/data", stat_s=0.001, read_s=0.002)}
    monkeypatch.setattr(wires.tester._process, "ready", lambda: True)
    monkeypatch.setattr(wires.tester._process, "answers", answers(found))
    data, gone = wires.run({**ORDER, "tests": ["storage.tested"]})
    assert (data.name, data.entity.name, data.attributes["error"], data.attributes["read_s"]) == ("storage.tested", "a/data", "", "0.002000")
    assert gone.attributes["error"] == "no answer within 3 s"


def test_the_program_reads_the_mounts_of_a_process_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    before = sorted(tmp_path.iterdir())
    child = subprocess.Popen([sys.executable, "-I", "-S", str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps({"pids": [os.getpid()], "paths": [str(tmp_path / "file")]}).encode() + b"\n")
    child.stdin.flush()
    mounts = json.loads(child.stdout.readline())["mounts"]
    told = [json.loads(child.stdout.readline()) for _ in mounts]
    child.stdin.close()
    assert child.wait(10) == 0
    child.stdout.close()
    assert {each["mount"] for each in told} == set(mounts)
    assert all("stat_s" in each or "error" in each for each in told)
    assert sorted(tmp_path.iterdir()) == before


HERE = StorageUsed((os.getpid(),), ("/",))


def test_a_test_starts_no_process_whatever_hangs_and_the_one_that_runs_since_before_ends_with_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """To start one waits for the file system that holds the interpreter, and all threads wait with it."""

    def hangs(*_: object, **__: object) -> None:
        raise AssertionError("a process is started while a mount may hang")

    async def test() -> subprocess.Popen[bytes]:
        process = StorageProcess()
        await process.start()
        child = process._child
        assert child is not None
        for module, name in ((subprocess, "Popen"), (asyncio, "create_subprocess_exec"), (os, "posix_spawn"), (os, "fork")):
            monkeypatch.setattr(module, name, hangs)
        for _ in range(2):
            assert process.ready()
            mounts, found = await process.answers(HERE)
            assert mounts
            assert set(found) == set(mounts)
            for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGHUP):
                child.send_signal(number)  # as a scheduler does, to all of a job
        process.close()
        return child

    child = asyncio.run(test())
    assert child.wait(10) == 0


def test_a_process_that_has_ended_is_told_once_and_not_started_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async def test() -> None:
        process = StorageProcess()
        await process.start()
        assert process._child is not None
        process._child.kill()
        process._child.wait(10)
        assert not process.ready()
        assert not process.ready()
        process.close()

    asyncio.run(test())
    assert [record.getMessage() for record in caplog.records] == ["the storage of the workers is not tested any more: the process for it has ended (status -9)"]


def test_where_no_process_can_be_had_the_launcher_runs_and_the_network_is_tested(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    wires = Wires()

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    asyncio.run(wires.tester.start())
    assert [event.name for event in wires.run({**ORDER, "tests": ["network.tested", "storage.tested"]})] == ["network.tested"]
    assert len(caplog.records) == 1


class Written:
    """The input of the process."""

    def write(self, _line: bytes) -> None:
        return


def test_an_answer_that_comes_too_late_is_none_of_the_next_test(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def test(*lines: bytes) -> tuple[tuple[str, ...], dict[str, path_tester._Answer]]:
        process, reader = StorageProcess(), asyncio.StreamReader()
        reader.feed_data(b"\n".join(lines) + b"\n")
        reader.feed_eof()
        process._streams, process._asked = (reader, Written()), 1  # type: ignore[assignment]
        return await process.answers(HERE)

    late = b'{"test": 1, "mount": "/old", "stat_s": 9.0}'
    mounts, found = asyncio.run(test(late, b'{"test": 2, "mounts": ["/new"]}', late, b'{"test": 2, "mount": "/new", "stat_s": 0.1}'))
    assert (mounts, set(found)) == (("/new",), {"/new"})
    assert asyncio.run(test(late, b'{"test": 2, "busy": true}')) == ((), {})
    assert len(caplog.records) == 1


def test_the_program_takes_no_second_test_while_a_mount_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    told: list[dict[str, object]] = []
    question = json.dumps({"test": 1, "pids": [], "paths": ["/"]}) + "\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(question + question.replace("1", "2")))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(storage_test, "_use_all", lambda: None)
    monkeypatch.setattr(storage_test, "_mounts", lambda: [("/", "nfs4")])
    monkeypatch.setattr(storage_test, "measured", lambda _path: {"hung": over.wait(60)})
    monkeypatch.setattr(storage_test, "_say", told.append)
    monkeypatch.setattr(os, "_exit", lambda _status: None)
    storage_test.main()
    assert told == [{"test": 1, "mounts": ["/"]}, {"test": 2, "busy": True}]
    over.set()
