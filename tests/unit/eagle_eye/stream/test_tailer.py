"""A reader of a stream that may begin anew, and how far a group is behind."""

import pytest

from eagle_eye.stream.memory import MemoryLog, MemoryStream
from eagle_eye.stream.tailer import Tailer, lag

TOPIC = "t"


class Forgetful:
    """A memory stream and the way to make it forget."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.stream = MemoryStream(self.log)

    def write(self, *values: str) -> None:
        self.stream.append(TOPIC, [("k", value.encode()) for value in values])

    def forget(self) -> None:
        self.log.topics.clear()
        self.log.committed.clear()


@pytest.fixture
def broker() -> Forgetful:
    return Forgetful()


def read(follower: Tailer) -> list[str] | None:
    messages = follower.read(100)
    return None if messages is None else [message.value.decode() for message in messages]


def test_each_message_is_read_once_in_order(broker: Forgetful) -> None:
    follower = Tailer(broker.stream, TOPIC, 0, 0)
    assert read(follower) == []
    broker.write("a", "b")
    assert read(follower) == ["a", "b"]
    assert read(follower) == []
    broker.write("c")
    assert read(follower) == ["c"]


def test_a_stream_that_begins_anew_is_noticed_while_it_is_shorter(broker: Forgetful) -> None:
    follower = Tailer(broker.stream, TOPIC, 0, 0)
    broker.write("a", "b")
    read(follower)
    broker.forget()
    assert read(follower) is None
    broker.write("c")
    assert read(follower) == ["c"]


def test_a_stream_that_begins_anew_is_noticed_when_it_has_grown_beyond_the_reader(broker: Forgetful) -> None:
    follower = Tailer(broker.stream, TOPIC, 0, 0)
    broker.write("a", "b")
    read(follower)
    broker.forget()
    broker.write("c", "d", "e", "f")
    assert read(follower) is None
    assert read(follower) == ["c", "d", "e", "f"]


@pytest.mark.parametrize("filled", [0, 1, 9])
def test_a_reader_that_has_read_nothing_yet_notices_too(broker: Forgetful, filled: int) -> None:
    broker.write("a", "b", "c")
    follower = Tailer(broker.stream, TOPIC, 0, 3)
    assert read(follower) == []
    broker.forget()
    broker.write(*map(str, range(filled)))
    assert read(follower) is None
    assert read(follower) == [str(i) for i in range(filled)]


def test_a_reader_that_begins_beyond_the_end_begins_anew(broker: Forgetful) -> None:
    broker.write("a")
    follower = Tailer(broker.stream, TOPIC, 0, 3)
    assert read(follower) is None
    assert read(follower) == ["a"]


def test_what_was_not_done_is_read_again(broker: Forgetful) -> None:
    follower = Tailer(broker.stream, TOPIC, 0, 0)
    broker.write("a", "b", "c")
    read(follower)
    follower.rewind(1)
    assert read(follower) == ["b", "c"]
    follower.rewind(follower.offset)
    assert read(follower) == []
    broker.forget()
    broker.write("x", "y", "z", "w")
    follower.rewind(0)
    assert read(follower) == ["x", "y", "z", "w"], "from its very beginning there is nothing to compare with"


def test_lag_is_what_the_group_has_not_done(broker: Forgetful) -> None:
    broker.write("a", "b", "c")
    assert lag(broker.stream, "group", TOPIC, 0) == 3
    broker.stream.commit("group", TOPIC, 0, 2)
    assert lag(broker.stream, "group", TOPIC, 0) == 1
    broker.forget()
    assert lag(broker.stream, "group", TOPIC, 0) == 0
