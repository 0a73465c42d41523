"""Writers killed with SIGKILL at random moments, and what the stream holds afterwards.

Run as a program it is such a writer: it appends numbered records and writes each number that was
acknowledged to its standard output.
"""

import hashlib
import logging
import os
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from eagle_eye.clock import SystemClock
from eagle_eye.stream import Message
from eagle_eye.stream.embedded import EmbeddedStream

TOPIC = "kills"
BODY_BYTES = 4096
SPOOLER = "spooler"
APPENDER = "appender"
START_S = 30.0
KEEP_BYTES = 1 << 40
"""More than 100 writers append until they are killed: retention must not count as loss."""


class KillReport(NamedTuple):
    """What was found after the kills."""

    kills: int
    acknowledged: int
    lost: int
    torn: int
    out_of_order: int


def record(writer: str, number: int) -> bytes:
    """A record that proves itself: who wrote it, its number, and bytes that follow from both."""
    head = f"{writer}/{number}/".encode()
    seed = hashlib.blake2b(head).digest()
    return head + (seed * (BODY_BYTES // len(seed) + 1))[: BODY_BYTES - len(head)]


def kill_writers(directory: Path, kills: int, seed: int) -> KillReport:
    """Two writers at a time append to one partition; each is killed at its own random moment."""
    chance = random.Random(seed)
    acknowledged: dict[str, int] = {}
    for first in range(0, kills, 2):
        names = [f"w{number}" for number in range(first, min(first + 2, kills))]
        children = {name: _start(APPENDER, directory, name) for name in names}
        for name, child in children.items():
            acknowledged[name] = _kill_at(child, chance.uniform(0.0, 0.05))
    return _judge(directory, acknowledged)


def kill_spoolers(directory: Path, kills: int, seed: int) -> KillReport:
    """The stream is held; a spooling writer is killed; the next one on the same spool hands its records on."""
    chance = random.Random(seed)
    acknowledged: dict[str, int] = {}
    stream = EmbeddedStream(directory / "stream")
    stream.partitions(TOPIC)
    with closing(stream), stream.hold():
        for kill in range(kills):
            child = _start(SPOOLER, directory, f"s{kill}")
            acknowledged[f"s{kill}"] = _kill_at(child, chance.uniform(0.0, 0.05))
    _hand_on(directory)
    return _judge(directory / "stream", acknowledged)


def _start(role: str, directory: Path, name: str) -> "subprocess.Popen[bytes]":
    line = [sys.executable, "-m", "benchmarks.chain.stream_kills", role, str(directory), name]
    return subprocess.Popen(line, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])


def _kill_at(child: "subprocess.Popen[bytes]", seconds: float) -> int:
    """Kill so long after the first acknowledgement; returns how many records were acknowledged."""
    assert child.stdout is not None
    if not select.select([child.stdout], [], [], START_S)[0]:
        child.kill()
        raise RuntimeError("the writer acknowledged nothing")
    time.sleep(seconds)
    child.kill()
    lines = child.communicate()[0].split(b"\n")[:-1]  # what comes after the last line end was cut off by the kill
    return int(lines[-1])


def _judge(directory: Path, acknowledged: dict[str, int]) -> KillReport:
    found: dict[str, list[int]] = {name: [] for name in acknowledged}
    torn = 0
    with closing(EmbeddedStream(directory)) as stream:
        for message in everything(stream):
            writer, number = message.value.split(b"/", 2)[:2]
            torn += message.value != record(writer.decode(), int(number))
            found[writer.decode()].append(int(number))
    lost = sum(len(set(range(count)) - set(found[name])) for name, count in acknowledged.items())
    disorder = sum(numbers != sorted(set(numbers)) for numbers in found.values())
    return KillReport(len(acknowledged), sum(acknowledged.values()), lost, torn, disorder)


def everything(stream: EmbeddedStream) -> Iterator[Message]:
    """All messages of the topic."""
    offset = stream.begin(TOPIC, 0)
    while messages := stream.read(TOPIC, 0, offset):
        yield from messages
        offset = messages[-1].offset + 1


# --- the writer ------------------------------------------------------------------------------------------------


def _acknowledge(count: int) -> None:
    os.write(1, b"%d\n" % count)


def _append(directory: Path, name: str) -> None:
    chance = random.Random(name)
    # the keeper runs often, so that kills meet its fsyncs and checkpoints too
    stream = EmbeddedStream(directory, max_bytes=KEEP_BYTES, fsync_interval_s=0.01)
    number = 0
    while True:
        batch = chance.choice((1, 1, 1, 10, 100))
        stream.append(TOPIC, [(name, record(name, number + i)) for i in range(batch)])
        number += batch
        _acknowledge(number)


def _spool(directory: Path, name: str) -> None:
    """Acknowledges what is in the spool file, which says so itself."""
    from eagle_eye.stream.spool import SpooledWriter

    stream = EmbeddedStream(directory / "stream", busy_s=0.02)
    writer = SpooledWriter(stream, directory / "spool", clock=SystemClock())
    before = writer.status().spooled  # of the writers that were killed earlier
    number = told = 0
    while True:
        writer.write(TOPIC, name, record(name, number))
        number += 1
        time.sleep(0.0002)
        if (safe := writer.status().spooled - before) > told:
            told = safe
            _acknowledge(safe)


def _hand_on(directory: Path) -> None:
    from eagle_eye.stream.spool import SpooledWriter

    with closing(EmbeddedStream(directory / "stream")) as stream:
        writer = SpooledWriter(stream, directory / "spool", clock=SystemClock())
        whole = writer.flush(START_S)
        writer.close()
    if not whole:
        raise RuntimeError("the spool was not handed on in time")


if __name__ == "__main__":
    logging.disable()  # that the stream is away is what is wanted here
    {APPENDER: _append, SPOOLER: _spool}[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
