"""The HTTP port over a loopback socket: mutated request heads and bodies to every route, the approval page and the webhook among them."""

import logging
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote_from_bytes

from prometheus_client import CollectorRegistry, generate_latest

from eagle_eye.access import Authorization, Tokens
from eagle_eye.config import HooksConfig
from eagle_eye.web import alertmanager_hook, approval_page, health
from eagle_eye.web.health import HealthReport
from eagle_eye.web.http_server import WebServer, incident_redirect, metrics_route
from remediation.operators.approval_requests import ApprovalLinks

from .detection import Logged
from .held_plan import HeldPlan
from .mutation import Mutation
from .target import Fault, Tally, Target

ANSWER_S = 5.0
ALIVE = 500
"""Requests after which the port is asked whether it is alive."""
METHODS = (b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"DELETE", b"TRACE", b"CONNECT", b"get", b"G\0T", b"", b"GET\t", b"X" * 300)
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/9.9", b"HTTP/0.9", b"http/1.1", b"", b"HTTP/1.1 x")
VALUES = (
    b"", b"\xff\xfe", b"\xc3\x28", b"-1", b"0", b"99999999999999999999", b"1e9", b"chunked", b"http://[::1", b"http://[", b"null", b"a" * 9000, b"\x00", b"gzip", b"Bearer " + b"x" * 4000,
    b"Basic \xff", b"bytes=0-", b"cross-site", b"100-continue", b"127.0.0.1, ::1", b"for=\"[::1\"", b"\t", b"close, keep-alive", b"h2c",
)  # fmt: skip
NAMES = (
    b"Host", b"Content-Length", b"Transfer-Encoding", b"Authorization", b"Origin", b"Sec-Fetch-Site", b"X-Forwarded-For", b"Forwarded", b"Accept", b"Expect", b"Connection", b"Upgrade",
    b"Cookie", b"Content-Type", b"Range", b"X\xff", b"", b" Host", b"Content Length",
)  # fmt: skip
FRAMES = (b"Content-Length", b"Transfer-Encoding", b"Expect", b"Connection", b"Upgrade", b"", b"Content Length")
"""What says where a request ends."""
WEBHOOK: dict[str, Any] = {
    "version": "4", "groupKey": "g", "status": "firing", "truncatedAlerts": 0, "receiver": "r",
    "alerts": [{
        "status": "firing", "labels": {"alertname": "Hot", "node": "node-a", "severity": "page"}, "annotations": {"summary": "it is hot"},
        "startsAt": "2025-11-20T08:00:00Z", "endsAt": "0001-01-01T00:00:00Z", "fingerprint": "f1",
    }],
}  # fmt: skip
TIMES = ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2025-11-20T08:00:60Z", "x", "")


