"""The HTTP port: who may listen, who may ask, and what it says."""

import socket
import time

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from eagle_eye.access import Authorization, Role, Tokens
from eagle_eye.access.addresses import is_loopback
from eagle_eye.access.tokens import add_person
from eagle_eye.clock import FakeClock
from eagle_eye.errors import ConfigError
from eagle_eye.web import health
from eagle_eye.web.health import HealthReport
from eagle_eye.web.http_server import Route, WebServer, incident_redirect, metrics_route
from fakes.no_descriptors import no_descriptors
from fakes.other_user import as_other_user, needs_root
from fakes.web_request import Asking

HEALTHY = HealthReport(role="all", leads=True, leader="process 1", term=3, partitions=(0,), tick_age_s=0.5)


async def show_caller(request: Request) -> Response:
    person = request.state.person
    return PlainTextResponse(person.name if person else "nobody")


ROUTES = (
    Route(path="/look", answer=show_caller),
    Route(path="/push", answer=show_caller, methods=("POST",), role=Role.OPERATOR, own_token=lambda token: token == "hook-key"),
    Route(path="/open", answer=show_caller, role=None),
)


@pytest.fixture
def tokens(tmp_path):
    """(authorization, token of a viewer, token of an operator)"""
    clock = FakeClock()
    path = tmp_path / "tokens.toml"
    shown = [add_person(path, name, role, now=clock.now()) for name, role in (("vera", Role.VIEWER), ("otto", Role.OPERATOR))]
    return Authorization(Tokens(path, clock), trust_claims=True), *shown


@pytest.fixture
def no_tokens(tmp_path) -> Authorization:
    return Authorization(Tokens(tmp_path / "none.toml", FakeClock()), trust_claims=True)


def client_of(*doors: Route, authorization: Authorization, address: str = "127.0.0.1:0") -> Asking:
    """Asks the port without opening it."""
    return Asking(WebServer(address, doors, authorization=authorization).app)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_connections_that_cannot_be_accepted_fill_no_log(no_tokens, caplog) -> None:
    """A server without a descriptor left wrote 25 MB of tracebacks in half a minute."""

    def told() -> int:
        return sum("out of system resource" in record.getMessage() for record in caplog.records)

    port = WebServer("127.0.0.1:0", ROUTES, authorization=no_tokens)
    port.start()
    try:
        assert httpx.get(f"{port.url}/open").status_code == 200
        place = port.url.removeprefix("http://127.0.0.1:")
        with socket.socket() as client:
            with no_descriptors():
                client.connect(("127.0.0.1", int(place)))
                while not told():
                    time.sleep(0.001)
            client.sendall(b"GET /open HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200"), "twin: it is answered once there is room"
    finally:
        port.stop()
    assert told() == 1


def test_on_loopback_without_tokens_everything_is_open(no_tokens) -> None:
    client = client_of(*ROUTES, authorization=no_tokens)
    assert [client.get("/look").status_code, client.post("/push").status_code, client.get("/open").status_code] == [200, 200, 200]


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "Via"])
def test_behind_a_proxy_of_the_same_machine_nothing_is_open(no_tokens, tokens, header) -> None:
    """The proxy's own address is on loopback, the browser's is not."""
    client = client_of(*ROUTES, authorization=no_tokens)
    assert [client.get("/look", headers={header: "x"}).status_code, client.post("/push", headers={header: "x"}).status_code] == [401, 401]
    assert "through a proxy" in client.post("/push", headers={header: "x"}).json()["error"]
    assert client.post("/push", headers={header: "x"} | bearer("hook-key")).status_code == 200, "the route's own token names its sender"
    authorization, viewer, operator = tokens
    client = client_of(*ROUTES, authorization=authorization)
    assert client.get("/look", headers={header: "x"}).status_code == 401
    assert client.get("/look", headers={header: "x"} | bearer(viewer)).text == "vera"
    assert client.post("/push", headers={header: "127.0.0.1"} | bearer(operator)).text == "otto"


@needs_root
def test_another_local_user_may_look_and_not_push_without_tokens(no_tokens) -> None:
    server = WebServer("127.0.0.1:0", ROUTES, authorization=no_tokens)
    server.start()
    try:
        assert httpx.post(f"{server.url}/push").status_code == 200, "twin: who runs the server"
        code = "print(httpx.get(sys.argv[1] + '/look').status_code, httpx.post(sys.argv[1] + '/push').json())"
        told = as_other_user("import httpx; httpx.get(sys.argv[1] + '/open')", code, server.url)
        assert told.stdout.startswith("200 "), told.stderr
        assert "asked by the user nobody" in told.stdout
    finally:
        server.stop()


def test_on_loopback_with_tokens_looking_is_open_and_pushing_needs_an_operator(tokens) -> None:
    authorization, viewer, operator = tokens
    client = client_of(*ROUTES, authorization=authorization)
    assert client.get("/look").status_code == 200
    assert client.post("/push").status_code == 401
    assert client.post("/push", headers=bearer(viewer)).status_code == 403
    assert client.post("/push", headers=bearer(operator)).text == "otto"


