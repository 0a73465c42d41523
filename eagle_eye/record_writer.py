"""Who may write which record of the topic of observations, where records are signed (`Message.writer`)."""

from .access.certificates import CertificateKind, Identity
from .errors import RecordRefused
from .stream import Message
from .types import Event, Layout, SchemaRecord
from .wire import RecordReader, Sealed, SealedBatch


def read_record(reader: RecordReader, message: Message) -> Sealed:
    """The record of a message. Raises WireError for what is none, RecordRefused for one that its writer may not write."""
    record = reader.read(message.value)
    if message.writer is not None and message.writer.kind is not CertificateKind.SERVER:
        _check(message.writer, record)
    return record


def _check(writer: Identity, record: Sealed) -> None:
    """Raises RecordRefused unless a node speaks for itself, and for a job of its tenants."""
    if isinstance(record, SchemaRecord):  # its id is a digest of what it says
        return
    spoken_for = _spoken_for(record)
    if spoken_for is None:
        raise RecordRefused(f"{writer} may not write a {type(record).__name__}: servers alone do")
    node, job = spoken_for
    if node != writer.name:
        raise RecordRefused(f"the record is signed by {writer}, and speaks for node {node}")
    if job not in ("", f"idle/{node}") and not writer.speaks_for(job):
        raise RecordRefused(f"{writer} may not speak for {job}")


def _spoken_for(record: Sealed) -> tuple[str, str] | None:
    """(node, job) that a record speaks for; None of what nodes do not write."""
    match record:
        case SealedBatch(header=header):
            return header.node, header.job
        case Event():
            return record.node, record.job
        case Layout():
            return record.coordinator, record.job
        case _:
            return None
