"""What a worker has written of its process groups (eagle_eye/training/group_progress.py), read by the agent: nothing in it is believed that cannot be."""

from pathlib import Path
from typing import Annotated

import msgspec

from collectors.agent.job_directory import LocalJob, LocalWorker, may_name, trusted
from eagle_eye.parallel_ranks import GroupPlace
from eagle_eye.regular_file import read_owned
from eagle_eye.training.group_progress import path_beside

LARGEST = 1 << 20
"""Bytes; a group takes 200."""
MOST_GROUPS = 4096
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Text = Annotated[str, msgspec.Meta(max_length=256)]


class BackendProgress(msgspec.Struct, frozen=True):
    """How far a backend of a group is, in collectives."""

    begun: _Count
    over: _Count
    pending_ns: _Count
    """For how long the oldest that is not over was seen; 0: all are."""


class GroupOfWorker(msgspec.Struct, frozen=True):
    """One of a worker's groups."""

    name: _Text
    description: _Text
    position: _Count
    size: _Count
    members: _Text
    """Digest of its global ranks: the same at all of them."""
    backends: Annotated[dict[_Text, BackendProgress], msgspec.Meta(max_length=16)]

    @property
    def place(self) -> GroupPlace:
        return GroupPlace(self.description, self.position, self.size)


class GroupRecord(msgspec.Struct, frozen=True):
    """All of a worker's groups at one moment."""

    version: int
    pid: int
    monotonic_ns: _Count
    groups: Annotated[tuple[GroupOfWorker, ...], msgspec.Meta(max_length=MOST_GROUPS)]


_decoder = msgspec.json.Decoder(GroupRecord)


def read_groups(path: Path) -> tuple[GroupRecord, int] | None:
    """The record, and the user whose file it is; None while there is none. Raises ValueError for what is no such record, and OSError."""
    try:
        data, owner = read_owned(path, LARGEST)
    except FileNotFoundError:
        return None
    record = _decoder.decode(data)  # msgspec's errors are ValueErrors
    if record.version != 1:
        raise ValueError(f"version {record.version} is not known: use the same eagle-eye in the trainer and on the node")
    return record, owner


def groups_of_worker(job: LocalJob, worker: LocalWorker) -> GroupRecord | None:
    """What a worker has written, however old; None while there is nothing, or it is another user's. Raises ValueError and OSError, as `read_groups`."""
    if not worker.socket or not may_name(job.user, worker.socket):
        return None
    found = read_groups(Path(path_beside(worker.socket)))
    return found[0] if found is not None and (trusted(job.user) or found[1] == job.user) else None
