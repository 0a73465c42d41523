"""Mutated records of the topic of observations: every kind by its own structure, batches down to their numbers."""

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from eagle_eye import wire
from eagle_eye.types import Mark, Record

from .mutation import FLOATS, Mutation
from .sample_job import EVENTS, SampleJob

HEADER_AT = 8
DAMAGED = 0.06
"""Share of records whose frame is changed, and not what they say."""
KINDS = ("batch", "batch", "batch", "event", "event", "event", "layout", "schema", "baseline", "config", "mark")
"""What a record is before it is mutated: those that have more in them are drawn more often."""


class MutatedRecords:
    """Makes one after the other. The samples go on in time: a mutated batch is not passed over as one that has come before."""

    def __init__(self, job: SampleJob, baseline: bytes = b"\x80") -> None:
        """`baseline`: data of a valid one."""
        self._job = job
        self._baseline = baseline
        self._others: list[Any] = []
        """Trees of other records, which parts are grafted from."""

    def draw(self, random: Random, now: float, newest: Mark) -> bytes:
        """A mutated record. `newest`: the newest mark that the partition has."""
        kind = random.choice(KINDS)
        mutation = Mutation(random)
        payload = wire.encode(self._sample(kind, random, now, newest))
        changed = self._batch(payload, mutation) if kind == "batch" else self._noun(payload, mutation)
        return self._frame(changed, mutation) if random.random() < DAMAGED else changed

    def _sample(self, kind: str, random: Random, now: float, newest: Mark) -> Record:
        if kind == "batch":
            return next(record for record in self._job.second(now, random.randrange(50)) if type(record).__name__ == "Batch")
        if kind == "event":
            return self._job.event(random.choice(list(EVENTS)), now)
        if kind == "mark":
            return msgspec.structs.replace(newest, number=newest.number + 1, time=now)
        layout, baseline, config, *schemas = self._job.standing(now)
        if kind == "baseline":
            return msgspec.structs.replace(baseline, data=self._baseline, digest=str(random.randrange(1000)))
        return layout if kind == "layout" else random.choice(schemas) if kind == "schema" and schemas else config

    def _noun(self, payload: bytes, mutation: Mutation) -> bytes:
        tree = msgspec.msgpack.decode(payload[4:])
        self._remember(tree)
        if "attributes" in tree and mutation.random.random() < 0.5:
            return payload[:4] + msgspec.msgpack.encode(mutation.attribute(tree))
        if tree["noun"] == "baseline" and mutation.random.random() < 0.6:
            tree["data"] = mutation.encoded(msgspec.msgpack.decode(tree["data"]), "msgpack")
            return payload[:4] + msgspec.msgpack.encode(tree)
        return payload[:4] + mutation.encoded(tree, "msgpack", self._others)

    def _batch(self, payload: bytes, mutation: Mutation) -> bytes:
        random = mutation.random
        (length,) = struct.unpack_from("<I", payload, 4)
        header, body = payload[HEADER_AT : HEADER_AT + length], payload[HEADER_AT + length :]
        what = random.random()
        if what < 0.3:
            header = mutation.encoded(msgspec.msgpack.decode(header), "msgpack", self._others)
        elif what < 0.6:
            fields = msgspec.msgpack.decode(header)
            fields[5] = mutation.encoded(msgspec.msgpack.decode(fields[5]), "msgpack", self._others)
            header = msgspec.msgpack.encode(fields)
        elif what < 0.95:
            body = _numbers(body, random)
        else:
            body = mutation.data(body)
        return payload[:4] + struct.pack("<I", len(header)) + header + body

    def _frame(self, payload: bytes, mutation: Mutation) -> bytes:
        """Another version, kind or length; or bytes that are no record."""
        random = mutation.random
        what = random.randrange(5)
        if what == 0:
            return payload[:2] + bytes([random.randrange(256)]) + payload[3:]
        if what == 1:
            return payload[:3] + bytes([random.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 255))]) + payload[4:]
        if what == 2:
            return payload[: random.randrange(12)]
        if what == 3 and len(payload) > HEADER_AT:
            return payload[:4] + struct.pack("<I", random.choice((0, 1, 2**31, 2**32 - 1, len(payload)))) + payload[HEADER_AT:]
        return mutation.data(payload)

    def _remember(self, tree: Any) -> None:
        if len(self._others) < 64:
            self._others.append(tree)


def _numbers(body: bytes, random: Random, wide: Sequence[str] = ("<f", "<d", "<q")) -> bytes:
    """One to four numbers of the blocks are odd: float32 of readings, float64 and int64 of steps."""
    changed = bytearray(body)
    for _ in range(random.choice((1, 1, 2, 4))):
        form = random.choice(wide)
        size = struct.calcsize(form)
        if len(changed) < size:
            break
        place = random.randrange(len(changed) // 4) * 4 if form == "<f" else len(changed) - size * (random.randrange(len(changed) // size) + 1)
        struct.pack_into(form, changed, place, _odd(form, random))
    return bytes(changed)


def _odd(form: str, random: Random) -> float | int:
    if form == "<q":
        return random.choice((0, -1, 1, 2**31, 2**53, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), random.randrange(2**63)))
    number = random.choice((*FLOATS, 3.0, 57.0, 1.2e6, -5.0))
    return number if form == "<d" or abs(number) < 3e38 or number != number else 3e38