def test_beyond_loopback_looking_needs_a_viewer(tokens) -> None:
    authorization, viewer, operator = tokens
    client = client_of(*ROUTES, authorization=authorization, address="0.0.0.0:0")
    refused = client.get("/look")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert "eagle-eye token add" in refused.json()["error"]
    assert client.get("/look", headers=bearer("eet_wrong")).status_code == 401
    assert client.get("/look", headers={"Authorization": f"Basic {viewer}"}).status_code == 401
    assert [client.get("/look", headers=bearer(token)).text for token in (viewer, operator)] == ["vera", "otto"]
    assert client.get("/open").status_code == 200


def test_a_hooks_own_key_opens_that_door_and_no_other(tokens) -> None:
    authorization, _, _ = tokens
    client = client_of(*ROUTES, authorization=authorization, address="0.0.0.0:0")
    assert client.post("/push", headers=bearer("hook-key")).status_code == 200
    assert client.post("/push", headers=bearer("hook-kex")).status_code == 401
    assert client.get("/look", headers=bearer("hook-key")).status_code == 401


def test_beyond_loopback_without_tokens_it_refuses_to_listen(no_tokens) -> None:
    with pytest.raises(ConfigError, match=r"beyond loopback.*eagle-eye token add.*server\.insecure"):
        WebServer("0.0.0.0:0", ROUTES, authorization=no_tokens).start()


def test_an_address_in_use_is_named_with_what_to_do(no_tokens) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: address already in use\. Stop the server that runs there, or name a free address"):
            WebServer(f"127.0.0.1:{port}", ROUTES, authorization=no_tokens).start()


def test_an_address_that_cannot_be_listened_on_is_a_clear_error(no_tokens) -> None:
    with pytest.raises(ConfigError, match=r"server\.http cannot listen on 192\.0\.2\.1:7468"):
        WebServer("192.0.2.1:7468", ROUTES, authorization=no_tokens, insecure=True).start()
    with pytest.raises(ConfigError, match="the highest port is 65535"):
        WebServer("127.0.0.1:99999", ROUTES, authorization=no_tokens)


def test_after_stop_nobody_listens_and_it_may_start_again(no_tokens) -> None:
    server = WebServer("127.0.0.1:0", ROUTES, authorization=no_tokens)
    for _ in range(2):
        server.start()
        assert httpx.get(f"{server.url}/open", trust_env=False).status_code == 200
        server.stop()
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/open", trust_env=False)


def test_wrong_methods_and_paths_are_refused(no_tokens) -> None:
    client = client_of(*ROUTES, authorization=no_tokens)
    assert client.get("/push").status_code == 405
    assert client.get("/nothing").status_code == 404


@pytest.mark.parametrize(("host", "near"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("10.1.2.3", False), ("node-a", False)])
def test_only_this_machine_is_loopback(host, near) -> None:
    assert is_loopback(f"{host}:7468") is near


def test_metrics_come_in_the_format_that_is_asked_for(no_tokens) -> None:
    client = client_of(metrics_route(lambda accept: (accept.encode(), "text/x-test")), authorization=no_tokens)
    shown = client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
    assert (shown.text, shown.headers["content-type"]) == ("application/openmetrics-text", "text/x-test")


# --- health ----------------------------------------------------------------------------------------------------------


def looks(report: HealthReport, authorization: Authorization) -> tuple[int, int, int, dict]:
    client = client_of(*health.routes(lambda: report), authorization=authorization)
    whole = client.get("/healthz")
    return whole.status_code, client.get("/healthz/ready").status_code, client.get("/healthz/live").status_code, whole.json()


def test_a_process_that_does_its_work_is_live_and_ready(no_tokens) -> None:
    *codes, body = looks(HEALTHY, no_tokens)
    assert codes == [200, 200, 200]
    assert body["status"] == "ok"
    assert {"role": "all", "leads": True, "term": 3, "partitions": [0], "tick_age_s": 0.5}.items() <= body.items()


def test_a_standby_is_ready_as_long_as_somebody_leads(no_tokens) -> None:
    assert looks(HealthReport(role="lead", leader="process 9 on b (term 4)", term=4), no_tokens)[0] == 200
    *codes, body = looks(HealthReport(role="lead"), no_tokens)
    assert codes == [503, 503, 200]
    assert body["problems"] == ["no leader"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"stream": "it does not answer"}, "stream: it does not answer"),
        ({"ledger": "the disk is full"}, "ledger: the disk is full"),
        ({"tick_age_s": 42.0}, "no detection for 42 s"),
    ],
)
def test_what_a_restart_would_not_mend_makes_it_unready_not_dead(changes, problem, no_tokens) -> None:
    fields = {"role": "all", "leads": True, "leader": "process 1", "partitions": (0,), "tick_age_s": 0.5}
    *codes, body = looks(HealthReport(**(fields | changes)), no_tokens)
    assert codes == [503, 503, 200]
    assert body["problems"] == [problem]


def test_a_process_whose_loop_stands_still_is_dead(no_tokens) -> None:
    *codes, body = looks(HealthReport(role="detect", heartbeat_age_s=31.0), no_tokens)
    assert codes == [503, 503, 503]
    assert body["status"] == "failing"


def test_the_link_of_an_alert_leads_to_the_dashboard(no_tokens) -> None:
    client = client_of(incident_redirect("http://board:8501/"), authorization=no_tokens)
    answer = client.get("/incidents/4f1c9a02", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (302, "http://board:8501/incident?incident=4f1c9a02")
    assert client.get("/incidents/%3Fa%26b", follow_redirects=False).headers["location"].endswith("incident=%3Fa%26b")
