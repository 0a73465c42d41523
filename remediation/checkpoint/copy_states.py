"""What the launcher knows of the checkpoints in memory of its workers, as a state machine: facts in, states and effects out.

pending → cached → backed up → persistent; obsolete, once a newer one is safe; broken, if what its worker has written is not what is there.
A copy whose slot is written anew is pending again, under another sequence.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from eagle_eye.training.checkpoint.roll_backs import RollBacks, abandoned


class CopyState(StrEnum):
    """How safe a copy is."""

    PENDING = "pending"
    """Its worker writes it, or nothing was written yet."""
    CACHED = "cached"
    """Whole in the memory of its node."""
    BACKED_UP = "backed up"
    """And in that of another node."""
    PERSISTENT = "persistent"
    """And in storage."""
    OBSOLETE = "obsolete"
    """A newer one is on another node: this one is not sent any more."""
    BROKEN = "broken"
    """A digest does not fit; it is not sent again."""


class Place(NamedTuple):
    """A slot of a worker's segment."""

    file: str
    slot: int


@dataclass(frozen=True, slots=True)
class Copy:
    """What is in a slot."""

    state: CopyState
    step: int = -1
    sequence: int = -1


class Seen(NamedTuple):
    """A slot as it was just read; step and sequence -1: nothing whole is there."""

    place: Place
    step: int
    sequence: int


Copies = Mapping[Place, Copy]
SAFE = frozenset({CopyState.BACKED_UP, CopyState.PERSISTENT})


def observe(copies: Copies, seen: Iterable[Seen]) -> Copies:
    """The slots are like this now. What is not among them is gone."""
    found: dict[Place, Copy] = {}
    for place, step, sequence in seen:
        before = copies.get(place)
        if before is not None and before.sequence == sequence and before.state is not CopyState.PENDING:
            found[place] = before
        else:
            found[place] = Copy(CopyState.PENDING if sequence < 0 else CopyState.CACHED, step, sequence)
    for file, newest in _newest_safe(found).items():
        for place, copy in found.items():
            if place.file == file and copy.state is CopyState.CACHED and copy.sequence < newest:
                found[place] = replace(copy, state=CopyState.OBSOLETE)
    return MappingProxyType(found)


def settled(copies: Copies, place: Place, sequence: int, *, broken: bool) -> Copies:
    """The other node has it, or has found that it is `broken`. An answer about what is not there any more says nothing."""
    copy = copies.get(place)
    if copy is None or copy.sequence != sequence or copy.state is not CopyState.CACHED:
        return copies
    state = CopyState.BROKEN if broken else CopyState.BACKED_UP
    return MappingProxyType({**copies, place: replace(copy, state=state)})


def neighbour_changed(copies: Copies) -> Copies:
    """What was sent lies on a node that may be gone: it is sent again."""
    return MappingProxyType({place: copy if copy.state in {CopyState.PENDING, CopyState.BROKEN} else replace(copy, state=CopyState.CACHED) for place, copy in copies.items()})


def stored(copies: Copies, step: int, *, alone: bool = False) -> Copies:
    """Storage holds a checkpoint of that step: copies on another node that are as old are safe there, too, and all as old where there is no other node (`alone`)."""
    from_state = {CopyState.BACKED_UP, CopyState.CACHED} if alone else {CopyState.BACKED_UP}
    safe = {place: replace(copy, state=CopyState.PERSISTENT) for place, copy in copies.items() if copy.state in from_state and 0 <= copy.step <= step}
    return MappingProxyType({**copies, **safe}) if safe else copies


def due(copies: Copies, is_chosen: Callable[[str, int], bool]) -> dict[Place, Copy]:
    """What is to be sent: of each segment the newest whole copy of a step that is chosen (`is_chosen(file, step)`), so that all nodes send the same steps.

    Nothing of a segment whose newer copy is on the other node already.
    """
    safe = _newest_safe(copies)
    wanted: dict[str, tuple[Place, Copy]] = {}
    for place, copy in copies.items():
        if copy.state is not CopyState.CACHED or copy.sequence <= safe.get(place.file, -1) or not is_chosen(place.file, copy.step):
            continue
        if place.file not in wanted or wanted[place.file][1].sequence < copy.sequence:
            wanted[place.file] = place, copy
    return dict(wanted.values())


