"""The raw records around an incident, from ten minutes before it to its end, in a file that a replay can take.

    <directory>/<incident>.records    magic, then (length, msgpack of a Message) for each record, in the order read
"""

import errno
import logging
import os
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from eagle_eye.directory_limit import delete_oldest
from eagle_eye.errors import UNREADABLE, StreamError, WireError
from eagle_eye.stream import FINDINGS, INCIDENTS, OBSERVATIONS, Message, Stream
from eagle_eye.stream.start_offset import offset_before
from eagle_eye.types import Finding, Incident, digest_of

BEFORE_S = 600.0
COPIED_AT_ONCE = 4096
"""Records copied per incident and tick, so that evaluation never waits long for the disk."""
LIMIT_BYTES = 1 << 30
"""A file grows to at most so many bytes."""
LONGEST = 64 << 20
"""Bytes of one message: more than a stream takes."""
FILES_OPEN = 32
"""Incidents recorded at the same time; further ones are not recorded."""
RECORDS_BYTES = 8 << 30
"""Of all files of a directory, where nothing else is configured."""
ROOM_EVERY_BYTES = 64 << 20
"""Written between two looks at how much there is in the directory."""
FREE_BYTES = 256 << 20
"""Of the disk, left to the stream and the ledger, which need it more."""
MAGIC = b"eagle-eye records 1\n"
_LENGTH = struct.Struct("<I")
_SAFE = re.compile(r"[A-Za-z0-9._-]{1,100}")
_log = logging.getLogger(__name__)


@dataclass
class _Recording:
    """One incident's file."""

    job: str
    path: Path
    file: BinaryIO
    offset: int
    """Of the next observation to copy."""
    end: int | None = None
    """Where the incident ended; None while it is open."""


