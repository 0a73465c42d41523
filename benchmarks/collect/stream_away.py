"""The stream is away for ten minutes and comes back: what an agent wrote meanwhile.

    python -m benchmarks.collect.stream_away
    python -m benchmarks.collect.stream_away --seconds 60 --spool-mb 1

A real agent beside eight workers (as in benchmarks.collect.agent_cost), on the embedded stream. For --seconds another process holds the write
locks of all partitions, so that nothing can be written; then the stream is read to its end. Each event has a number, and so has each batch.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress

from benchmarks.collect.agent_cost import beside_workers
from benchmarks.collect.busy_node import JOB
from benchmarks.report import Row, report
from eagle_eye import wire
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import Batch, Event, SchemaRecord

BEFORE_S, CATCH_UP_S = 10.0, 60.0
LEAST_EVENTS = 3
"""During the outage: fewer show nothing."""


@dataclass
class WrittenRecords:
    """What lies in the stream."""

    events: Counter[int] = field(default_factory=Counter)
    """Number of an event → how often it lies there."""
    batches: Counter[int] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    """Of the events."""

    @property
    def missing_events(self) -> int:
        return max(self.events, default=-1) + 1 - len(self.events)

    @property
    def missing_batches(self) -> int:
        return max(self.batches, default=-1) + 1 - len(self.batches)


def read(stream: EmbeddedStream) -> WrittenRecords:
    """All records of the job."""
    found, schemas = WrittenRecords(), wire.Schemas()
    partition, offset = stream.partition_of(OBSERVATIONS, JOB), 0
    while messages := stream.read(OBSERVATIONS, partition, offset):
        offset = messages[-1].offset + 1
        for message in messages:
            record = wire.decode(message.value, schemas)
            if isinstance(record, SchemaRecord):
                schemas.add(record)
            elif isinstance(record, Event):
                found.events[record.number] += 1
                found.times.append(record.time)
            elif isinstance(record, Batch):
                found.batches[record.number] += 1
    return found


def rows(seconds: int, spool_mb: int, clock: Clock) -> list[Row]:
    """Run it."""
    with tempfile.TemporaryDirectory(prefix="eagle-eye-away-") as folder, beside_workers(folder, f"[stream]\nspool_bytes = {spool_mb << 20}\n"):
        clock.sleep(BEFORE_S)
        with EmbeddedStream(Path(folder) / "state" / "stream", clock=clock) as stream:
            began = clock.now()
            with stream.hold(), Progress(transient=True, disable=not sys.stderr.isatty()) as progress:
                for _ in progress.track(range(seconds), description="the stream is away, seconds"):
                    clock.sleep(1.0)
            ended = clock.now()
            spooled = sum(file.stat().st_size for file in (Path(folder) / "state" / "spool").rglob("*") if file.is_file())
            took = _caught_up(stream, ended, clock) - ended
            found = read(stream)
    meanwhile = sum(began <= time <= ended for time in found.times)
    twice = sum(found.events.values()) - len(found.events)
    every = found.missing_events == 0 and twice == 0 and meanwhile >= LEAST_EVENTS
    return [
        Row(f"{meanwhile} events of {seconds} s without a stream", f"{found.missing_events} missing, {twice} twice", "every one once", every),
        Row("batches of numbers", f"{found.missing_batches} of {max(found.batches) + 1} missing", "within the spool's bound", spooled <= (spool_mb << 20) * 1.1),
        Row("the spool at the end", f"{spooled / 1e6:.1f} MB", f"≤ {spool_mb} MiB"),
        Row("back → the newest batch is in the stream", f"{took:.1f} s"),
    ]  # fmt: skip


def _caught_up(stream: EmbeddedStream, since: float, clock: Clock) -> float:
    """When a batch of after `since` was in the stream and nothing of before followed."""
    partition, deadline = stream.partition_of(OBSERVATIONS, JOB), clock.monotonic() + CATCH_UP_S
    before = -1
    while clock.monotonic() < deadline:
        end = stream.end(OBSERVATIONS, partition)
        last = stream.read(OBSERVATIONS, partition, max(0, end - 1))
        if end == before and last and last[-1].time > since:
            return clock.now()
        before = end
        clock.sleep(0.5)
    return clock.now()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="without a stream (600)")
    parser.add_argument("--spool-mb", type=int, default=256, help="most megabytes of the spool (256)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.seconds < 1 or options.spool_mb < 1:
        parser.error("--seconds and --spool-mb are at least 1")
    return report(rows(options.seconds, options.spool_mb, SystemClock()), options.json, "an agent whose stream is away")


if __name__ == "__main__":
    sys.exit(main())
