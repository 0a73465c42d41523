"""The embedded stream: records of 4 KiB from one process to another, and 100 kills.

    python -m benchmarks.chain.stream [--json] [--quick]

Beside it, in the same run, the same work done with plain sqlite3 (one commit per record, as a first
attempt would do it) and with an append-only file without keys, offsets, retention or checksums: the
lower bound of the work.
"""

import argparse
import multiprocessing
import multiprocessing.connection
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

from benchmarks.chain.stream_kills import KillReport, kill_spoolers, kill_writers
from benchmarks.report import Row, report
from eagle_eye.stream.embedded import EmbeddedStream

TOPIC = "t"
VALUE = bytes(range(256)) * 16
BATCH = 100
GOAL = 20_000


class Way(NamedTuple):
    """One way of bringing records from a writer to a reader."""

    prepare: Callable[[Path], None]
    write: Callable[[Path, int], None]
    read: Callable[[Path, int], None]


# --- ours --------------------------------------------------------------------------------------------------------


def _stream_prepare(directory: Path) -> None:
    with EmbeddedStream(directory) as stream:
        stream.begin(TOPIC, 0)


def _stream_write(directory: Path, records: int) -> None:
    with EmbeddedStream(directory) as stream:
        for _ in range(records // BATCH):
            stream.append(TOPIC, [("tenant/name/run", VALUE)] * BATCH)


def _stream_read(directory: Path, records: int) -> None:
    seen = offset = 0
    with EmbeddedStream(directory) as stream:
        while seen < records:
            stream.wait(TOPIC, 0, offset, 10.0)
            messages = stream.read(TOPIC, 0, offset)
            assert all(message.value == VALUE for message in messages)
            seen, offset = seen + len(messages), messages[-1].offset + 1


# --- plain sqlite3, one commit per record --------------------------------------------------------------------------


def _plain(directory: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(directory / "plain.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _plain_prepare(directory: Path) -> None:
    with closing(_plain(directory)) as connection:
        connection.execute("CREATE TABLE records (place INTEGER PRIMARY KEY, key TEXT, value BLOB)")


def _plain_write(directory: Path, records: int) -> None:
    with closing(_plain(directory)) as connection:
        for _ in range(records):
            connection.execute("INSERT INTO records (key, value) VALUES (?, ?)", ("tenant/name/run", VALUE))


def _plain_read(directory: Path, records: int) -> None:
    seen = 0
    query = "SELECT place, value FROM records WHERE place > ? ORDER BY place LIMIT 1024"
    with closing(_plain(directory)) as connection:
        while seen < records:
            rows = connection.execute(query, (seen,)).fetchall()
            assert all(value == VALUE for _place, value in rows)
            seen += len(rows)
            if not rows:
                time.sleep(0.002)


# --- an append-only file: the lower bound ----------------------------------------------------------------------------


def _file_prepare(directory: Path) -> None:
    (directory / "log").touch()


def _file_write(directory: Path, records: int) -> None:
    with (directory / "log").open("ab", buffering=0) as file:
        for _ in range(records // BATCH):
            file.write(VALUE * BATCH)


def _file_read(directory: Path, records: int) -> None:
    seen = 0
    with (directory / "log").open("rb", buffering=0) as file:
        while seen < records * len(VALUE):
            data = file.read(1024 * len(VALUE))
            seen += len(data)
            if not data:
                time.sleep(0.002)


WAYS = {
    "stream": Way(_stream_prepare, _stream_write, _stream_read),
    "plain": Way(_plain_prepare, _plain_write, _plain_read),
    "file": Way(_file_prepare, _file_write, _file_read),
}


# --- measuring -------------------------------------------------------------------------------------------------------


def _work(way: str, part: str, directory: Path, records: int, ready: Event, go: Event) -> None:
    ready.set()
    go.wait()
    getattr(WAYS[way], part)(directory, records)


def rate(way: str, records: int) -> float:
    """Records per second, from the first append to the moment when the reader has them all."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name:
        WAYS[way].prepare(Path(name))
        go = context.Event()
        ready = [context.Event(), context.Event()]
        children = [
            context.Process(target=_work, args=(way, part, Path(name), records, event, go))
            for part, event in zip(("write", "read"), ready, strict=True)
        ]
        for child, event in zip(children, ready, strict=True):
            child.start()
            event.wait()
        began = time.perf_counter()
        go.set()
        for child in reversed(children):
            child.join()
            if child.exitcode:
                raise RuntimeError(f"the benchmark's child for {way} ended with {child.exitcode}")
        return records / (time.perf_counter() - began)


def _see(directory: Path, records: int, connection: "multiprocessing.connection.Connection") -> None:
    with EmbeddedStream(directory) as stream:
        connection.send(0.0)
        for offset in range(records):
            stream.wait(TOPIC, 0, offset, 10.0)
            connection.send(time.monotonic())


def latencies(records: int) -> tuple[list[float], list[float]]:
    """Sorted seconds of a single append, and from its beginning until a waiting reader in another process has it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    with tempfile.TemporaryDirectory() as name, EmbeddedStream(Path(name)) as stream:
        stream.begin(TOPIC, 0)
        child = context.Process(target=_see, args=(Path(name), records, there))
        child.start()
        here.recv()
        appended, seen = [], []
        for number in range(records):
            time.sleep(0.001 + 0.0007 * (number % 5))
            began = time.monotonic()
            stream.append(TOPIC, [("tenant/name/run", VALUE)])
            appended.append(time.monotonic() - began)
            seen.append(here.recv() - began)
        child.join()
    return sorted(appended), sorted(seen)


def _kills(kill: Callable[[Path, int, int], KillReport], count: int, seed: int) -> KillReport:
    with tempfile.TemporaryDirectory() as name:
        return kill(Path(name), count, seed)


def _kill_row(what: str, found: KillReport) -> Row:
    bad = found.lost + found.torn + found.out_of_order
    figure = f"{found.lost} of {found.acknowledged:,} lost, {found.torn} torn, {found.out_of_order} writers out of order"
    return Row(what, figure, "0", bad == 0)


def _latency_row(what: str, seconds: list[float], goal_ms: float | None = None) -> Row:
    p50, p99 = 1e3 * statistics.median(seconds), 1e3 * seconds[len(seconds) * 99 // 100]
    goal = "" if goal_ms is None else f"p50 ≤ {goal_ms:g} ms"
    return Row(what, f"p50 {p50:.2f} ms, p99 {p99:.2f} ms", goal, None if goal_ms is None else p50 <= goal_ms)


def measure(quick: bool, seed: int) -> list[Row]:
    """All rows."""
    records, rounds, kills = (20_000, 1, 20) if quick else (100_000, 3, 100)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):  # in turn, so that a busy moment of the machine meets all of them
        for way in WAYS:
            rates[way].append(rate(way, records))
    ours, plain, file = (statistics.median(rates[way]) for way in ("stream", "plain", "file"))
    appended, seen = latencies(300)
    what = "records of 4 KiB, one writer and one reader process"
    return [
        Row(what, f"{ours:,.0f} /s", f"≥ {GOAL:,} /s", ours >= GOAL, f"sqlite3, a commit each: {plain:,.0f} /s", f"{ours / plain:.2f} ×"),
        Row("the same, lower bound of the work", f"{ours:,.0f} /s", peer=f"append-only file, no fsync: {file:,.0f} /s", ratio=f"{ours / file:.2f} ×"),
        _latency_row("one record appended", appended),
        _latency_row("one record appended → seen by a waiting reader process", seen, 3.0),
        _kill_row(f"{kills} writers killed at random moments (seed {seed})", _kills(kill_writers, kills, seed)),
        _kill_row(f"{kills // 5} spooling writers killed while the stream was held", _kills(kill_spoolers, kills // 5, seed)),
    ]


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work, one round")
    parser.add_argument("--seed", type=int, default=7, help="for the moments of the kills")
    arguments = parser.parse_args()
    return report(measure(arguments.quick, arguments.seed), arguments.json, "embedded stream")


if __name__ == "__main__":
    raise SystemExit(main())