class IncidentRecorder:
    """Copies records out of one partition while incidents are open."""

    def __init__(self, stream: Stream, partition: int, directory: Path, max_bytes: int = RECORDS_BYTES) -> None:
        """max_bytes: of the directory, which the recorders of all partitions share; the oldest files beyond it are deleted."""
        self._stream = stream
        self._partition = partition
        self._directory = directory
        self._max_bytes = max_bytes
        self._written = 0
        """Bytes since the last look at the directory."""
        self._recordings: dict[str, _Recording] = {}

    def resume(self, incidents: Sequence[Incident], offset: int) -> None:
        """Continue the files of incidents that an earlier owner left open."""
        try:
            for incident in incidents:
                path = record_path(self._directory, incident.id)
                if path.is_file():
                    self._reopen(incident, path, offset)
                else:
                    self._open(incident, offset)
        except (OSError, WireError) as error:
            self._give_up(error)

    def record(self, incidents: Sequence[Incident], findings: Sequence[Finding], offset: int) -> None:
        """Start and end recordings, and write the findings and incidents of a recorded job into its file.

        A file that cannot be written is closed and logged: evaluation goes on.
        """
        try:
            for incident in incidents:
                if incident.active and incident.id not in self._recordings and len(self._recordings) < FILES_OPEN:
                    self._open(incident, offset)
            for recording in self._recordings.values():
                judged: list[tuple[str, Incident | Finding]] = [(INCIDENTS, each) for each in incidents]
                judged += [(FINDINGS, each) for each in findings]
                for topic, each in judged:
                    if each.job == recording.job:
                        _write(recording.file, Message(topic, 0, offset, recording.job, msgspec.json.encode(each), each.time))
        except OSError as error:
            self._give_up(error)
        for incident in incidents:
            if not incident.active and incident.id in self._recordings:
                self._recordings[incident.id].end = offset

    def copy(self, offset: int) -> None:
        """Copy the records before `offset`, at most COPIED_AT_ONCE per incident and call."""
        try:
            if self._recordings:
                self._keep_free()
            for incident, recording in list(self._recordings.items()):
                self._copy(recording, offset if recording.end is None else recording.end)
                if recording.end is not None and recording.offset >= recording.end:
                    del self._recordings[incident]
                    recording.file.close()
        except StreamError as error:
            _log.warning("the records around incidents are copied later: %s", error)
        except OSError as error:
            self._give_up(error)

    def reset(self, offset: int) -> None:
        """The stream was reset: continue at `offset`; files of ended incidents are closed as they are."""
        for incident, recording in list(self._recordings.items()):
            recording.offset = offset
            if recording.end is not None:
                del self._recordings[incident]
                recording.file.close()

    def close(self) -> None:
        """Close the files; records not yet copied stay missing."""
        for recording in self._recordings.values():
            recording.file.close()
        self._recordings.clear()

    def _open(self, incident: Incident, offset: int) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._keep_free()
        self._make_room()
        path = record_path(self._directory, incident.id)
        file = path.open("wb")
        file.write(MAGIC)
        begin = offset_before(self._stream, OBSERVATIONS, self._partition, offset, BEFORE_S)
        self._recordings[incident.id] = _Recording(incident.job, path, file, begin)

    def _reopen(self, incident: Incident, path: Path, end: int) -> None:
        """After the last whole record; a torn one is cut off."""
        offset, length = 0, len(MAGIC)
        for message in read_records(path):
            length += _LENGTH.size + len(msgspec.msgpack.encode(message))
            if message.topic == OBSERVATIONS:
                offset = message.offset + 1
        if not offset:
            offset = offset_before(self._stream, OBSERVATIONS, self._partition, end, BEFORE_S)
        file = path.open("r+b")
        file.truncate(length)
        file.seek(length)
        self._recordings[incident.id] = _Recording(incident.job, path, file, offset)

    def _keep_free(self) -> None:
        """Raises OSError where the disk has less left than others need."""
        disk = os.statvfs(self._directory)
        free = disk.f_bavail * disk.f_frsize
        if free < FREE_BYTES:
            raise OSError(errno.ENOSPC, f"{free >> 20} MiB are free, and the last {FREE_BYTES >> 20} are left to the stream and the ledger", str(self._directory))

    def _make_room(self) -> None:
        """Delete the oldest files beyond the limit: never one that is being written here."""
        self._written = 0
        delete_oldest(self._directory, "*.records", self._max_bytes, {recording.path for recording in self._recordings.values()})

    def _copy(self, recording: _Recording, end: int) -> None:
        messages = self._stream.read(OBSERVATIONS, self._partition, recording.offset, COPIED_AT_ONCE)
        for message in messages:
            if message.offset >= end:
                break
            recording.offset = message.offset + 1
            if self._belongs(message, recording.job) and recording.file.tell() < LIMIT_BYTES:
                self._written += _write(recording.file, message)
        else:
            if not messages:
                recording.offset = end
        recording.file.flush()
        if self._written >= ROOM_EVERY_BYTES:
            self._make_room()

    def _belongs(self, message: Message, job: str) -> bool:
        """The job's own records, and those for all jobs (marks, schemas, configuration), whose key is no job's."""
        return message.key == job or "/" not in message.key

    def _give_up(self, error: Exception) -> None:
        _log.warning("the records around %s cannot be recorded: %s", ", ".join(self._recordings) or "an incident", error)
        self.close()


def record_path(directory: Path, incident: str) -> Path:
    """Path of the records around an incident; an id that is no plain file name is replaced by its digest."""
    return directory / f"{incident if _SAFE.fullmatch(incident) else digest_of(incident)}.records"


def read_records(path: Path) -> Iterator[Message]:
    """The messages in a file, of the topics of observations, findings and incidents. Raises WireError.

    A file whose writer was killed ends with its last whole record.
    """
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise WireError(f"{path} does not begin as a file of records does; give one of records/ or a live topic")
        decoder = msgspec.msgpack.Decoder(Message)
        while len(length := file.read(_LENGTH.size)) == _LENGTH.size:
            size = _LENGTH.unpack(length)[0]
            if size > LONGEST:
                return
            try:
                yield decoder.decode(file.read(size))
            except UNREADABLE:
                return


def write_records(path: Path, messages: Iterable[Message]) -> None:
    """Write a file of records in the recorder's format."""
    with path.open("wb") as file:
        file.write(MAGIC)
        for message in messages:
            _write(file, message)


def _write(file: BinaryIO, message: Message) -> int:
    """How many bytes were written."""
    data = msgspec.msgpack.encode(message)
    return file.write(_LENGTH.pack(len(data)) + data)
