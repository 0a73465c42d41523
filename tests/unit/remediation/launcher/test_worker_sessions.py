"""The launcher's end of the elastic workers' sessions, their store, and reports in their order: over loopback."""

import asyncio
import base64
import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.clock import SystemClock
from eagle_eye.errors import ControlError, TemporaryError
from eagle_eye.rpc.control_messages import Body
from eagle_eye.training import messages
from remediation.launcher.coordinator.rendezvous_store import RendezvousStore, ask_patiently
from remediation.launcher.follower import ReportQueue
from remediation.launcher.worker.worker_sessions import WorkerSessions
from remediation.launcher.worker.worker_socket import WorkerSocket


class Worker:
    """A worker's end, line by line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        self._reader, self._writer, self.name = reader, writer, name

    @classmethod
    async def connect(cls, path: Path, name: str) -> "Worker":
        reader, writer = await asyncio.open_unix_connection(str(path))
        return cls(reader, writer, name)

    def say(self, kind: str, **words: Any) -> None:
        self._writer.write(messages.encode(kind, worker=self.name, **words))

    async def hear(self) -> messages.ProbeMessage | None:
        """The next message; None once the launcher has hung up."""
        async with asyncio.timeout(5):
            line = await self._reader.readline()
        return json.loads(line) if line else None

    async def close(self) -> None:
        self._writer.close()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)


class Stage:
    """Sessions of workers a, b and c, whose pids are 1, 2 and 3."""

    def __init__(self, folder: Path, answer_s: float = 1.0) -> None:
        self.path = folder / "r-elastic.sock"
        self.heard: asyncio.Queue[tuple[str, messages.ProbeMessage]] = asyncio.Queue()
        self.workers: list[Worker] = []
        self.pids = {"a": 1, "b": 2, "c": 3}
        self.running: set[str] = set()
        """Whose processes compute."""
        self.asked_whether_it_runs = asyncio.Event()
        self.forked = asyncio.Event()
        self.forked.set()
        self.sessions = WorkerSessions(self.path, self.admit, lambda *said: self.heard.put_nowait(said), self.runs, answer_s, 10 * answer_s)

    def runs(self, name: str) -> bool:
        self.asked_whether_it_runs.set()
        return name in self.running

    async def admit(self, name: str, pid: int) -> bool:
        await self.forked.wait()
        return self.pids.get(name) == pid

    async def __aenter__(self) -> "Stage":
        await self.sessions.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.sessions.stop()
        for worker in self.workers:
            await worker.close()

    async def connect(self, name: str) -> Worker:
        self.workers.append(await Worker.connect(self.path, name))
        return self.workers[-1]

    async def enter(self, name: str, pid: int) -> Worker:
        worker = await self.connect(name)
        worker.say("join", pid=pid)
        await self.heard.get()
        return worker


def test_only_the_user_and_only_our_own_workers_are_let_in(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            assert stage.path.stat().st_mode & 0o777 == 0o600
            for kind, pid in (("join", 7), ("leave", 1)):
                stranger = await stage.connect("a")
                stranger.say(kind, pid=pid)
                assert await stranger.hear() is None, "another life of the name, or no introduction"
            await stage.enter("a", 1)
            assert stage.sessions.present == ("a",)
        assert not tmp_path.joinpath("r-elastic.sock").exists()

    asyncio.run(play())


def test_a_fence_goes_to_each_in_its_way_and_brings_what_they_hold(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            a, b = await stage.enter("a", 1), await stage.enter("b", 2)
            fence = stage.sessions.fence(7, ["a"], ["b"])
            assert (await a.hear() or {})["soft"] is False
            assert (await b.hear() or {})["soft"] is True
            a.say("held_state", epoch=6, step=3)
            a.say("held_state", epoch=7, step=4)
            b.say("held_state", epoch=7, step=5)
            fenced = await fence
            assert fenced is not None
            assert ({name: held["step"] for name, held in fenced.holdings.items()}, fenced.silent) == ({"a": 4, "b": 5}, ())

    asyncio.run(play())


def test_a_newer_fence_takes_the_place_of_one_that_waits_and_the_dead_are_not_waited_for(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path) as stage:
            a, _ = await stage.enter("a", 1), await stage.enter("b", 2)
            waits = stage.sessions.fence(7, [], ["a", "b"])
            newer = stage.sessions.fence(8, ["a", "b"])
            assert await waits is None
            a.say("held_state", epoch=8, step=4)
            stage.sessions.lost("b")
            fenced = await newer
            assert fenced is not None
            assert (set(fenced.holdings), fenced.silent) == ({"a"}, ())

    asyncio.run(play())


def test_what_cannot_be_dealt_with_costs_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its session was closed, and the worker ended when the next epoch began."""

    async def play() -> None:
        async with Stage(tmp_path) as stage:
            a = await stage.enter("a", 1)

            def fails(worker: str, message: messages.ProbeMessage) -> None:
                raise ValueError(message["kind"])

            monkeypatch.setattr(stage.sessions, "_hear", fails)
            a.say("resumed", epoch=6)
            fence = stage.sessions.fence(7, ["a"])
            a.say("held_state", epoch="seven", step=4)
            assert (await a.hear() or {})["epoch"] == 7
            a.say("held_state", epoch=7, step=4)
            fenced = await fence
            assert fenced is not None
            assert set(fenced.holdings) == {"a"}

    asyncio.run(play())


