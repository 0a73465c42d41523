"""Signatures of records: who wrote one, and when it was appended. The format is described in docs/wire.md.

    record | subject | incarnation (12) | number (12) | time (8) | length of the subject (1) | MAGIC (4) | tag (16)

A tag is AES-256-GMAC (NIST SP 800-38D) over all that stands before it. The key is derived from the writer's key, a random incarnation of its process, and
the topic and key under which the record lies; the nonce is the number of the record in that incarnation, so no key signs two records with one
nonce. `python -m benchmarks.faults.signatures` measures what it costs to check ten thousand nodes' records each second.
"""

import hashlib
import itertools
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from eagle_eye.access.certificates import CertificateKind
from eagle_eye.access.stream_keys import StreamKey, StreamWriter
from eagle_eye.clock import Clock

from . import OBSERVATIONS, REFUSED, Message

MAGIC = b"\xc1ES1"
"""0xC1 is never used in msgpack."""
INCARNATION_BYTES = NUMBER_BYTES = 12
TAG_BYTES = 16
PLACES_KEPT = 1 << 17
"""Keys that are kept, one for each incarnation, topic and key; the oldest is derived anew."""
_TAIL = struct.Struct(f"<{NUMBER_BYTES}sdB{len(MAGIC)}s{TAG_BYTES}s")
_NUMBER_AT = _TAIL.size
"""From the end."""
_MAGIC_AT = -TAG_BYTES - len(MAGIC)
_INCARNATION_AT = _NUMBER_AT + INCARNATION_BYTES
_Known = tuple[AESGCM, StreamWriter]
_Place = TypeVar("_Place")
_Kept = TypeVar("_Kept")


class Signer:
    """Signs what one process appends. Thread-safe."""

    def __init__(self, key: StreamKey, incarnation: bytes, clock: Clock) -> None:
        """`incarnation`: INCARNATION_BYTES random bytes of this process."""
        self._key = key.key
        self._subject = key.writer.subject.encode()
        self._incarnation = incarnation
        self._numbers = itertools.count(1)
        self._clock = clock
        self._places: OrderedDict[tuple[str, str], AESGCM] = OrderedDict()
        self._lock = threading.Lock()

    def sign(self, topic: str, key: str, value: bytes) -> bytes:
        """The record with its signature."""
        number = next(self._numbers).to_bytes(NUMBER_BYTES, "little")
        head = struct.pack(f"<{NUMBER_BYTES}sdB{len(MAGIC)}s", number, self._clock.now(), len(self._subject), MAGIC)
        covered = b"".join((value, self._subject, self._incarnation, head))
        return covered + self._cipher(topic, key).encrypt(number, b"", covered)

    def _cipher(self, topic: str, key: str) -> AESGCM:
        cipher = self._places.get((topic, key))
        if cipher is None:
            cipher = AESGCM(_key_of(self._key, self._incarnation, topic, key))
            with self._lock:
                _keep(self._places, (topic, key), cipher)
        return cipher