def newest_whole(copies: Copies) -> dict[str, Copy]:
    """Of each segment the copy that was written last, and is whole."""
    found: dict[str, Copy] = {}
    for place, copy in copies.items():
        if copy.state is not CopyState.PENDING and (place.file not in found or found[place.file].sequence < copy.sequence):
            found[place.file] = copy
    return found


def newest_safe_step(copies: Copies) -> int:
    """On another node, of every worker of this one; -1: there is none."""
    steps: dict[str, int] = {place.file: -1 for place in copies}
    for place, copy in copies.items():
        if copy.state in SAFE:
            steps[place.file] = max(steps[place.file], copy.step)
    return min(steps.values(), default=-1)


def _newest_safe(copies: Copies) -> dict[str, int]:
    """Sequence of the newest copy of each segment that another node has."""
    found: dict[str, int] = {}
    for place, copy in copies.items():
        if copy.state in SAFE:
            found[place.file] = max(found.get(place.file, -1), copy.sequence)
    return found


class StoredMark(NamedTuple):
    """A step that is known to be in storage."""

    step: int = -1
    """-1: none is."""
    epoch: int = 0
    """In which it was made; 0: it is not known, and counts as older than all."""


Stored = tuple[StoredMark, ...]
"""The newest that are known, in the order of their steps."""


def with_stored(known: Stored, mark: StoredMark, rolled_back: RollBacks, kept: int) -> Stored:
    """One more is. Of a history that was abandoned since, whoever tells of it late, none counts: it is put aside. `kept`: so many of the newest stay in storage.

    >>> with_stored((StoredMark(90, 1), StoredMark(500, 1)), StoredMark(100, 2), ((2, 95),), 2)
    (StoredMark(step=90, epoch=1), StoredMark(step=100, epoch=2))
    """
    steps = {each.step: each for each in sorted((*known, mark)) if each.step >= 0 and not abandoned(rolled_back, each.epoch, each.step)}
    return tuple(steps[step] for step in sorted(steps)[-kept:])


def newest_stored(known: Stored, rolled_back: RollBacks) -> StoredMark:
    """Of the history that goes on: behind a roll-back at most the step from which it went on, and nothing that is not known to be there still."""
    return max((each for each in known if not abandoned(rolled_back, each.epoch, each.step)), default=StoredMark())


class Held(NamedTuple):
    """A file with copies of another node's worker that this node keeps."""

    file: str
    bytes: int
    newest_step: int


def evictable(held: Iterable[Held], wanted: frozenset[str], stored_step: int, needed: int, limit: int) -> tuple[str, ...] | None:
    """Files to remove so that `needed` more bytes fit under `limit`; None if they do not.

    Only files go that nobody fills any more (not `wanted`: their node is no longer the predecessor) and whose newest step storage holds, too.
    """
    files = tuple(held)
    excess = sum(file.bytes for file in files) + needed - limit
    gone: list[str] = []
    for file in sorted(files, key=lambda each: each.newest_step):
        if excess <= 0:
            break
        if file.file not in wanted and file.newest_step <= stored_step:
            gone.append(file.file)
            excess -= file.bytes
    return None if excess > 0 else tuple(gone)


def outdated(held: Iterable[Held], wanted: frozenset[str], stored_step: int, steps: int) -> tuple[str, ...]:
    """Files that nobody fills any more (not `wanted`) and that hold none of the `steps` newest steps here, where storage has a step at least as new as theirs."""
    files = tuple(held)
    newest = sorted({file.newest_step for file in files}, reverse=True)[:steps]
    return tuple(file.file for file in files if len(newest) == steps and file.file not in wanted and file.newest_step < newest[-1] and file.newest_step <= stored_step)
