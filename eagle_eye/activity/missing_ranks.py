"""Who did not come to a collective, or called another one, from the dumps of a job's ranks (torch's flight recorder).

The ranks of a process group count its collectives alike, and each enqueues them in the same order. So of the ranks of a group those
are behind that have enqueued the fewest; whoever is behind in a group kept the others of it waiting, unless it waits itself
in another group for somebody who is further behind, or in a message (send, recv) for its peer, which does not wait in that message. Followed to its end, that
names those who wait for nobody. A rank without a dump may be waited for like any other one, where all others of the group have come.
Who calls a collective otherwise than its group (differing_calls.py) keeps those waiting that are in it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .collective_calls import COALESCED
from .differing_calls import ORDER, CallGroup, CallMismatch, CallSide, differing_calls, differing_groups
from .flight_dump import Collective, FlightDump
from .wait_origins import Waits, deepest, origins

APART_NS = 5_000_000_000
"""Who called a collective so long after another one's dump was taken proves nothing against that one; clocks of nodes differ by less."""
_MESSAGE = re.compile(r"(?:send (\d{1,7})->|recv \d{1,7}<-)(\d{1,7})\Z")


@dataclass(frozen=True, slots=True)
class Wait:
    """Ranks of a group that wait in a collective for others that have not entered it."""

    group: str
    description: str
    operation: str
    number: int
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    """() = all have come, and it does not end."""


@dataclass(frozen=True, slots=True)
class MissingRanks:
    """The verdict over the dumps of a job."""

    ranks: tuple[int, ...]
    """Whom the others wait for, and who wait for nobody. () = nobody was found."""
    waits: tuple[Wait, ...]
    without_dump: tuple[int, ...]
    """Ranks that groups name and that left no dump: they may be gone, or hold the interpreter's lock."""
    mismatches: tuple[CallMismatch, ...] = ()
    """Who called a collective otherwise than the others of its group. It is among `ranks` where somebody waits in that group for it."""
    victims: int = 0
    """Ranks that are in something which does not end, and are none of `ranks`."""
    between: tuple[tuple[int, int], ...] = ()
    """Pairs of ranks that both wait in the same message: neither is at fault for sure, the link between them may be."""


class _Ring(NamedTuple):
    """What a rank has of a group, messages from one to one aside."""

    newest: int = 0
    """The newest collective that the rank has enqueued; what left the ring is older than what is in it."""
    oldest_pending: Collective | None = None


class _Group(NamedTuple):
    """Ranks that call collectives together. Of one name are several groups where a group was split."""

    name: str
    description: str
    size: int
    """Ranks without a dump among them."""
    rings: Mapping[int, _Ring]
    """By rank, of those with a dump."""


def missing_ranks(dumps: Iterable[FlightDump]) -> MissingRanks:
    """Needs the dumps of as many ranks as there are; each rank once, the last one counts."""
    by_rank = {dump.rank: dump for dump in dumps if dump.rank >= 0}
    groups = _groups(by_rank)
    mismatches = [*differing_groups(by_rank), *_mismatches(by_rank, groups)]
    differing = {rank for found in mismatches for rank in found.ranks}
    apart = {found.group for found in mismatches}
    waits = [wait for group in groups for wait in _waits(by_rank, group) if wait.missing or wait.group not in apart]
    waits.sort(key=lambda wait: (wait.group, wait.number, wait.waiting))
    silent = {rank for dump in by_rank.values() for group in dump.groups.values() for rank in group.ranks} - by_rank.keys()
    graph = Waits.of((wait.waiting, wait.missing) for wait in waits)
    stuck = set[int]()
    for found, ranks in _pending_in(groups, mismatches):
        graph.add(ranks - set(found.ranks), found.ranks)
        stuck |= ranks
    standing = {rank for wait in waits if not wait.missing for rank in wait.waiting}
    messages = _messages(by_rank)
    met = {rank for rank, peer in messages.items() if messages.get(peer) == rank}
    for rank in messages.keys() - met:
        graph.add([rank], [messages[rank]])
    arrivals = _Arrivals(groups, by_rank, silent)
    for waiting, missing in arrivals.waits:
        graph.add(waiting, missing)
    no_fault = ((standing | stuck) - differing) | met
    ranks = origins(graph, no_fault | arrivals.victims) or origins(graph, no_fault)
    if not ranks and any(wait.missing for wait in waits) and not (stuck or standing or messages):
        ranks = deepest(Waits.of((wait.waiting, wait.missing) for wait in waits))
        mismatches += [_in_a_circle(waits, ranks)]
    pending = {rank for rank, dump in by_rank.items() if _oldest_pending(dump) is not None}
    between = tuple(sorted({(min(rank, messages[rank]), max(rank, messages[rank])) for rank in met}))
    return MissingRanks(tuple(sorted(ranks)), tuple(waits), tuple(sorted(silent)), tuple(mismatches), len(pending - ranks) if ranks or waits or stuck else 0, between)


def _groups(by_rank: Mapping[int, FlightDump]) -> list[_Group]:
    """By their configuration, else by who used them."""
    found: dict[tuple[str, tuple[int, ...]], dict[int, _Ring]] = {}
    descriptions: dict[str, str] = {}
    for rank, dump in by_rank.items():
        rings = _rings(dump)
        for name in {*dump.groups, *rings}:
            group = dump.groups.get(name)
            if group is None or not group.ranks or rank in group.ranks:
                found.setdefault((name, group.ranks if group else ()), {})[rank] = rings.get(name, _Ring())
                descriptions.setdefault(name, group.description if group else "")
    return [_Group(name, descriptions[name], len(ranks) or len(rings), rings) for (name, ranks), rings in found.items()]