class SignatureCheck:
    """Tells whose records are what they say. Thread-safe.

    A record that is refused keeps its place, and its value begins with REFUSED.
    """

    def __init__(self, root: bytes, *, late_s: float, unsigned: bool, refused: Callable[[Message, str], None]) -> None:
        """late_s: a record may be appended so long after it was signed; beyond, it was recorded and is written again.

        unsigned: take records without a signature, as long as not all nodes have their keys. refused: called with each record that is
        refused and the reason.
        """
        self._root = root
        self._late_s = late_s
        self._unsigned = unsigned
        self._refused = refused
        self._places: OrderedDict[tuple[str, str, bytes], _Known] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, messages: Iterable[Message]) -> list[Message]:
        """Each record without its signature, with its writer."""
        known, unpack, tail, late_s, new = self._places.get, _TAIL.unpack_from, _TAIL.size, self._late_s, tuple.__new__
        checked = []
        for message in messages:  # ten thousand times a second: what is right takes no call that it does not need
            topic, partition, offset, key, value, time, _ = message
            if value[_MAGIC_AT:-TAG_BYTES] != MAGIC or len(value) < _INCARNATION_AT:
                checked.append(message if self._unsigned else self._refuse(message, "it carries no signature"))
                continue
            number, signed_at, length, _, tag = unpack(value, len(value) - tail)
            end = len(value) - _INCARNATION_AT - length
            found = known((topic, key, value[end:-_NUMBER_AT] if end >= 0 else b""))
            if found is None:
                checked.append(self._first(message, end))
                continue
            cipher, writer = found
            try:
                cipher.decrypt(number, tag, value[:-TAG_BYTES])
            except InvalidTag:
                checked.append(self._refuse(message, _not_of(writer)))
                continue
            if time >= writer.ends or not time - signed_at <= late_s:
                checked.append(self._refuse(message, self._objection(topic, time, signed_at, writer)))
                continue
            checked.append(new(Message, (topic, partition, offset, key, value[:end], time, writer.identity)))
        return checked

    def _first(self, message: Message, end: int) -> Message:
        """A record of a incarnation, topic and key that is not known yet. Only one whose signature is right is kept: what is forged fills no memory."""
        topic, _, _, key, value, time, _ = message
        number, signed_at, _, _, tag = _TAIL.unpack_from(value, len(value) - _TAIL.size)
        place = (topic, key, value[end:-_NUMBER_AT] if end >= 0 else b"")
        derived = self._derived(*place)
        if derived is None:
            return self._refuse(message, "its signature names no writer")
        cipher, writer = derived
        try:
            cipher.decrypt(number, tag, value[:-TAG_BYTES])
        except InvalidTag:
            return self._refuse(message, _not_of(writer))
        if why := self._objection(topic, time, signed_at, writer):
            return self._refuse(message, why)
        with self._lock:
            _keep(self._places, place, derived)
        return message._replace(value=value[:end], writer=writer.identity)

    def _objection(self, topic: str, time: float, signed_at: float, writer: StreamWriter) -> str:
        if topic != OBSERVATIONS and writer.identity.kind is not CertificateKind.SERVER:
            return f"{writer.identity} may not write to {topic}: servers alone do"
        if time >= writer.ends:
            return f"the key of {writer.identity} has ended: issue it again with `eagle-eye certs issue`"
        if not time - signed_at <= self._late_s:
            return f"{writer.identity} signed it more than {self._late_s:g} s before it was appended: it is written again, or that machine's clock is behind"
        return ""

    def _derived(self, topic: str, key: str, subject_incarnation: bytes) -> _Known | None:
        subject, incarnation = subject_incarnation[:-INCARNATION_BYTES], subject_incarnation[-INCARNATION_BYTES:]
        writer = StreamWriter.of(subject.decode(errors="replace"))
        if writer is None or writer.subject.encode() != subject:
            return None
        return AESGCM(_key_of(writer.key(self._root), incarnation, topic, key)), writer

    def _refuse(self, message: Message, why: str) -> Message:
        self._refused(message, why)
        return message._replace(value=b"".join((REFUSED, why.encode(), b"\n", message.value)))


def _not_of(writer: StreamWriter) -> str:
    return f"its signature is not that of {writer.identity}, or is of another topic or key"


def unsigned_value(value: bytes) -> bytes:
    """The record without its signature, whoever wrote it; one that has none as it is."""
    if value[_MAGIC_AT:-TAG_BYTES] != MAGIC or len(value) < _INCARNATION_AT:
        return value
    end = len(value) - _INCARNATION_AT - _TAIL.unpack_from(value, len(value) - _TAIL.size)[2]
    return value[:end] if end >= 0 else value


def _key_of(key: bytes, incarnation: bytes, topic: str, place: str) -> bytes:
    name = topic.encode()
    return hashlib.blake2b(b"".join((incarnation, len(name).to_bytes(4, "little"), name, place.encode())), key=key, digest_size=32, person=b"eagle-eye stream").digest()


def _keep(places: OrderedDict[_Place, _Kept], place: _Place, kept: _Kept) -> None:
    places[place] = kept
    while len(places) > PLACES_KEPT:
        places.popitem(last=False)
