"""A full disk under the stream, played by the kernel's limit on the size of a file."""

from pathlib import Path

from eagle_eye.clock import FakeClock, SystemClock
from eagle_eye.errors import StreamFull
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.types import Notice
from fakes.full_disk import file_size_limit


def numbers(stream: EmbeddedStream) -> list[int]:
    return [int(message.value[:5]) for message in stream.read("t", 0, 0, 10_000)]


def fill(stream: EmbeddedStream) -> tuple[int, str]:
    """Append until there is no room: (how many were acknowledged, the error then)."""
    for number in range(10_000):
        try:
            stream.append("t", [("k", b"%05d" % number + bytes(4000))])
        except StreamFull as error:
            return number, str(error)
    raise AssertionError("the limit did not work")


def test_a_full_disk_is_told_and_costs_nothing_acknowledged(tmp_path: Path) -> None:
    with EmbeddedStream(tmp_path, clock=FakeClock()) as stream:
        with file_size_limit(1 << 20):
            acknowledged, error = fill(stream)
            assert acknowledged > 10
            assert "free space" in error
            assert str(tmp_path / "t" / "0-0.sqlite") in error
            assert numbers(stream) == list(range(acknowledged))
        stream.append("t", [("k", b"99999")])
        assert numbers(stream) == [*range(acknowledged), 99999]
    with EmbeddedStream(tmp_path, clock=FakeClock()) as stream:
        assert numbers(stream) == [*range(acknowledged), 99999]


def test_the_spool_carries_on_over_a_full_stream(tmp_path: Path) -> None:
    notices: list[Notice] = []
    with EmbeddedStream(tmp_path / "stream") as stream:
        with file_size_limit(1 << 20):
            acknowledged, _told = fill(stream)
            writer = SpooledWriter(stream, tmp_path / "spool", clock=SystemClock(), retry_s=0.005, on_notice=notices.append)
            writer.write("t", "k", b"77777" + bytes(4000))
            assert not writer.flush(0.05)
        assert writer.flush(20.0)
        writer.close()
        assert numbers(stream) == [*range(acknowledged), 77777]
    assert [notice.name for notice in notices] == ["stream.away", "stream.recovered"]
