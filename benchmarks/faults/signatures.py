"""What it costs to check the signatures of 10,000 nodes' records, each second, on one core; and what other signatures would cost.

    python -m benchmarks.faults.signatures
    python -m benchmarks.faults.signatures --nodes 1000

Each node sends one record a second with 8 GPUs × 60 metrics. Measured is the processor time from signed bytes to checked ones, beside the time
that the same records take to become a frame. From 2,000 records a second on (`stream/fetcher_demand.py`) that is a fetcher's time, a process of its own; what signatures
cost the process that evaluates is then to take over who wrote each record: the time of a span with writers, less that of the same without. Peers check the same
bytes: HMAC-SHA-256 of Python's standard library, and Ed25519, a signature that needs no secret at the reader.
"""

import argparse
import hmac
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import Console
from rich.progress import track

from benchmarks.report import Row, report
from eagle_eye import wire
from eagle_eye.access.certificates import CertificateKind, Identity
from eagle_eye.access.stream_keys import StreamKey, StreamWriter
from eagle_eye.clock import SystemClock
from eagle_eye.frames import FrameBuilder
from eagle_eye.record_writer import read_record
from eagle_eye.stream import OBSERVATIONS, Message
from eagle_eye.stream.fetcher_demand import FROM_RECORDS_S
from eagle_eye.stream.record_signature import INCARNATION_BYTES, SignatureCheck, Signer
from eagle_eye.stream.record_span import RecordSpan, decode_span, encode_span
from eagle_eye.types import Batch, Block, Kind, Mark, Reading

GPUS, METRICS = 8, 60
TICKS = 9
SHARE = 0.02
"""Of a tick of one second."""
JOB = "bench/signatures/run"
NAMES = tuple(f"metric_{index}" for index in range(METRICS))


class Cluster:
    """All nodes' records of each tick."""

    def __init__(self, nodes: int) -> None:
        self.root = os.urandom(32)
        self.schemas = wire.Schemas()
        self._chance = np.random.default_rng(1)
        self._clock = SystemClock()
        self._gpus = [tuple(f"GPU-{self._chance.bytes(16).hex()}" for _ in range(GPUS)) for _ in range(nodes)]
        self._signers = [self._signer(node) for node in range(nodes)]

    def _signer(self, node: int) -> Signer:
        writer = StreamWriter(identity=Identity(kind=CertificateKind.NODE, name=f"node-{node}"), ends=self._clock.now() + 86_400.0)
        return Signer(StreamKey(writer=writer, key=writer.key(self.root)), os.urandom(INCARNATION_BYTES), self._clock)

    def tick(self, number: int) -> list[Message]:
        """Signed, in the order in which they happen to come."""
        order = self._chance.permutation(len(self._signers)).tolist()
        signed = [(node, self._signers[node].sign(OBSERVATIONS, JOB, self._record(node, number))) for node in order]
        now = self._clock.now()
        return [Message(OBSERVATIONS, 0, number * len(order) + place, JOB, value, now) for place, (_, value) in enumerate(signed)]

    def _record(self, node: int, number: int) -> bytes:
        matrix = self._chance.random((GPUS, METRICS), dtype=np.float32)
        reading = Reading(source="gpu", kind=Kind.GPU, entities=self._gpus[node], names=NAMES, matrix=matrix, time=float(number))
        block = Block(schema_id=self.schemas.schema_of(reading).id, reading=reading)
        return wire.encode(Batch(node=f"node-{node}", incarnation="b00t", job=JOB, number=number, time=float(number), blocks=(block,)))


