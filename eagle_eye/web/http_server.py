"""The one HTTP port: a list of routes, each with the role that it asks for.

    routes = [*health.routes(report), metrics_door(metrics.scrape), *hooks.routes(...)]
    server = WebServer("127.0.0.1:7468", routes, authorization=authorization)
    server.start(); ...; server.stop()

On loopback a route for viewers is open; without tokens the others obey the user that the server runs as, and root. Beyond loopback,
where tokens are configured, every route asks for one (`Authorization: Bearer …`); without tokens the port does not open there, unless
the configuration allows it. A request that came through a proxy is from beyond loopback, wherever the proxy runs.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route as StarletteRoute

from eagle_eye.access import Caller, Person, Role
from eagle_eye.access.addresses import is_loopback
from eagle_eye.access.caller import local_caller, speaks_for_itself, this_process
from eagle_eye.errors import AccessDenied, ConfigError, NotAuthenticated
from eagle_eye.open_file_limit import tell_no_room_seldom
from eagle_eye.ports import HIGHEST_PORT

from .http_connection import CONNECTIONS, HttpConnection
from .request_limits import RequestLimits

log = logging.getLogger(__name__)

JOIN_S = 5.0
KEEP_ALIVE_S = 5
RouteHandler = Callable[[Request], Awaitable[Response]]


class _Server(uvicorn.Server):
    """As uvicorn has it; connections that cannot be accepted, since no descriptor is left, are told seldom."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        tell_no_room_seldom(asyncio.get_running_loop())
        await super().serve(sockets)


class Authorizer(Protocol):
    """Who asks, and may they: access.Gate."""

    @property
    def asks_for_tokens(self) -> bool: ...
    def admit(self, needed: Role, what: str, *, token: str = "", claimed: str = "", caller: Caller | None = None) -> Person: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path of the port."""

    path: str
    answer: RouteHandler
    """Finds the `Person` who asks, or None, in `request.state.person`."""
    methods: tuple[str, ...] = ("GET",)
    role: Role | None = Role.VIEWER
    """The least role that the caller must have; None: the route checks for itself."""
    own_token: Callable[[str], bool] | None = None
    """Whether a token is the route's own: it opens this route and no other."""


class WebServer:
    """Listens in a thread of its own."""

    def __init__(self, address: str, routes: Sequence[Route], *, authorization: Authorizer, insecure: bool = False) -> None:
        """`address`: host:port, port 0 = any free one. `insecure`: listen beyond loopback without tokens. Raises ConfigError."""
        self._host, _, port = address.rpartition(":")
        self._host = self._host.strip("[]")
        self._port = int(port)
        if self._port > HIGHEST_PORT:
            raise ConfigError(f"server.http is {address}: the highest port is {HIGHEST_PORT}")
        self._authorization = authorization
        self._insecure = insecure
        self._near = is_loopback(address)
        self.app = Starlette(routes=[self._route(route) for route in routes])
        """What answers; for tests also without a port."""
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen. Raises ConfigError where the address is in use, is not ours, or must not be open."""
        if not (self._near or self._authorization.asks_for_tokens or self._insecure):
            raise ConfigError(
                f"server.http is {self._host}:{self._port}, beyond loopback, and no tokens are configured: make one with "
                "`eagle-eye token add NAME`, listen on 127.0.0.1, or set server.insecure = true on a network that you trust wholly"
            )
        listening = self._listen()
        self._port = listening.getsockname()[1]
        config = uvicorn.Config(
            RequestLimits(self.app), loop="asyncio", http=HttpConnection, ws="none", log_config=None, access_log=False, lifespan="off",
            server_header=False, proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=2,
        )  # fmt: skip
        self._server = _Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listening]}, name="http", daemon=True)
        self._thread.start()
        log.info("HTTP on %s", self.url)

    def stop(self) -> None:
        """Close the port; requests under way have two seconds to end."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(JOIN_S)
            self._server = self._thread = None

    @property
    def url(self) -> str:
        """http://host:port, with the real port once it has started."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            listening = socket.create_server((self._host, self._port), family=family, backlog=CONNECTIONS)
        except OSError as error:
            raise ConfigError(
                f"server.http cannot listen on {self._host}:{self._port}: {(os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)).lower()}. "
                "Stop the server that runs there, or name a free address of this machine with --http ('' for no HTTP port)"
            ) from error
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # what it accepts has it, too: else an answer's body waits 40 ms for the acknowledgement of its head
        return listening

    def _route(self, route: Route) -> StarletteRoute:
        async def enter(request: Request) -> Response:
            try:
                request.state.person = await run_in_threadpool(self._admit, route, request)
            except NotAuthenticated as error:
                return JSONResponse({"error": str(error)}, 401, {"WWW-Authenticate": "Bearer"})
            except AccessDenied as error:
                return JSONResponse({"error": str(error)}, 403)
            try:
                return await route.answer(request)
            except ClientDisconnect:
                return Response(status_code=400)  # nobody reads it

        return StarletteRoute(route.path, enter, methods=list(route.methods))

    def _admit(self, route: Route, request: Request) -> Person | None:
        """Who it is; None where the route needs no authentication. Raises NotAuthenticated or AccessDenied."""
        token = _token_of(request)
        if route.role is None or (route.own_token is not None and token and route.own_token(token)):
            return None
        if self._near and route.role is Role.VIEWER and is_local(request):
            return None
        caller = caller_of(request)
        if not self._authorization.asks_for_tokens and (self._insecure or caller.owns_server):
            return None
        return self._authorization.admit(route.role, route.path, token=token, caller=caller)


def is_local(request: Request) -> bool:
    """Whether it came from this machine, and through no proxy."""
    return request.client is None or speaks_for_itself(request.client.host, request.headers)


def caller_of(request: Request) -> Caller:
    """What the request's connection proves."""
    _, port = request.scope.get("server") or ("", None)
    if not is_local(request):
        return Caller()
    if request.client is None or port is None:  # it came over no connection
        return this_process()
    return local_caller(request.client.host, request.client.port, port)


def _token_of(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def metrics_route(scrape: Callable[[str], tuple[bytes, str]]) -> Route:
    """/metrics; `scrape` turns an Accept header into (body, content type)."""

    async def answer(request: Request) -> Response:
        body, content_type = await run_in_threadpool(scrape, request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    return Route(path="/metrics", answer=answer)


def incident_redirect(dashboard_url: str) -> Route:
    """GET /incidents/{id}: where links in alerts lead; it hands a browser on to the incident's page in the dashboard.

    It shows nothing of the incident itself: the dashboard checks who asks.
    """

    async def answer(request: Request) -> Response:
        incident = quote(request.path_params["incident"], safe="")
        return RedirectResponse(f"{dashboard_url.rstrip('/')}/incident?incident={incident}", status_code=302)

    return Route(path="/incidents/{incident}", answer=answer, role=None)