def _rings(dump: FlightDump) -> dict[str, _Ring]:
    """Group → what the rank has of it, of each group that it used."""
    rings: dict[str, _Ring] = {}
    messages = {entry.group for entry in dump.collectives if entry.peer_to_peer}
    for entry in dump.collectives:
        ring = rings.setdefault(entry.group, _Ring())
        if not (entry.peer_to_peer or (entry.operation == COALESCED and entry.group in messages)):
            rings[entry.group] = _Ring(max(ring.newest, entry.number), ring.oldest_pending or (None if entry.over else entry))
    return rings


def _waits(by_rank: Mapping[int, FlightDump], group: _Group) -> Iterator[Wait]:
    """Of a group with a rank that waits in a collective which another one has not entered, or that all have entered."""
    pending = {rank: ring.oldest_pending for rank, ring in group.rings.items() if ring.oldest_pending is not None}
    for number in sorted({entry.number for entry in pending.values()}):
        waiting = tuple(sorted(rank for rank, entry in pending.items() if entry.number == number))
        first = pending[waiting[0]]
        called = min((pending[rank].created_ns for rank in waiting), default=0)
        missing = tuple(sorted(rank for rank, ring in group.rings.items() if ring.newest < number and not _taken_before(by_rank[rank], called)))
        wait = Wait(group.name, group.description, first.operation, number, waiting, missing)
        if missing or (len(waiting) == group.size > 1 and all(_stands_there(by_rank[rank], wait) for rank in waiting)):
            yield wait


def _taken_before(dump: FlightDump, called_ns: int) -> bool:
    """It was taken before the collective was called: that its rank is not in it proves nothing."""
    return 0 < dump.taken_ns < called_ns - APART_NS


def _stands_there(dump: FlightDump, wait: Wait) -> bool:
    """What the rank waits in first is that collective."""
    oldest = _oldest_pending(dump)
    return oldest is not None and (oldest.group, oldest.number, oldest.peer_to_peer) == (wait.group, wait.number, False)


def _mismatches(by_rank: Mapping[int, FlightDump], groups: Iterable[_Group]) -> Iterator[CallMismatch]:
    calls = {number: call for dump in by_rank.values() for number, call in dump.calls.items()}
    for group in groups:
        for backend in sorted({key[1] for rank in group.rings for key in by_rank[rank].rings if key[0] == group.name}):
            rings = {rank: ring for rank in group.rings if (ring := by_rank[rank].rings.get((group.name, backend))) is not None}
            yield from differing_calls(CallGroup(group.name, group.description, group.size, rings), calls)


def _pending_in(groups: Iterable[_Group], mismatches: Iterable[CallMismatch]) -> Iterator[tuple[CallMismatch, set[int]]]:
    """Each mismatch that does not end, and the ranks that are in it, or in a later collective of that group."""
    for found in mismatches:
        called = {rank for side in found.sides for rank in side.ranks}
        for group in groups:
            if group.name == found.group and called & group.rings.keys():
                ranks = {rank for rank, ring in group.rings.items() if ring.oldest_pending is not None and ring.oldest_pending.number >= found.number}
                if ranks:
                    yield found, ranks


def _oldest_pending(dump: FlightDump) -> Collective | None:
    """What the rank waits in before all else."""
    return next((entry for entry in dump.collectives if not entry.over), None)


def _messages(by_rank: Mapping[int, FlightDump]) -> dict[int, int]:
    """Rank → with whom it exchanges a message, of those that wait in one before all else: what is queued behind comes later."""
    found: dict[int, int] = {}
    for rank, dump in by_rank.items():
        oldest = _oldest_pending(dump)
        told = _MESSAGE.match(oldest.operation) if oldest is not None and oldest.peer_to_peer else None
        if oldest is not None and told is not None:
            members: Sequence[int] = dump.groups[oldest.group].ranks if oldest.group in dump.groups else ()
            place = int(told[2])
            peer = members[place] if place < len(members) else place
            if peer != rank:
                found[rank] = peer
    return found


class _Arrivals:
    """Who waits, before all else, in a collective to which all others have come that left a dump, and which none of them has left: for whom?"""

    def __init__(self, groups: Iterable[_Group], by_rank: Mapping[int, FlightDump], silent: set[int]) -> None:
        self.waits: list[tuple[set[int], set[int]]] = []
        """For those who have enqueued it behind something else that they wait in, and for those of its group without a dump."""
        self.victims = set[int]()
        """Without a dump, of a group in which somebody is awaited that left one: it may wait there, too."""
        for group in groups:
            without = {rank for of in group.rings if group.name in by_rank[of].groups for rank in by_rank[of].groups[group.name].ranks} & silent
            first = {rank: ring.oldest_pending.number for rank, ring in group.rings.items() if ring.oldest_pending is not None and _oldest_pending(by_rank[rank]) is ring.oldest_pending}
            for number in set(first.values()):
                if any(ring.newest < number for ring in group.rings.values()):
                    self.victims |= without
                elif all(ring.oldest_pending is not None and ring.oldest_pending.number <= number for ring in group.rings.values()):
                    there = {rank for rank, waits_at in first.items() if waits_at == number}
                    self.waits.append((there, (group.rings.keys() - there) | without))


def _in_a_circle(waits: Sequence[Wait], ranks: set[int]) -> CallMismatch:
    """All wait for one another: they called the collectives of different groups in another order."""
    sides = tuple(CallSide(wait.waiting, f"{wait.operation} {wait.number} of {wait.group} {wait.description}".rstrip()) for wait in waits if wait.missing)
    first = next(wait for wait in waits if wait.missing)
    return CallMismatch(ORDER, first.group, first.description, first.number, tuple(sorted(ranks)), sides)
