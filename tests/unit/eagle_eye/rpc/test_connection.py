"""One session, whatever its other end does."""

import asyncio

from eagle_eye.rpc import connection
from eagle_eye.rpc.connection import Connection


class Pipe:
    """What gRPC hands out; full once it has taken so many messages that nobody reads."""

    def __init__(self, room: int) -> None:
        self.room = asyncio.Semaphore(room)

    async def write(self, message: object) -> None:
        await self.room.acquire()


async def nothing_read() -> str:
    await asyncio.Event().wait()
    return ""


def test_who_asks_and_does_not_read_fills_no_memory(monkeypatch):
    monkeypatch.setattr(connection, "WAITING_MOST", 100)
    monkeypatch.setattr(connection, "LAST_WRITE_S", 0.01)

    async def session() -> str:
        opened = Connection(Pipe(0), "the agent on a")
        life = asyncio.create_task(opened.live(nothing_read()))
        await asyncio.sleep(0)
        for number in range(200):
            opened.send(number)
        assert opened.ended
        return await life

    assert asyncio.run(session()) == "the agent on a has not read 100 messages"


def test_twin_who_reads_them_gets_any_number(monkeypatch):
    monkeypatch.setattr(connection, "WAITING_MOST", 100)

    async def session() -> bool:
        opened = Connection(Pipe(1000), "the agent on a")
        life = asyncio.create_task(opened.live(nothing_read()))
        for number in range(1000):
            opened.send(number)
            if number % 50 == 0:
                await asyncio.sleep(0.0)
                while not opened._outbox.empty():
                    await asyncio.sleep(0.0)
        ended = opened.ended
        opened.end("it is over")
        await life
        return ended

    assert not asyncio.run(session())


class SlowPipe:
    """One message is on its way until `sent` is set."""

    def __init__(self) -> None:
        self.begun, self.sent = asyncio.Event(), asyncio.Event()
        self.became = "under way"

    async def write(self, message: object) -> None:
        self.begun.set()
        try:
            await self.sent.wait()
            self.became = f"{message} is sent"
        except asyncio.CancelledError:
            self.became = "cancelled"
            raise


async def ended_while_it_writes(pipe: SlowPipe) -> asyncio.Task[str]:
    opened = Connection(pipe, "the agent on a")
    life = asyncio.create_task(opened.live(nothing_read()))
    opened.send("welcome")
    opened.send("what is behind it")
    await pipe.begun.wait()
    opened.end("it sent what is no message")
    for _ in range(5):
        await asyncio.sleep(0.0)
    return life


def test_a_message_that_is_being_written_at_the_end_is_written_and_none_behind_it():
    """gRPC does not end a call one of whose writes was cancelled, for the other end: it waited until its own time was over."""

    async def session() -> tuple[str, str]:
        pipe = SlowPipe()
        life = await ended_while_it_writes(pipe)
        assert not life.done()
        pipe.sent.set()
        return await life, pipe.became

    assert asyncio.run(session()) == ("it sent what is no message", "welcome is sent")


def test_an_end_does_not_wait_for_who_takes_nothing(monkeypatch):
    monkeypatch.setattr(connection, "LAST_WRITE_S", 0.01)

    async def session() -> tuple[str, str]:
        pipe = SlowPipe()
        return await (await ended_while_it_writes(pipe)), pipe.became

    assert asyncio.run(session()) == ("it sent what is no message", "cancelled")
