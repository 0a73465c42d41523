"""A conversation with RAS over real sockets: whatever listens there, it ends, and is named."""

import socket
from collections.abc import Iterator

import pytest

from collectors.nccl.ras_client import (
    REPORT_BYTES,
    NobodyListens,
    RasAddress,
    ReportTooLong,
    ask_ras,
    parse_ras_address,
)
from collectors.nccl.ras_report import RasError, RasReport
from eagle_eye.clock import FakeClock
from fakes.nccl_ras import FakeRas, communicator, json_report, member, text_report

JSON = json_report(communicator("0x1", [member(0, {}), member(1, {})]))
TEXT = text_report(["    0         1         1         2         2         2   RUNNING        OK"])


@pytest.fixture
def ras() -> Iterator[FakeRas]:
    made = FakeRas(JSON, text=TEXT)
    yield made
    made.close()


def ask(ras: FakeRas, *, as_json: bool = True, greeting_s: float = 5.0, report_s: float = 5.0, clock: FakeClock | None = None) -> RasReport:
    return ask_ras(RasAddress("127.0.0.1", ras.port), clock or FakeClock(), as_json=as_json, greeting_s=greeting_s, report_s=report_s)


def refused(ras: FakeRas, *, greeting_s: float = 5.0, report_s: float = 5.0, clock: FakeClock | None = None) -> str:
    with pytest.raises(RasError) as error:
        ask(ras, greeting_s=greeting_s, report_s=report_s, clock=clock)
    return str(error.value)


def test_json_is_asked_for_and_read(ras: FakeRas) -> None:
    assert ask(ras).version == "2.29.1"
    assert ras.commands == ["CLIENT PROTOCOL 2", "SET FORMAT JSON", "VERBOSE STATUS"]


def test_an_older_nccl_answers_in_text(ras: FakeRas) -> None:
    ras.report = b""
    assert ask(ras).version == "2.28.9"


def test_text_alone_is_asked_for(ras: FakeRas) -> None:
    assert ask(ras, as_json=False).version == "2.28.9"
    assert ras.commands == ["CLIENT PROTOCOL 2", "VERBOSE STATUS"]


def test_another_version_of_the_protocol_is_tried_all_the_same(ras: FakeRas) -> None:
    ras.greeting = b"SERVER PROTOCOL 3\n"
    assert ask(ras).version == "2.29.1"


def test_a_process_that_is_stopped_is_left_for_another_one(ras: FakeRas) -> None:
    ras.silent = 1
    assert ask(ras, greeting_s=0.05).version == "2.29.1"


def test_fault_a_port_that_never_answers_is_left(ras: FakeRas) -> None:
    ras.silent = 99
    assert "says nothing within 0.01 s, 3 times" in refused(ras, greeting_s=0.01)


def test_fault_nobody_listens(ras: FakeRas) -> None:
    ras.close()
    with pytest.raises(NobodyListens):
        ask(ras)


@pytest.mark.parametrize("greeting", [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 400 Bad Request\r\n", b"x" * 5000, b"\n"], ids=["ssh", "http", "no line", "empty"])
def test_fault_another_program_is_named(ras: FakeRas, greeting: bytes) -> None:
    ras.greeting = greeting
    assert "it is no RAS of NCCL: it answers" in refused(ras)


def test_fault_a_report_that_ends_early(ras: FakeRas) -> None:
    ras.report = JSON[:-40]
    assert "ends early" in refused(ras)


def test_fault_a_report_without_end_ends_at_its_limit(ras: FakeRas) -> None:
    def without_end(connection: socket.socket) -> None:
        while True:
            connection.sendall(b"x" * 65_536)

    ras.instead = without_end
    with pytest.raises(ReportTooLong, match=f"more than {REPORT_BYTES >> 20} MiB"):
        ask(ras)


def test_fault_a_byte_now_and_then_ends_at_the_deadline(ras: FakeRas) -> None:
    clock = FakeClock()

    def slow(connection: socket.socket) -> None:
        while True:
            clock.advance(0.9)
            connection.sendall(b"{")

    ras.instead = slow
    assert refused(ras, report_s=2.0, clock=clock) == "no whole report within 2 s"


def test_fault_a_process_that_ends_meanwhile(ras: FakeRas) -> None:
    ras.instead = lambda connection: connection.sendall(b"")
    assert "ends early" in refused(ras)


@pytest.mark.parametrize("text", ["28028", ":28028", "localhost:", "localhost:0", "localhost:99999", "localhost:x", "localhost:²"])
def test_what_is_no_address_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(ValueError, match="write HOST:PORT"):
        parse_ras_address(text)


def test_an_address_of_ipv6() -> None:
    assert str(parse_ras_address("[::1]:28028")) == "[::1]:28028"
