"""No socket of kafka-python waits for the garbage collector, whatever failed."""

import gc
import socket
import warnings
from collections.abc import Callable, Iterator

import pytest

kafka = pytest.importorskip("kafka")
from kafka.errors import KafkaError  # noqa: E402
from kafka.net.inet import create_connection  # noqa: E402
from kafka.net.selector import NetworkSelector  # noqa: E402

from eagle_eye.clock import SystemClock  # noqa: E402
from eagle_eye.errors import StreamError  # noqa: E402
from eagle_eye.stream.kafka_connection import KafkaConnection  # noqa: E402
from eagle_eye.stream.kafka_producer import OutgoingRecord, Producer  # noqa: E402
from eagle_eye.stream.kafka_sockets import PROXY_URL, DirectSocket, NetworkClients, OwnedSockets  # noqa: E402


@pytest.fixture
def refusing() -> Iterator[int]:
    """A port where nobody listens, for as long as the test runs."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """Every socket that kafka-python made, held so that the collector cannot close it."""
    sockets: list[socket.socket] = []
    original = DirectSocket.socket
    monkeypatch.setattr(DirectSocket, "socket", lambda self, *arguments: sockets.append(original(self, *arguments)) or sockets[-1])
    return sockets


def options(port: int) -> dict[str, object]:
    return {"bootstrap_servers": [f"127.0.0.1:{port}"], "security_protocol": "PLAINTEXT", "request_timeout_ms": 200, "socket_connection_setup_timeout_ms": 200}


def append(port: int) -> None:
    producer = Producer(options(port), f"127.0.0.1:{port}", compression="none", timeout_s=0.3, largest=1 << 20, clock=SystemClock())
    producer.append([OutgoingRecord("t", 0, "k", b"v")])


def connect(port: int) -> None:
    KafkaConnection(options(port), f"127.0.0.1:{port}", 0.3)


def test_the_socket_of_a_refused_attempt_is_closed_at_once(refusing: int, made: list[socket.socket]) -> None:
    loop = NetworkSelector(client_id="test")
    try:
        with pytest.raises(KafkaError):
            loop.run(create_connection(loop, "127.0.0.1", refusing, proxy_url=PROXY_URL))
    finally:
        loop.close()
    assert made
    assert all(each.fileno() == -1 for each in made)


def test_a_socket_that_its_attempt_has_handed_to_nobody_is_closed_with_the_connection() -> None:
    owned = OwnedSockets()
    attempt = DirectSocket(owned.proxy_url)
    other = DirectSocket(PROXY_URL).socket()
    left, closed = attempt.socket(), attempt.socket()
    closed.close()
    owned.close()
    assert (left.fileno(), other.fileno() >= 0) == (-1, True)
    other.close()


def test_the_socket_that_an_attempt_of_a_producer_has_handed_to_nobody_is_closed_with_its_client() -> None:
    clients = NetworkClients()
    client = clients(client_id="test", bootstrap_servers="127.0.0.1:1")
    left = DirectSocket(client.sockets.proxy_url).socket()
    client.close()
    assert left.fileno() == -1


@pytest.mark.parametrize("attempt", [connect, append])
@pytest.mark.parametrize("port", ["refusing", "silent"])
def test_a_client_that_cannot_connect_leaves_nothing_open(
    attempt: Callable[[int], None], port: str, made: list[socket.socket], request: pytest.FixtureRequest
) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", ResourceWarning)
        with pytest.raises(StreamError):
            attempt(request.getfixturevalue(port))
        gc.collect()
    assert made
    assert all(each.fileno() == -1 for each in made)
    assert [str(each.message) for each in seen if each.category is ResourceWarning] == []
