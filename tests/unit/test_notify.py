"""Letters reach a real HTTP server: signed, again after a failure, and never twice after they were taken."""

import hashlib
import hmac
import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import msgspec
import pytest

from eagle_eye.clock import FakeClock
from eagle_eye.errors import ConfigError
from eagle_eye.ledger import Ledger
from eagle_eye.types import IncidentState, Plan, Severity
from remediation.actions.notify import Notify
from remediation.outbox import ATTEMPTS, SECRET_VARIABLE, Outbox, secret_of, wait_before
from remediation.synthetic import SyntheticJob, incident

SECRET = b"a secret of the operator"


class Receiver(BaseHTTPRequestHandler):
    """Checks the signature, then answers with the next status of the list."""

    statuses: list[int]
    letters: list[dict]

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        parts = dict(part.split("=") for part in self.headers["X-Eagle-Eye-Signature"].split(","))
        right = hmac.new(SECRET, f"{parts['t']}.".encode() + body, hashlib.sha256).hexdigest()
        status = 401 if not hmac.compare_digest(right, parts["v1"]) else self.statuses.pop(0)
        if status == 204:
            self.letters.append(msgspec.json.decode(body) | {"letter": self.headers["X-Eagle-Eye-Letter"]})
        self.send_response(status)
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def receiver():
    handler = type("Handler", (Receiver,), {"statuses": [], "letters": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield handler, f"http://127.0.0.1:{server.server_port}/hook"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def ledger(empty_ledger, tmp_path):
    opened = Ledger.open(shutil.copy(empty_ledger, tmp_path / "ledger.sqlite"))
    yield opened
    opened.close()


@pytest.fixture
def clock():
    return FakeClock()


def write(ledger, clock, url, reason="the plan waits for a person"):
    job = SyntheticJob(clock=clock)
    ledger.save_incident(incident(job, "slow node"), IncidentState.OPEN)
    plan = Plan(
        id="p1", incident="i1", action="notify", targets=(), made=clock.now(), expires=clock.now(), severity=Severity.SEV1,
        own=True, reason=reason,
    )
    notify = Notify(ledger=ledger, clock=clock, url=url, link="https://eye.example/incidents/{incident}")
    return list(notify.run(plan))


def outbox(ledger, clock, url, secret=SECRET, **more):
    return Outbox(box=ledger, url=url, secret=secret, clock=clock, **more)


def test_a_letter_is_signed_fails_twice_and_is_taken_the_third_time(receiver, ledger, clock):
    handler, url = receiver
    handler.statuses[:] = [503, 429, 204]
    assert [step.state for step in write(ledger, clock, url)] == ["intended", "done"]
    box = outbox(ledger, clock, url)
    with httpx.Client() as client:
        taken = []
        for seconds in (0.0, 0.5, 0.6, 1.0, 1.1, 100.0):
            clock.advance(seconds)
            taken.append(box.deliver(client))
    assert taken == [0, 0, 0, 0, 1, 0]
    [letter] = handler.letters
    assert letter["news"] == "the plan waits for a person"
    assert letter["cause"] == "slow node"
    assert letter["link"] == "https://eye.example/incidents/i1"
    assert "evidence" not in letter


def test_the_thread_delivers_by_itself(receiver, ledger, clock):
    handler, url = receiver
    handler.statuses[:] = [204]
    write(ledger, clock, url)
    box = outbox(ledger, clock, url)
    box.start()
    try:
        deadline = threading.Event()
        for _ in range(300):
            if handler.letters or deadline.wait(0.01):
                break
    finally:
        box.stop()
    assert len(handler.letters) == 1


def test_a_wrong_secret_is_refused_and_not_tried_for_ever(receiver, ledger, clock):
    handler, url = receiver
    write(ledger, clock, url)
    with httpx.Client() as client:
        outbox(ledger, clock, url, secret=b"another").deliver(client)
        clock.advance(10**6)
        assert ledger.due(clock.now()) == ()
    assert handler.letters == []


def test_a_receiver_that_never_answers_is_given_up(ledger, clock):
    tries = []

    def refuse(request):
        tries.append(request)
        raise httpx.ConnectError("connection refused")

    write(ledger, clock, "http://127.0.0.1:9/")
    box = outbox(ledger, clock, "http://127.0.0.1:9/")
    with httpx.Client(transport=httpx.MockTransport(refuse)) as client:
        for _ in range(3 * ATTEMPTS):
            box.deliver(client)
            clock.advance(1000)
    assert len(tries) == ATTEMPTS
    assert [wait_before(attempt) for attempt in (1, 2, 3, 20)] == [1, 2, 4, 900]


def test_without_a_url_nothing_is_written(ledger, clock):
    assert write(ledger, clock, "") == []
    assert ledger.due(clock.now()) == ()


def test_the_secret_comes_from_a_file_or_the_environment_and_is_never_shown(tmp_path):
    file = tmp_path / "secret"
    file.write_bytes(b"abc\n")
    assert secret_of(str(file)) == b"abc"
    assert secret_of("", {SECRET_VARIABLE: "xyz"}) == b"xyz"
    with pytest.raises(ConfigError, match="no secret"):
        secret_of("", {})
    with pytest.raises(ConfigError, match="missing"):
        secret_of(str(tmp_path / "missing"))


def test_an_address_that_is_none_is_refused(ledger, clock):
    with pytest.raises(ConfigError, match="https://"):
        outbox(ledger, clock, "file:///etc/passwd")
