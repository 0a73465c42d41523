"""The page of an exporter over real sockets: whatever an endpoint sends, it ends, and is named."""

import gzip
import socket
from collections.abc import Iterator

import pytest

from collectors.site.exporter_client import PAGE_BYTES, PageError, fetch_page, parse_endpoint
from eagle_eye.clock import FakeClock
from fakes.exporter import FakeExporter, http_page

PAGE = "up 1\n"


@pytest.fixture
def exporter() -> Iterator[FakeExporter]:
    made = FakeExporter()
    yield made
    made.close()


def fetched(exporter: FakeExporter, seconds: float = 5.0, clock: FakeClock | None = None) -> bytes:
    return fetch_page(parse_endpoint(exporter.url), seconds, clock or FakeClock())


def refused(exporter: FakeExporter, seconds: float = 5.0, clock: FakeClock | None = None) -> str:
    with pytest.raises(PageError) as error:
        fetched(exporter, seconds, clock)
    return str(error.value)


def test_a_page_is_read_whole_and_asked_for_uncompressed(exporter: FakeExporter) -> None:
    exporter.answer = http_page(PAGE)
    assert fetched(exporter) == PAGE.encode()
    assert exporter.requests[0].startswith(b"GET /metrics HTTP/1.1\r\n")
    assert b"Accept-Encoding: identity" in exporter.requests[0]


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nup 1\n\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nup 1\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + http_page(PAGE),
    ],
    ids=["chunked", "http 1.0", "continued"],
)
def test_other_ways_to_send_a_page_are_read_too(exporter: FakeExporter, answer: bytes) -> None:
    exporter.answer = answer
    assert fetched(exporter) == PAGE.encode()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (http_page("oops", "500 Internal Server Error"), "HTTP status 500"),
        (http_page("", "302 Found", ("Location: http://127.0.0.1:1/other",)), "redirects to 'http://127.0.0.1:1/other'; name that address"),
        (http_page("<html>", headers=("Content-Type: text/html; charset=utf-8",)), "HTML page"),
        (http_page(gzip.compress(bytes(1 << 20)), headers=("Content-Encoding: gzip",)), "'gzip' unasked"),
        (http_page(PAGE)[:-2], "ended early"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nup", "ended early"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP"),
        (b"", "no HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "more than 8 MiB"),
        (b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n", "no HTTP"),
    ],
    ids=["500", "redirect", "html", "gzip bomb", "torn", "torn chunk", "another protocol", "nothing", "announced as huge", "too many headers"],
)
def test_fault_what_is_no_page_is_named(exporter: FakeExporter, answer: bytes, reason: str) -> None:
    exporter.answer = answer
    assert reason in refused(exporter)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"], ids=["plain", "chunked"])
def test_fault_a_page_without_end_ends_at_its_limit(exporter: FakeExporter, head: bytes) -> None:
    sent = 0

    def without_end(connection: socket.socket) -> None:
        nonlocal sent
        connection.sendall(head)
        while True:
            connection.sendall(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
            sent += 65_536

    exporter.answer = without_end
    assert "more than 8 MiB" in refused(exporter)
    exporter.close()
    assert sent < 3 * PAGE_BYTES, "beyond the limit are the buffers of the kernel alone"


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["status", "header", "body"])
def test_fault_a_byte_now_and_then_ends_at_the_deadline(exporter: FakeExporter, head: bytes) -> None:
    """Each byte comes in time, and all together do not."""
    clock = FakeClock()

    def slow(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            clock.advance(0.9)
            connection.sendall(b"1")

    exporter.answer = slow
    assert refused(exporter, 2.0, clock) == "no whole page within 2 s"


def test_fault_an_endpoint_that_never_answers_is_left_at_the_deadline(exporter: FakeExporter) -> None:
    exporter.answer = lambda connection: connection.recv(1) and None  # until the client closes
    assert refused(exporter, 0.02) == "no whole page within 0.02 s"


def test_fault_nobody_listens(exporter: FakeExporter) -> None:
    exporter.close()
    assert "Connection refused; check that it runs" in refused(exporter)


def test_fault_https_of_a_server_without_it(exporter: FakeExporter) -> None:
    exporter.answer = http_page(PAGE)
    with pytest.raises(PageError, match="cannot be reached"):
        fetch_page(parse_endpoint(exporter.url.replace("http:", "https:")), 5.0, FakeClock())


@pytest.mark.parametrize(
    "url", ["127.0.0.1:9400", "file:///etc/passwd", "http://", "http://h:99999/", "http://a:b@h/metrics", "http://h/a b", "http://h/\r\nX: y", "http://h/ä"]
)
def test_what_is_no_address_of_a_page_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        parse_endpoint(url)
    assert "a:b" not in str(error.value)


def test_an_address_without_path_means_metrics() -> None:
    assert parse_endpoint("http://[::1]:9100").path == "/metrics"
    assert parse_endpoint("https://h/federate?match=a").path == "/federate?match=a"
