"""The collective that a worker is in, by torch's flight recorder: it answers even while the main thread hangs with the interpreter's lock held."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from eagle_eye.training import live_flight_recorder

from .collective_calls import COALESCED, Call, call_of

ANSWER_S = 0.3
"""A process that is stopped never answers."""
PARTS, LONGEST_TEXT = 4, 400
"""Of a group's name, and characters of a text: torch gives a name and a description."""
CALLS_BEFORE, CALLS_AFTER = 2, 5
"""Collectives of the group whose calls are told beside that one."""


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
    calls: str = ""
    """What the rank passed to it and to some before and after it (`told_calls`)."""
    size: int = 0
    """Ranks of the group; 0: the recorder does not tell, as gloo's."""

    def __str__(self) -> str:
        return f"{self.operation} {self.number} of group {self.group}"


def last_collective(recorder: str) -> LastCollective | None:
    """Ask the recorder at that path; None where there is none, or nothing is recorded, as of an elastic worker's own exchange."""
    record = live_flight_recorder.dump(recorder, ANSWER_S)
    return of_record(record) if record is not None else None


def of_record(record: Mapping[str, Any]) -> LastCollective | None:
    """From torch's JSON (dump version 2.10)."""
    try:
        entries = [entry for entry in record.get("entries", ()) if isinstance(entry, dict)]
        found = [(_of_entry(entry), entry) for entry in entries if not entry.get("is_p2p")]
        newest = next((each for each in found if each[0].pending), found[-1] if found else None)
        return newest[0]._replace(calls=_calls(newest[0], newest[1], entries), size=_size(record, newest[1]["process_group"][0])) if newest is not None else None
    except (KeyError, TypeError, ValueError, OverflowError):  # another version of torch, or no torch at all
        return None


def _of_entry(entry: Mapping[str, Any]) -> LastCollective:
    group = " ".join(str(part) for part in entry["process_group"][:PARTS])[:LONGEST_TEXT]
    over = bool(entry.get("retired")) or entry.get("state") == "completed"  # gloo's stay "scheduled"
    backend, _, operation = str(entry["profiling_name"]).rpartition(":")
    counted = f" {backend[:LONGEST_TEXT]}" if backend not in ("", "gloo") else ""
    number = int(entry["collective_seq_id"])
    if abs(number) >= 1 << 63:
        raise ValueError("no torch counts so far")
    return LastCollective(group + counted, number, operation[:LONGEST_TEXT], not over)


def _size(record: Mapping[str, Any], group: object) -> int:
    configured = record.get("pg_config")
    told = configured.get(group) if isinstance(configured, dict) else None
    ranks = told.get("ranks") if isinstance(told, dict) else None
    return ranks.count(",") + 1 if isinstance(ranks, str) and ranks.strip("[] ") else 0


def _calls(found: LastCollective, entry: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> str:
    """Of its group and backend, around it; "" where the group's ranks batch messages and so count differently."""
    group, backend = entry["process_group"], str(entry["profiling_name"]).rpartition(":")[0]
    of_group = [each for each in entries if each["process_group"] == group and str(each["profiling_name"]).rpartition(":")[0] == backend]
    collectives = [each for each in of_group if not each.get("is_p2p")]
    if len(collectives) < len(of_group) and any(str(each["profiling_name"]).endswith(f":{COALESCED}") for each in collectives):
        return ""
    numbers = Counter(int(each["collective_seq_id"]) for each in collectives)
    near = range(found.number - CALLS_BEFORE, found.number + CALLS_AFTER + 1)
    return told_calls({number: _call(each) for each in collectives if (number := int(each["collective_seq_id"])) in near and numbers[number] == 1})


def _call(entry: Mapping[str, Any]) -> Call:
    operation = str(entry["profiling_name"]).rpartition(":")[2]
    return call_of(operation, (entry.get("input_sizes"), entry.get("input_dtypes")), (entry.get("output_sizes"), entry.get("output_dtypes")))


def told_calls(calls: Mapping[int, Call]) -> str:
    """Number → call, as an attribute of an event: `7 all_reduce 1024 1024 Float; 8 barrier -1 -1`."""
    return "; ".join(f"{number} {call.operation.replace(' ', '_').replace(';', '_')} {call.sent} {call.received} {call.types.replace(';', '_')}".rstrip() for number, call in sorted(calls.items()))


def calls_told(text: str) -> dict[int, Call]:
    """The same back again; {} for what is no such text."""
    try:
        parts = [each.split(" ", 4) for each in text.split("; ") if each]
        return {int(number): Call(operation, int(sent), int(received), " ".join(types)) for number, operation, sent, received, *types in parts}
    except ValueError:
        return {}
