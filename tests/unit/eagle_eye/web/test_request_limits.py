"""What a caller that sends half a request, or too many, takes from the others: nothing of /healthz."""

import asyncio
import socket
from contextlib import ExitStack

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from eagle_eye.access import Authorization, Tokens
from eagle_eye.clock import FakeClock
from eagle_eye.web import http_connection
from eagle_eye.web import http_server as web
from eagle_eye.web.health import HealthReport, routes
from eagle_eye.web.http_server import WebServer
from eagle_eye.web.request_limits import HEALTH_REQUESTS, REQUESTS, RequestLimits, read_body

HALF = b"GET /healthz/live HTTP/1.1\r\nHost: server\r\nX-Slow: "
AT_ONCE = 140


async def take_body(request: Request) -> Response:
    await read_body(request, 1000)
    return Response()


@pytest.fixture
def server(tmp_path):
    report = HealthReport(role="all", leads=True, leader="process 1", partitions=(0,))
    doors = [*routes(lambda: report), web.Route(path="/take", answer=take_body, methods=("POST",))]
    server = WebServer("127.0.0.1:0", doors, authorization=Authorization(Tokens(tmp_path / "none.toml", FakeClock()), trust_claims=True))
    server.start()
    yield server
    server.stop()


def half_asked(server: WebServer, open_: ExitStack) -> socket.socket:
    connection = open_.enter_context(socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30))
    connection.sendall(HALF)
    return connection


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def live(server: WebServer) -> int:
    return httpx.get(f"{server.url}/healthz/live", trust_env=False, timeout=30).status_code


def test_health_answers_while_many_heads_are_half_sent(server) -> None:
    with ExitStack() as open_:
        for _ in range(AT_ONCE):
            half_asked(server, open_)
        assert live(server) == 200


def test_beyond_what_may_be_open_who_waits_longest_makes_room(server, monkeypatch) -> None:
    monkeypatch.setattr(http_connection, "CONNECTIONS", 8)
    with ExitStack() as open_:
        first, *_ = [half_asked(server, open_) for _ in range(9)]
        assert is_closed(first)
        assert live(server) == 200


def test_health_answers_while_all_that_may_be_open_send_a_body_that_does_not_end(server, monkeypatch) -> None:
    """None of them waited for its head any more, so that each newcomer was closed, and an orchestrator started a healthy server again."""
    monkeypatch.setattr(http_connection, "CONNECTIONS", 8)
    with ExitStack() as open_:
        for _ in range(24):
            connection = open_.enter_context(socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=30))
            connection.sendall(b"POST /take HTTP/1.1\r\nHost: server\r\nContent-Length: 900\r\n\r\na")
        assert [live(server) for _ in range(5)] == [200] * 5


def test_a_head_that_does_not_end_is_not_waited_for(server, monkeypatch) -> None:
    monkeypatch.setattr(http_connection, "HEADER_S", 0.05)
    with ExitStack() as open_:
        assert is_closed(half_asked(server, open_))


def asked(app: Starlette, paths: list[str], **limits: float) -> list[httpx.Response]:
    """The answers to requests that are sent at once."""

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(RequestLimits(app, **limits)), base_url="http://server") as client:
            return await asyncio.gather(*(client.get(path) for path in paths))

    return asyncio.run(ask())


def app_of(slow: asyncio.Event) -> Starlette:
    """/slow ends only when `slow` is set, which /healthz/live does."""

    async def wait(_request: Request) -> Response:
        await slow.wait()
        return PlainTextResponse("slow")

    async def health(_request: Request) -> Response:
        slow.set()
        return PlainTextResponse("live")

    return Starlette(routes=[Route("/slow", wait), Route("/healthz/live", health)])


def test_health_has_places_of_its_own() -> None:
    slow = asyncio.Event()
    *answers, health = asked(app_of(slow), [*["/slow"] * (REQUESTS + HEALTH_REQUESTS), "/healthz/live"])
    assert health.status_code == 200
    assert {answer.status_code for answer in answers} == {200}, "they wait for their turn"


def test_who_finds_no_place_may_try_again() -> None:
    never = asyncio.Event()
    answers = asked(app_of(never), ["/slow"] * (REQUESTS + 1), wait_s=0.05, answer_s=1.0)
    refused = [answer for answer in answers if answer.status_code == 503]
    assert [answer.headers["retry-after"] for answer in refused] == ["5"]


def test_a_body_that_does_not_end_is_not_waited_for() -> None:
    async def take(request: Request) -> Response:
        return PlainTextResponse(str(await read_body(request, 100)))

    async def ask() -> int:
        limits = RequestLimits(Starlette(routes=[Route("/take", take, methods=["POST"])]), answer_s=0.05)
        sent: list[dict] = []
        parts = iter([{"type": "http.request", "body": b"half", "more_body": True}])

        async def receive() -> dict:
            part = next(parts, None)
            return part if part is not None else await asyncio.Event().wait()

        async def send(message: dict) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/take", "raw_path": b"/take", "query_string": b"", "headers": [], "root_path": ""}
        await limits(scope, receive, send)
        return sent[0]["status"]

    assert asyncio.run(ask()) == 408