def seconds_of(work: Callable[[], object]) -> float:
    """Processor time."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measured(nodes: int) -> tuple[list[float], list[float], list[Message]]:
    """(seconds of checking each tick, seconds of its frame, the checked records of the last one); the first tick, in which all is new, is left out."""
    cluster = Cluster(nodes)
    check = SignatureCheck(cluster.root, late_s=600.0, unsigned=False, refused=_refused)
    reader, builder = wire.RecordReader(), FrameBuilder(JOB, cluster.schemas)
    checks, frames, checked = [], [], list[Message]()

    def frame(number: int) -> None:
        for message in checked:
            builder.feed(read_record(reader, message))
        builder.tick(Mark(mark="tick", generation=1, number=number + 1, time=float(number)))

    for number in track(range(TICKS + 1), "ticks", console=Console(stderr=True)):
        messages = cluster.tick(number)
        checked.clear()
        checks.append(seconds_of(lambda messages=messages: checked.extend(check.check(messages))))  # type: ignore[misc]
        frames.append(seconds_of(lambda number=number: frame(number)))  # type: ignore[misc]
    return checks[1:], frames[1:], checked


def taken_over_s(messages: Sequence[Message]) -> float:
    """Of a tick: taking over messages of a fetcher with their writers, less the same messages without any."""
    signed, plain = (encode_span(RecordSpan(list(each), False)) for each in (messages, [message._replace(writer=None) for message in messages]))
    pairs = [(seconds_of(lambda: decode_span(OBSERVATIONS, 0, signed)), seconds_of(lambda: decode_span(OBSERVATIONS, 0, plain))) for _ in range(2 * TICKS)]
    return statistics.median(with_writers - without for with_writers, without in pairs)


def _refused(message: Message, why: str) -> None:
    raise AssertionError(f"record {message.offset} is refused: {why}")


def hmac_s(records: Sequence[bytes]) -> float:
    """Of all."""
    key = os.urandom(32)
    tags = [hmac.digest(key, record, "sha256") for record in records]
    return seconds_of(lambda: all(hmac.compare_digest(tag, hmac.digest(key, record, "sha256")) for tag, record in zip(tags, records, strict=True)))


def ed25519_s(records: Sequence[bytes]) -> float:
    """Of all, from a tenth of them."""
    private = Ed25519PrivateKey.generate()
    public, some = private.public_key(), records[::10]
    signed = [(private.sign(record), record) for record in some]
    return seconds_of(lambda: [public.verify(signature, record) for signature, record in signed]) * len(records) / len(some)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000, help="how many send a record each second (default: %(default)s)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    checks, frames, checked = measured(options.nodes)
    records = [message.value for message in checked]
    ours, frame = statistics.median(checks), statistics.median(frames)
    goal = SHARE * options.nodes / 10_000
    by_itself = options.nodes < FROM_RECORDS_S
    cost = ours if by_itself else taken_over_s(checked)
    who = "which checks them itself" if by_itself else "beside its fetcher, which checks them"
    usual, public = hmac_s(records), ed25519_s(records)
    rows = [
        Row(f"signatures of {options.nodes:,} nodes, of a tick of the process that evaluates, {who}", f"{cost * 1e3:.1f} ms", f"≤ {goal * 1e3:.0f} ms: {SHARE:.0%} of a tick", cost <= goal),
        Row(f"{options.nodes:,} signatures checked, median of {TICKS} ticks, one core" + ("" if by_itself else ": the fetcher's time, or the tick's where stream.fetchers = 0"),
            f"{ours * 1e3:.1f} ms", "", None, f"HMAC-SHA-256 {usual * 1e3:.1f} ms", f"{usual / ours:.1f}×"),
        Row("the same beside a signature without a shared secret", f"{ours * 1e3:.1f} ms", "", None, f"Ed25519 {public * 1e3:,.0f} ms", f"{public / ours:.0f}×"),
        Row("the same records → one frame", f"{frame * 1e3:.0f} ms; signatures on top {ours / frame:.1%}"),
        Row("one signature", f"{ours / options.nodes * 1e6:.2f} µs; a record has {len(records[0]):,} bytes"),
    ]  # fmt: skip
    return report(rows, options.json, "Signatures")


if __name__ == "__main__":
    sys.exit(main())
