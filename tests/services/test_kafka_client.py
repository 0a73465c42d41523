"""Kafka on bad days: a real client against the fake broker, which does what it is told."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle_eye.clock import SystemClock
from eagle_eye.config import KafkaConfig
from eagle_eye.errors import ConfigError, StreamError, StreamFull, StreamRefused, StreamUnavailable
from eagle_eye.stream.kafka import KafkaStream
from eagle_eye.stream.kafka_settings import PASSWORD_VARIABLE, why_unreachable
from eagle_eye.stream.tailer import Tailer
from fakes.certificates import Authority
from fakes.kafka_broker import FakeBroker

TOPIC = "observations"
Open = Callable[..., KafkaStream]
UNKNOWN_TOPIC, NOT_LEADER, TOO_LARGE, LOADING, NOT_AUTHORIZED, STORAGE = 3, 6, 10, 14, 29, 56


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def connect(broker: FakeBroker) -> Iterator[Open]:
    made: list[KafkaStream] = []

    def connect(**settings: object) -> KafkaStream:
        made.append(KafkaStream(KafkaConfig(**{"brokers": broker.address, "timeout_s": 1.0, **settings})))  # type: ignore[arg-type]
        return made[-1]

    yield connect
    for stream in made:
        stream.close()


def values(stream: KafkaStream) -> list[str]:
    return [message.value.decode() for message in stream.read(TOPIC, 0, 0)]


def until(action: Callable[[], object], seconds: float = 20.0) -> None:
    """Try until the stream is there again."""
    clock = SystemClock()
    end = clock.monotonic() + seconds
    while True:
        try:
            action()
        except StreamUnavailable:
            assert clock.monotonic() < end
            clock.sleep(0.01)
        else:
            return


# --- records survive ---------------------------------------------------------------------------------------------


def test_a_cut_connection_is_made_again_and_nothing_is_doubled(broker: FakeBroker, connect: Open) -> None:
    stream = connect()
    for number in range(5):
        stream.append(TOPIC, [("k", b"%d" % number)])
        broker.cut()
    until(lambda: stream.read(TOPIC, 0, 0))
    assert values(stream) == ["0", "1", "2", "3", "4"]


def test_a_lost_acknowledgement_leaves_one_record(broker: FakeBroker, connect: Open) -> None:
    stream = connect()
    stream.append(TOPIC, [("k", b"a")])
    broker.lost_acknowledgements = 1
    places = stream.append(TOPIC, [("k", b"b")])
    assert places[0].offset == 1
    until(lambda: stream.read(TOPIC, 0, 0))
    assert values(stream) == ["a", "b"]


@pytest.mark.parametrize("code", [NOT_LEADER, 7, 13])
def test_errors_that_pass_are_outlived_by_an_append(broker: FakeBroker, connect: Open, code: int) -> None:
    stream = connect(timeout_s=5.0)
    broker.fail("Produce", code, times=2)
    stream.append(TOPIC, [("k", b"a"), ("k", b"b")])
    assert values(stream) == ["a", "b"]
    assert stream.producers_made == 1


def test_a_broker_that_acknowledges_nothing_is_away_and_the_producer_is_made_anew(broker: FakeBroker, connect: Open) -> None:
    stream = connect()
    stream.append(TOPIC, [("k", b"a")])
    broker.stalled = True
    with pytest.raises(StreamUnavailable, match=r"acknowledged nothing for 1 s \(stream.kafka.timeout_s\)"):
        stream.append(TOPIC, [("k", b"b")])
    broker.stalled = False
    until(lambda: stream.append(TOPIC, [("k", b"c")]))
    assert stream.producers_made == 2
    assert stream.oldest_append_s() == 0
    assert list(dict.fromkeys(value for value in values(stream) if value != "b")) == ["a", "c"]  # c twice: its first answer was lost


def test_how_long_the_oldest_append_waits_is_told(broker: FakeBroker, connect: Open) -> None:
    stream = connect(timeout_s=20.0)
    stream.append(TOPIC, [("k", b"a")])
    broker.stalled = True
    writer = threading.Thread(target=stream.append, args=(TOPIC, [("k", b"b")]))
    writer.start()
    clock = SystemClock()
    while not stream.oldest_append_s() > 0.1:
        clock.sleep(0.01)
    broker.stalled = False
    writer.join(30)
    assert values(stream) == ["a", "b"]


def test_a_broker_that_lost_its_memory_begins_again_with_an_empty_topic(broker: FakeBroker, connect: Open) -> None:
    stream = connect()
    stream.append(TOPIC, [("k", b"a"), ("k", b"b")])
    broker.forget()
    until(lambda: stream.append(TOPIC, [("k", b"c")]))
    assert values(stream) == ["c"]
    assert stream.end(TOPIC, 0) == 1
    assert stream.committed("group", TOPIC, 0) is None


def test_a_broker_that_was_down_is_found_again(broker: FakeBroker, connect: Open) -> None:
    stream = connect()
    stream.append(TOPIC, [("k", b"a")])
    broker.stop()
    with pytest.raises(StreamUnavailable):
        stream.append(TOPIC, [("k", b"b")])
    with pytest.raises(StreamUnavailable):
        stream.read(TOPIC, 0, 0)
    broker.start()
    until(lambda: stream.append(TOPIC, [("k", b"c")]))
    until(lambda: stream.read(TOPIC, 0, 0))
    assert list(dict.fromkeys(value for value in values(stream) if value != "b")) == ["a", "c"]  # c twice: its first answer was lost


@pytest.mark.parametrize(("request_", "code"), [("Fetch", NOT_LEADER), ("OffsetFetch", LOADING), ("FindCoordinator", 15)])
def test_a_reader_asks_the_right_broker_at_the_next_try(
    broker: FakeBroker, connect: Open, request_: str, code: int
) -> None:
    stream = connect()
    stream.append(TOPIC, [("k", b"a")])
    broker.fail(request_, code)
    ask = (lambda: stream.read(TOPIC, 0, 0)) if request_ == "Fetch" else (lambda: stream.committed("group", TOPIC, 0))
    with pytest.raises(StreamUnavailable):
        ask()
    assert values(stream) == ["a"]
    assert stream.committed("group", TOPIC, 0) is None


def test_a_record_that_is_shown_late_is_not_passed_over(broker: FakeBroker, connect: Open) -> None:
    stream = connect()
    for value in (b"a", b"b", b"c"):
        stream.append(TOPIC, [("k", value)])
    partition = broker.memory.topics[TOPIC][0]
    partition.unseen.add(1)
    follower = Tailer(stream, TOPIC, 0, 0)
    assert [message.value for message in follower.read() or []] == [b"a"]
    shown = threading.Timer(0.02, partition.unseen.clear)
    shown.start()
    assert [message.value for message in follower.read() or []] == [b"b", b"c"]


def test_a_record_that_is_gone_for_good_does_not_end_the_reading(broker: FakeBroker, connect: Open) -> None:
    stream = connect()
    for value in (b"a", b"b", b"c"):
        stream.append(TOPIC, [("k", value)])
    broker.memory.topics[TOPIC][0].unseen.add(1)
    assert [message.value for message in stream.read(TOPIC, 0, 1)] == [b"c"]
    follower = Tailer(stream, TOPIC, 0, 0)
    assert [message.value for _ in range(2) for message in follower.read() or []] == [b"a", b"c"]


# --- clear words ---------------------------------------------------------------------------------------------------


def test_a_record_that_the_topic_does_not_take_is_refused_and_the_next_one_taken(broker: FakeBroker, connect: Open) -> None:
    stream = connect()
    broker.fail("Produce", TOO_LARGE)
    with pytest.raises(StreamRefused, match=r"max\.message\.bytes"):
        stream.append(TOPIC, [("k", b"a")])
    stream.append(TOPIC, [("k", b"b")])
    assert values(stream) == ["b"]


def test_a_full_broker_and_one_that_does_not_allow_it_are_told_apart(broker: FakeBroker, connect: Open) -> None:
    stream = connect()
    stream.append(TOPIC, [("k", b"a")])
    broker.fail("Fetch", STORAGE)
    with pytest.raises(StreamFull, match="free their disks"):
        stream.read(TOPIC, 0, 0)
    broker.fail("Fetch", NOT_AUTHORIZED)
    with pytest.raises(StreamUnavailable, match=r"do not allow it.*grant it to stream\.kafka\.user"):
        stream.read(TOPIC, 0, 0)


def test_a_wrong_address_is_named_at_once(connect: Open) -> None:
    with FakeBroker() as gone:
        address = gone.address
    with pytest.raises(StreamUnavailable, match=f"{address} takes no connection.*correct stream.kafka.brokers"):
        connect(brokers=address).append(TOPIC, [("k", b"v")])
    with pytest.raises(StreamUnavailable, match="no known host"):
        connect(brokers="no-such-host.invalid:9092", insecure=True).read(TOPIC, 0, 0)
    with pytest.raises(ConfigError, match="host:port"):
        connect(brokers="host:port")


def test_a_wrong_password_is_told_and_the_right_one_let_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, connect: Open) -> None:
    with FakeBroker(passwords={"eagle": "eye"}) as broker:
        settings = {"brokers": broker.address, "security": "sasl", "mechanism": "PLAIN", "user": "eagle"}
        with pytest.raises(ConfigError, match=PASSWORD_VARIABLE):
            connect(**settings)
        monkeypatch.setenv(PASSWORD_VARIABLE, "wrong")
        with pytest.raises(StreamUnavailable, match=r"refuse the name or password.*stream\.kafka\.password_file") as refused:
            connect(**settings).append(TOPIC, [("k", b"v")])
        assert "wrong" not in str(refused.value)
        with pytest.raises(StreamUnavailable, match="mechanism"):
            connect(**{**settings, "mechanism": "SCRAM-SHA-512"}).append(TOPIC, [("k", b"v")])
        (tmp_path / "password").write_text("eye\n")
        stream = connect(**settings, password_file=str(tmp_path / "password"))
        stream.append(TOPIC, [("k", b"v")])
        assert values(stream) == ["v"]
        stream.close()


def test_certificates_are_checked_in_both_directions(tmp_path: Path, connect: Open) -> None:
    authority = Authority(tmp_path)
    server = authority.certificate("127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.path))
    context.load_cert_chain(*map(str, server))
    context.verify_mode = ssl.CERT_REQUIRED
    with FakeBroker(tls=context) as broker:
        settings = {"brokers": broker.address, "security": "tls"}
        with pytest.raises(StreamUnavailable, match=r"certificate of .* is refused.*set stream\.kafka\.ca_file"):
            connect(**settings).read(TOPIC, 0, 0)
        settings["ca_file"] = str(authority.path)
        with pytest.raises(StreamUnavailable, match="our certificate"):
            connect(**settings).read(TOPIC, 0, 0)
        ours, key = map(str, authority.certificate("agent"))
        stream = connect(**settings, certificate_file=ours, key_file=key)
        stream.append(TOPIC, [("k", b"v")])
        assert values(stream) == ["v"]
        stream.close()


def test_an_expired_certificate_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*map(str, authority.certificate("127.0.0.1", days=-1)))
    with FakeBroker(tls=context) as broker:
        told = why_unreachable(KafkaConfig(brokers=broker.address, security="tls", ca_file=str(authority.path)))
    assert "expired" in told
    assert "renew it on the broker" in told


def test_a_port_that_says_nothing_to_tls_is_told_from_one_that_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = why_unreachable(KafkaConfig(brokers=f"127.0.0.1:{silent.getsockname()[1]}", security="tls", timeout_s=0.2))
    assert "no TLS handshake within 0.2 s" in told


def test_files_that_are_not_there_are_named_before_anything_connects(connect: Open) -> None:
    with pytest.raises(ConfigError, match=r"stream\.kafka\.ca_file is /no/such\.pem"):
        connect(security="tls", ca_file="/no/such.pem")


def test_an_unknown_partition_is_no_reason_to_try_again(connect: Open) -> None:
    with pytest.raises(StreamError, match="no partition 7: it has 1"):
        connect().read(TOPIC, 7, 0)
