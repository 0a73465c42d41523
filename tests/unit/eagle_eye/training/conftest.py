"""What several tests of the probe share: a monitor that writes a ring, and its reader."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle_eye.training.probe import Monitor
from eagle_eye.training.ring_buffer import RingReader, RingWriter
from fakes.cuda import Clock


@pytest.fixture
def watched(tmp_path: Path, clock: Clock) -> Iterator[tuple[Monitor, RingReader]]:
    """`clock`: of the module that asks."""
    writer = RingWriter.create(tmp_path / "ring", worker="run/a/0", offset_ns=0)
    with RingReader.open(tmp_path / "ring") as reader:
        yield Monitor(writer, clock_ns=clock), reader
