"""A stream that is opened when it is first needed, and which one a configuration means."""

import threading
from pathlib import Path

import pytest

from collectors.agent.lazy_stream import LazyStream
from eagle_eye.clock import SystemClock
from eagle_eye.config import parse
from eagle_eye.errors import ConfigError, StreamUnavailable
from eagle_eye.stream import OBSERVATIONS, RUNNER_GROUP, Stream
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.stream.factory import confirmed_by, open_embedded, open_stream_in
from eagle_eye.stream.memory import MemoryStream

KAFKA = '[stream.kafka]\nbrokers = "127.0.0.1:1"\n'


def test_it_is_away_until_it_can_be_opened_and_opened_once() -> None:
    tried: list[int] = []

    def opening() -> Stream:
        tried.append(1)
        if len(tried) < 3:
            raise OSError("no such device")
        return MemoryStream()

    late = LazyStream(opening)
    late.open()
    with pytest.raises(StreamUnavailable, match="no such device"):
        late.append("t", [("k", b"v")])
    place = late.append("t", [("k", b"v")])[0]
    assert late.read("t", place.partition, place.offset)[0].value == b"v"
    assert late.begin("t", 0) == 0
    assert late.committed("g", "t", 0) is None
    assert len(tried) == 3


def test_what_will_never_be_right_is_told_at_the_start(tmp_path: Path) -> None:
    settings = parse(f'{KAFKA}security = "tls"\nca_file = "/no/such.pem"').stream
    with pytest.raises(ConfigError, match=r"/no/such\.pem"):
        LazyStream(lambda: open_stream_in(tmp_path, settings, SystemClock())).open()


def test_brokers_mean_kafka_which_connects_to_nobody_and_starts_no_thread_before_it_is_used(tmp_path: Path) -> None:
    settings = parse(KAFKA).stream
    before = set(threading.enumerate())
    stream = open_stream_in(tmp_path, settings, SystemClock())
    assert not isinstance(stream, EmbeddedStream)
    assert set(threading.enumerate()) <= before
    assert list(tmp_path.iterdir()) == []
    stream.close()
    assert confirmed_by(settings) == {OBSERVATIONS: RUNNER_GROUP}


def test_no_brokers_mean_the_embedded_one_which_forgets_nothing(tmp_path: Path) -> None:
    settings = parse("").stream
    with open_stream_in(tmp_path, settings, SystemClock()) as stream:  # type: ignore[attr-defined]
        assert isinstance(stream, EmbeddedStream)
    assert confirmed_by(settings) == {}


def test_what_only_the_embedded_stream_can_do_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"only the embedded stream can do this"):
        open_embedded(parse(f'state_dir = "{tmp_path}"\n{KAFKA}'), SystemClock())