def test_who_does_not_answer_a_hard_fence_is_silent(tmp_path: Path) -> None:
    async def play() -> None:
        async with Stage(tmp_path, answer_s=0.01) as stage:
            await stage.enter("c", 3)
            fenced = await stage.sessions.fence(7, ["c"])
            assert fenced is not None
            assert fenced.silent == ("c",)

    asyncio.run(play())


def test_twin_who_computes_when_it_is_fenced_is_waited_for(tmp_path: Path) -> None:
    """Its machine is busy, or it is in one long call that lets no other thread run."""

    async def play() -> None:
        async with Stage(tmp_path, answer_s=0.2) as stage:
            worker = await stage.enter("c", 3)
            stage.running.add("c")
            fence = stage.sessions.fence(7, ["c"])
            await asyncio.wait_for(stage.asked_whether_it_runs.wait(), 30)
            worker.say("held_state", epoch=7, step=4)
            fenced = await fence
            assert fenced is not None
            assert (set(fenced.holdings), fenced.silent) == ({"c"}, ())

    asyncio.run(play())


def question(op: str, key: str, value: str = "", timeout_s: float = 5.0) -> messages.ProbeMessage:
    values = [base64.b64encode(value.encode()).decode()] if value else []
    return {"id": 5, "op": op, "keys": [key], "values": values, "timeout_s": timeout_s}


def test_a_key_is_waited_for_and_old_epochs_are_forgotten() -> None:
    async def play() -> None:
        store = RendezvousStore(SystemClock())
        waiting = asyncio.create_task(ask_patiently(question("get", "3/port"), store.answer, SystemClock()))
        await asyncio.sleep(0)
        assert (await store.answer(question("set", "3/port", "77")))["ok"]
        answer = messages.decode(await waiting)
        assert (answer["kind"], answer["id"], answer["ok"]) == ("stored", 5, True)
        assert base64.b64decode(answer["values"][0]) == b"77"
        store.begin(4)
        assert not (await store.answer(question("get", "3/port", timeout_s=0.01)))["ok"]

    asyncio.run(play())


def test_a_long_wait_is_many_short_ones_and_a_store_that_is_gone_is_asked_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("remediation.launcher.coordinator.rendezvous_store.POLL_S", 0.01)

    async def play() -> None:
        store = RendezvousStore(SystemClock())
        asked = 0

        async def ask(body: Body) -> Body:
            nonlocal asked
            asked += 1
            if asked == 1:
                raise TemporaryError("there is no coordinator")
            if asked == 4:
                await store.answer(question("set", "3/port", "77"))
            return await store.answer(body)

        assert messages.decode(await ask_patiently(question("get", "3/port"), ask, SystemClock()))["ok"]
        assert asked == 4

    asyncio.run(play())


def test_a_question_ends_with_its_time() -> None:
    async def play() -> None:
        async def ask(_: Body) -> Body:
            raise TemporaryError("there is no coordinator")

        answer = messages.decode(await ask_patiently(question("set", "3/a", "1", timeout_s=0.0), ask, SystemClock()))
        assert not answer["ok"]
        assert "no coordinator" in answer["error"]

    asyncio.run(play())


def test_reports_arrive_in_their_order_and_old_ones_only_if_they_last() -> None:
    async def play() -> None:
        told: list[str] = []
        tries = 0
        done = asyncio.Event()

        async def send(kind: str, body: Body) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise TemporaryError("no session")
            if kind == "poison":
                raise ControlError("not understood")
            told.append(kind)
            if kind == "last":
                done.set()

        reports = ReportQueue(send, lambda: 5)
        reports.put("entered", {"epoch": 3, "lasting": True})
        reports.put("held", {"epoch": 4})
        reports.put("poison", {"epoch": 5})
        reports.put("stale", {"epoch": 5})
        reports.put("last", {"epoch": 5})
        reports.forget("stale")
        running = asyncio.create_task(reports.run())
        async with asyncio.timeout(5):
            await done.wait()
        running.cancel()
        assert told == ["entered", "last"]

    asyncio.run(play())


def test_a_worker_that_is_killed_with_words_unread_leaves_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Stage(tmp_path) as stage:
            with socket.socket(socket.AF_UNIX) as killed:
                killed.connect(str(stage.path))
                killed.sendall(messages.encode("join", worker="a", pid=1))
                await stage.heard.get()
                assert stage.sessions.tell("a", "save")
                killed.recv(1, socket.MSG_PEEK)  # it is there, and stays unread
            while stage.sessions.present:
                await asyncio.sleep(0)

    with caplog.at_level(logging.DEBUG, "remediation.launcher.worker.worker_sessions"):
        asyncio.run(main())
    [line] = [record for record in caplog.records if "the session of a on" in record.message]
    assert line.levelno == logging.DEBUG
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_a_worker_says_can_be_told_on_whatever_it_names(tmp_path: Path) -> None:
    """An exception that named a file whose name is no UTF-8 kept the coordinator from starting the workers anew."""

    async def play() -> None:
        heard: asyncio.Queue[messages.ProbeMessage] = asyncio.Queue()
        path = tmp_path / "r-launcher.sock"
        opened = WorkerSocket(path, heard.put_nowait)
        await opened.start()
        worker = await Worker.connect(path, "a")
        worker.say("exception", message="cannot parse caf\udce9.bin")
        assert (await heard.get())["message"] == "cannot parse caf?.bin"
        await worker.close()
        await opened.stop()

    asyncio.run(play())
