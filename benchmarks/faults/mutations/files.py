"""Files that another process wrote and a disk gave back: spools and rings. Each mutated file is opened as its reader opens it."""

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from eagle_eye.errors import RingError, StreamRefused
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.partitioner import check_size, check_topic
from eagle_eye.stream.spool_file import SpooledRecord, SpoolFile
from eagle_eye.training import ring_buffer
from eagle_eye.training.ring_buffer import RingReader, RingWriter

from .mutation import FLOATS, Mutation
from .target import Fault, Tally, Target

WAITING = 12
"""Records of a spool."""
LARGEST = 1 << 17
HEADER, FRAME = 20, 26
"""Bytes, see eagle_eye/stream/spool_file.py."""


class Spools:
    """A spool of some records, mutated; then opened, read to its end and given to a stream."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "agent.spool"
        self._valid = self._written([SpooledRecord(OBSERVATIONS, "team/gpt/run1", b"EE" + bytes([1, number]) * 40, 1.7e9 + number) for number in range(WAITING)])
        self._refused = self._counted = 0

    def take(self, random: Random) -> None:
        mutation = Mutation(random)
        data = (self._frames(mutation) if random.random() < 0.6 else mutation.data(self._valid))[:LARGEST]
        self._path.write_bytes(data)
        spool = SpoolFile(self._path)
        try:
            begin, told = len(data) - spool.cut - spool.bytes_waiting, spool.cut + spool.damaged
            whole, refused = self._read(spool)
            if spool.count:
                raise Fault(f"{spool.count} records wait for ever")
            if begin >= HEADER and begin + whole + told != len(data):
                raise Fault(f"of {len(data) - begin} bytes {whole} were records and {told} were told to be damaged: the others are missing in silence")
            self._refused += (begin + whole < len(data)) + refused
            self._counted += (told > 0) + refused
        finally:
            spool.close()
            self._path.unlink(missing_ok=True)

    def tally(self) -> Tally:
        return Tally(self._refused, self._counted)

    def _read(self, spool: SpoolFile) -> tuple[int, int]:
        """(bytes of whole records, how many of these no stream can take)."""
        whole = refused = 0
        while spool.count:
            records, position = spool.peek(5, 1 << 20)
            for record in records:
                whole += FRAME + len(record.topic.encode()) + len(record.key.encode()) + len(record.value)
                try:
                    check_topic(record.topic)
                    check_size(record.topic, record.key, record.value)
                except StreamRefused:
                    refused += 1
            spool.drop(len(records), position)
        return whole, refused

    def _frames(self, mutation: Mutation) -> bytes:
        """Whole frames with a right checksum that hold something odd; or lengths and marks that lie."""
        random = mutation.random
        header, frames = self._valid[:20], self._split()
        for _ in range(random.choice((1, 1, 2, 5))):
            place = random.randrange(len(frames))
            what = random.randrange(6)
            if what == 0:
                frames[place] = _framed(mutation.data(frames[place][12:]))
            elif what == 1:
                frames[place] = _framed(struct.pack("<dHI", mutation.number(), random.choice((0, 1, 22, 0xFFFF)), random.choice((0, 5, 13, 2**31, 2**32 - 1))) + frames[place][26:])
            elif what == 2:
                frames[place] = _framed(struct.pack("<dHI", 1.7e9, 3, 3) + random.choice((b"\xff\xfe\xfdkey", b"abc\xff\xff\xff", b"a b", b"")) + b"value")
            elif what == 3:
                frames[place] = b"\xeeREC" + struct.pack("<II", random.choice((0, 13, 14, 2**25, 2**32 - 1)), random.getrandbits(32)) + frames[place][12:]
            elif what == 4:
                frames[place:place] = [frames[place]] * random.choice((1, 5, 100))
            else:
                frames[place] = b"\xeeREC" * random.choice((1, 100, 5000))
        if random.random() < 0.3:
            header = struct.pack("<8sQ", random.choice((b"EESPOOL2", b"EESPOOL1")), random.choice((0, 20, 33, 2**63, 2**64 - 1)))
            header += struct.pack("<I", zlib.crc32(header) if random.random() < 0.7 else 0)
        return header + b"".join(frames)

    def _split(self) -> list[bytes]:
        size = (len(self._valid) - 20) // WAITING
        return [self._valid[20 + place * size : 20 + (place + 1) * size] for place in range(WAITING)]

    def _written(self, records: list[SpooledRecord]) -> bytes:
        spool = SpoolFile(self._path)
        spool.append(records)
        data = self._path.read_bytes()
        spool.close()
        self._path.unlink()
        return data


def _framed(body: bytes) -> bytes:
    return b"\xeeREC" + struct.pack("<II", len(body), zlib.crc32(body)) + body


class Rings:
    """A ring of a worker with steps and an error, mutated; then opened and read as the agent does."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "ring"
        writer = RingWriter.create(self._path, worker="run1/node-a/0", epoch=1)
        column = writer.column("my_loss")
        for number in range(40):
            writer.append(number, 10**9 * (number + 1), {0: 0.5, column: 3.0})
        writer.write_error({"type": "ValueError", "message": "x", "traceback": "y", "step": 3})
        writer.close()
        self._valid = self._path.read_bytes()
        self._path.unlink()
        self._refused = self._told = 0

    def take(self, random: Random) -> None:
        self._path.write_bytes(self._mutated(Mutation(random)))
        try:
            with RingReader.open(self._path) as reader:
                self._look(reader)
        except RingError as error:
            self._refused += 1
            self._told += bool(str(error))

    def tally(self) -> Tally:
        return Tally(self._refused, self._told)

    @staticmethod
    def _look(reader: RingReader) -> None:
        header, now = reader.header, reader.now()
        steps = reader.steps(-1)
        error = reader.error()
        if len(steps) > ring_buffer.SLOTS:
            raise Fault(f"{len(steps)} steps out of {ring_buffer.SLOTS} slots")
        if not isinstance(header.worker, str) or not isinstance(now.phase, str) or not isinstance(error, dict | None):
            raise Fault("a ring was read as something else")
        reader.alive()

    def _mutated(self, mutation: Mutation) -> bytes:
        random = mutation.random
        data = bytearray(self._valid)
        for _ in range(random.choice((1, 1, 2, 4))):
            what = random.randrange(6)
            if what == 0:  # a word of the header, of the names or of the moment
                struct.pack_into("<q", data, random.choice((8 * random.randrange(9), ring_buffer.NOW + 8 * random.randrange(8), 512)), _word(random))
            elif what == 1:
                place = random.choice((128, 520, 576)) + random.randrange(40)
                data[place : place + 4] = random.choice((b"\xff\xfe\xfd\xfc", b"\0\0\0\0", b"a\0b\0"))
            elif what == 2:
                self._slot(data, random)
            elif what == 3:
                self._error(data, mutation)
            elif what == 4:
                return bytes(data[: random.choice((0, 7, 71, 4095, 4096, 8200, 16384, len(data) - 1, random.randrange(len(data)))) or 1])
            else:
                place = random.randrange(len(data))
                data[place] ^= 1 << random.randrange(8)
        return bytes(data)

    @staticmethod
    def _slot(data: bytearray, random: Random) -> None:
        """A record with odd numbers and a right checksum."""
        ordinal, width = random.choice((1, 7, 40)), random.choice((0, 1, 13, 56, 57))
        number, epoch, end, mask = (_word(random) for _ in range(4))
        body = struct.pack(f"<5q{width}d", number, epoch, end, mask, width, *(random.choice(FLOATS) for _ in range(width)))
        at = ring_buffer.SLOTS_AT + (ordinal % ring_buffer.SLOTS) * ring_buffer.SLOT_BYTES
        data[at + 16 : at + 16 + len(body)] = body
        struct.pack_into("<2q", data, at, ordinal, zlib.crc32(body, ordinal & 0xFFFFFFFF))

    @staticmethod
    def _error(data: bytearray, mutation: Mutation) -> None:
        text = mutation.encoded({"type": "ValueError", "message": "x", "traceback": "y", "step": 3, "notes": ["a"]}, "json")[: ring_buffer.SLOTS_AT - ring_buffer.ERROR_AT - 16]
        at = ring_buffer.ERROR_AT
        data[at + 16 : at + 16 + len(text)] = text
        struct.pack_into("<2q", data, at, len(text), zlib.crc32(text))


def _word(random: Random) -> int:
    return random.choice((0, 1, -1, 56, 57, 58, 512, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63), random.randrange(2**63)))


@contextmanager
def spools(folder: Path) -> Iterator[Spools]:
    """In the folder, which is best on a disk of memory."""
    yield Spools(folder)


@contextmanager
def rings(folder: Path) -> Iterator[Rings]:
    """In the folder."""
    yield Rings(folder)


TARGETS = (
    Target("spool", "spools of agents and launchers: opened, read and given to a stream", spools),
    Target("ring", "rings of workers: opened and read as the agent does", rings),
)