class Port:
    """The routes of a leader, as its process serves them."""

    def __init__(self, folder: Path, logged: Logged) -> None:
        self._held, self._logged = HeldPlan(folder), logged
        clock, held = self._held.clock, self._held
        authorization = Authorization(Tokens(folder / "none.toml", clock), trust_claims=True)
        hook = alertmanager_hook.AlertmanagerHook(HooksConfig(), layouts=lambda: [held.layout], write=lambda _: None, incarnation="i")
        registry = CollectorRegistry()
        routes = [
            *health.routes(lambda: HealthReport(role="all", leads=True, leader="process 1", term=1, partitions=(0,), tick_age_s=0.5)),
            metrics_route(lambda _accept: (generate_latest(registry), "text/plain")),
            alertmanager_hook.route(hook, max_bytes=1 << 16, token="hook-key"),
            approval_page.route(lambda: approval_page.LeaderAccess(engine=held.engine, ledger=held.ledger), authorization, clock),
            incident_redirect("http://127.0.0.1:8501"),
        ]
        self._server = WebServer("127.0.0.1:0", routes, authorization=authorization)
        self._server.start()
        self._port = int(self._server.url.rpartition(":")[2])
        assert held.plan is not None
        self._link = ApprovalLinks(held.ledger, clock, "http://x").link(held.plan).removeprefix("http://x").encode()
        self._taken = self._refused = 0

    def take(self, random: Random) -> None:
        self._taken += 1
        status = self._sent(*self._request(Mutation(random)))
        self._refused += 400 <= status < 500
        if status >= 500 or self._logged.faults:
            faults, self._logged.faults = self._logged.faults, []
            raise Fault(f"answered {status}; {' '.join(faults)}")
        if self._taken % ALIVE == 0:
            began = time.perf_counter()
            if self._sent(b"GET /healthz/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", whole=True) != 200 or time.perf_counter() - began > 1.0:
                raise Fault("/healthz/live did not answer within a second")

    def tally(self) -> Tally:
        return Tally(self._refused, self._refused)  # the answer says what was wrong

    def close(self) -> None:
        self._server.stop()
        self._held.close()

    # --- requests ------------------------------------------------------------------------------------------------

    def _request(self, mutation: Mutation) -> tuple[bytes, bool]:
        """(its bytes, whether it is whole: then it is answered)."""
        random = mutation.random
        whole = True
        method, path, headers, body = random.choice((self._get, self._hook, self._form, self._form))(mutation)
        if random.random() < 0.15:
            method = random.choice(METHODS)
        if random.random() < 0.2:
            path = mutation.data(path) if random.random() < 0.5 else path + b"/" + quote_from_bytes(mutation.text().encode("utf-8", "replace")[:3000]).encode()
        head = [b"Host: 127.0.0.1", b"Connection: close", *headers]
        for _ in range(random.choice((0, 0, 1, 1, 3, 200))):
            name, value = random.choice(NAMES), random.choice(VALUES)
            whole = whole and name not in FRAMES
            head.insert(random.randrange(len(head) + 1), name + b": " + value)
        if not any(line.lower().startswith((b"content-length", b"transfer-encoding")) for line in head) and body:
            odd = random.random() < 0.1
            head.append(b"Content-Length: " + (random.choice((b"0", b"-1", b"1" * 30, str(len(body) + 7).encode())) if odd else str(len(body)).encode()))
            whole = whole and not odd
        if random.random() < 0.05:
            body = b"".join(b"%x\r\n%b\r\n" % (random.choice((len(body), 0, 2**31)), body) for _ in range(2)) + b"0\r\n\r\n"
            head.append(b"Transfer-Encoding: chunked")
            whole = False
        request = b" ".join((method, path, random.choice(VERSIONS) if random.random() < 0.1 else b"HTTP/1.1")) + b"\r\n" + b"\r\n".join(head) + b"\r\n\r\n" + body
        what = random.random()
        if what < 0.1:
            return mutation.data(request), False
        if what < 0.15:
            return request[: random.randrange(len(request) + 1)], False
        return request, whole and method in METHODS[:6]

    @staticmethod
    def _get(mutation: Mutation) -> tuple[bytes, bytes, list[bytes], bytes]:
        path = mutation.random.choice((b"/healthz", b"/healthz/ready", b"/healthz/live", b"/metrics", b"/incidents/i1", b"/", b"//", b"/approve/x", b"/%ff%fe", b"/incidents/%00%ff", b"*", b"http://[::1/x"))
        return b"GET", path, [], b""

    @staticmethod
    def _hook(mutation: Mutation) -> tuple[bytes, bytes, list[bytes], bytes]:
        tree = WEBHOOK
        if mutation.random.random() < 0.3:
            [alert] = tree["alerts"]
            tree = {**tree, "alerts": [{**alert, mutation.random.choice(("startsAt", "endsAt")): mutation.random.choice(TIMES), "status": mutation.random.choice(("firing", "resolved"))}]}
        return b"POST", b"/hooks/alertmanager", [b"Content-Type: application/json", b"Authorization: Bearer hook-key"], mutation.encoded(tree, "json")

    def _form(self, mutation: Mutation) -> tuple[bytes, bytes, list[bytes], bytes]:
        random = mutation.random
        link = self._link if random.random() < 0.8 else mutation.data(self._link)
        fields = {b"digest": b"no digest of this plan", b"decision": b"approve", b"name": b"ada", b"token": b""}
        name = random.choice(list(fields))
        fields[name] = random.choice((b"", b"%ff", b"%00", quote_from_bytes(mutation.text().encode("utf-8", "replace")).encode(), b"a&" * 500))
        body = b"&".join(key + b"=" + value for key, value in fields.items())
        method = b"POST" if random.random() < 0.7 else b"GET"
        return method, link, [b"Content-Type: application/x-www-form-urlencoded"], body if method == b"POST" else b""

    def _sent(self, request: bytes, whole: bool) -> int:
        """The status of the answer; 0 for none: the connection was closed."""
        with socket.create_connection(("127.0.0.1", self._port), ANSWER_S) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it leaves no port behind
            try:
                connection.sendall(request)
                if not whole:
                    connection.shutdown(socket.SHUT_WR)
                answer = connection.recv(64)
            except TimeoutError:
                raise Fault(f"no answer within {ANSWER_S:g} s") from None
            except OSError:
                return 0
        words = answer.split(b" ", 2)
        return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


@contextmanager
def port(folder: Path) -> Iterator[Port]:
    """On a free port of loopback."""
    logged = Logged()
    logging.getLogger().addHandler(logged)
    subject = Port(folder, logged)
    try:
        yield subject
    finally:
        subject.close()
        logging.getLogger().removeHandler(logged)


TARGET = Target("http", "requests to every route of the HTTP port, over a socket", port)
