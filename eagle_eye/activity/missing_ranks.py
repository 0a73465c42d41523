"""Who did not come to a collective, from the dumps of a job's ranks (torch's flight recorder).

The ranks of a process group count its collectives alike, and each enqueues them in the same order. So of the ranks of a group those
are behind that have enqueued the fewest; whoever is behind in a group kept the others of it waiting, unless it waits itself
in another group for somebody who is further behind. Followed to its end, that names those who wait for nobody.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .flight_dump import Collective, FlightDump


@dataclass(frozen=True, slots=True)
class Wait:
    """Ranks of a group that wait in a collective for others that have not entered it."""

    group: str
    description: str
    operation: str
    number: int
    waiting: tuple[int, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MissingRanks:
    """The verdict over the dumps of a job."""

    ranks: tuple[int, ...]
    """Whom the others wait for, and who wait for nobody; where all that have a dump wait at the same place, those of their groups that have none. () = nobody was found."""
    waits: tuple[Wait, ...]
    without_dump: tuple[int, ...]
    """Ranks that groups name and that left no dump: they may be gone, or hold the interpreter's lock."""


class _Ring(NamedTuple):
    """What a rank has of a group, messages from one to one aside."""

    newest: int = 0
    """The newest collective that the rank has enqueued; what left the ring is older than what is in it."""
    oldest_pending: Collective | None = None


_Rings = Mapping[int, Mapping[str, _Ring]]
"""Rank → group."""


def missing_ranks(dumps: Iterable[FlightDump]) -> MissingRanks:
    """Needs the dumps of as many ranks as there are; each rank once, the last one counts."""
    by_rank = {dump.rank: dump for dump in dumps if dump.rank >= 0}
    rings = {rank: _rings(dump) for rank, dump in by_rank.items()}
    waits = tuple(sorted(_waits(by_rank, rings), key=lambda wait: (wait.group, wait.number)))
    waiting_for: dict[int, set[int]] = {}
    for wait in waits:
        for rank in wait.waiting:
            waiting_for.setdefault(rank, set()).update(wait.missing)
    blamed = {rank for missing in waiting_for.values() for rank in missing}
    known = {rank for dump in by_rank.values() for group in dump.groups.values() for rank in group.ranks}
    silent = known - by_rank.keys()
    ranks = {rank for rank in blamed if rank not in waiting_for} or _deepest(waits) or _silent_of_groups_that_wait(by_rank, rings, silent)
    return MissingRanks(tuple(sorted(ranks)), waits, tuple(sorted(silent)))


def _waits(by_rank: Mapping[int, FlightDump], rings: _Rings) -> Iterator[Wait]:
    """Of each group with a rank that waits in a collective which another one has not entered."""
    for name, members in _members(by_rank, rings).items():
        reached = {rank: rings[rank].get(name, _Ring()).newest for rank in members}
        pending = {rank: oldest for rank in members if (oldest := rings[rank].get(name, _Ring()).oldest_pending) is not None}
        for number in sorted({entry.number for entry in pending.values()}):
            waiting = tuple(sorted(rank for rank, entry in pending.items() if entry.number == number))
            missing = tuple(sorted(rank for rank in members if reached[rank] < number))
            if missing:
                yield Wait(name, _description(by_rank, name), pending[waiting[0]].operation, number, waiting, missing)


def _members(by_rank: Mapping[int, FlightDump], rings: _Rings) -> dict[str, list[int]]:
    """Group → ranks with a dump that belong to it: by its configuration, else by who used it."""
    members: dict[str, list[int]] = {}
    for rank, dump in by_rank.items():
        for name in {*dump.groups, *rings[rank]}:
            group = dump.groups.get(name)
            if group is None or not group.ranks or rank in group.ranks:
                members.setdefault(name, []).append(rank)
    return members


def _rings(dump: FlightDump) -> dict[str, _Ring]:
    """Group → what the rank has of it, of each group that it used."""
    rings: dict[str, _Ring] = {}
    for entry in dump.collectives:
        ring = rings.setdefault(entry.group, _Ring())
        if not entry.peer_to_peer:
            rings[entry.group] = _Ring(max(ring.newest, entry.number), ring.oldest_pending or (None if entry.over else entry))
    return rings


def _description(by_rank: Mapping[int, FlightDump], name: str) -> str:
    return next((dump.groups[name].description for dump in by_rank.values() if name in dump.groups), "")


def _deepest(waits: Iterable[Wait]) -> set[int]:
    """Where everybody waits for somebody, those that most ranks wait for."""
    counts: dict[int, int] = {}
    for wait in waits:
        for rank in wait.missing:
            counts[rank] = counts.get(rank, 0) + len(wait.waiting)
    most = max(counts.values(), default=0)
    return {rank for rank, count in counts.items() if count == most}


def _silent_of_groups_that_wait(by_rank: Mapping[int, FlightDump], rings: _Rings, silent: set[int]) -> set[int]:
    """Who left no dump, and belongs to a group that waits."""
    if not silent:
        return set()
    return {
        rank
        for waiting, dump in by_rank.items()
        for name, group in dump.groups.items()
        if rings[waiting].get(name, _Ring()).oldest_pending is not None
        for rank in group.ranks
        if rank in silent
    }
