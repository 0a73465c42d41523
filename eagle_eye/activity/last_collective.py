"""The collective that a worker is in, by torch's flight recorder: it answers even while the main thread hangs with the interpreter's lock held."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from eagle_eye.training import live_flight_recorder

ANSWER_S = 0.3
"""A process that is stopped never answers."""
PARTS, LONGEST_TEXT = 4, 400
"""Of a group's name, and characters of a text: torch gives a name and a description."""


class LastCollective(NamedTuple):
    """The oldest collective of a rank that is not over, else its newest."""

    group: str
    """Name and description of the process group, such as `0 default_pg`: the same on all of its ranks. With the backend that counts by itself, where it is not gloo."""
    number: int
    """Within the group, from 1: the ranks of a group count alike."""
    operation: str
    """Such as `all_reduce`."""
    pending: bool
    """It has been begun and is not over."""

    def __str__(self) -> str:
        return f"{self.operation} {self.number} of group {self.group}"


def last_collective(recorder: str) -> LastCollective | None:
    """Ask the recorder at that path; None where there is none, or nothing is recorded, as of an elastic worker's own exchange."""
    record = live_flight_recorder.dump(recorder, ANSWER_S)
    return of_record(record) if record is not None else None


def of_record(record: Mapping[str, Any]) -> LastCollective | None:
    """From torch's JSON (dump version 2.10)."""
    try:
        entries = [entry for entry in record.get("entries", ()) if isinstance(entry, dict) and not entry.get("is_p2p")]
        found = [_of_entry(entry) for entry in entries]
    except (KeyError, TypeError, ValueError, OverflowError):  # another version of torch, or no torch at all
        return None
    return next((each for each in found if each.pending), found[-1] if found else None)


def _of_entry(entry: Mapping[str, Any]) -> LastCollective:
    group = " ".join(str(part) for part in entry["process_group"][:PARTS])[:LONGEST_TEXT]
    over = bool(entry.get("retired")) or entry.get("state") == "completed"  # gloo's stay "scheduled"
    backend, _, operation = str(entry["profiling_name"]).rpartition(":")
    counted = f" {backend[:LONGEST_TEXT]}" if backend not in ("", "gloo") else ""
    number = int(entry["collective_seq_id"])
    if abs(number) >= 1 << 63:
        raise ValueError("no torch counts so far")
    return LastCollective(group + counted, number, operation[:LONGEST_TEXT], not over)
