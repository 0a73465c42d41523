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
