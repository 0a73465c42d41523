"""Processes of a job in groups of equal stacks, the largest first, and where each group parts from those before it.

Two processes are in one group when the main threads are in the same functions, files and lines and both move, or both stand. Those that move
are where they are by chance, so all of them with one outermost function are a group, with the frames that they share.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

from .motion import Motion
from .python_stacks import StackFrame, ThreadStack

NUMBER = re.compile(r"\d+")
"""Of a thread's name: Python counts them, and each process counts for itself."""
NAME = re.compile(r"(.*?)(0|[1-9]\d*)")
DIGITS = 18
"""Of a number that is worth counting."""
Frames = tuple[StackFrame, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledProcess:
    """What was seen of one process."""

    samples: Sequence[Sequence[ThreadStack]]
    """The threads of each look, the main thread's first; the oldest look first. None without a stack."""
    motion: Motion = Motion.UNKNOWN
    awaits_peers: bool = False
    """It was seen to wait for them in native code, which no Python frame tells."""


class ThreadPlace(NamedTuple):
    """Threads beside the main one that have one name, without its numbers, and stand at one place of the user's code."""

    name: str
    place: StackFrame
    members: tuple[str, ...]
    """Processes that have such a thread."""


class LockHolder(NamedTuple):
    """Who has the interpreter's lock (GIL) in all looks."""

    thread: str
    """Name; '' for the main thread."""
    place: StackFrame | None
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackGroup:
    """Processes with equal stacks."""

    members: tuple[str, ...]
    motion: Motion
    frames: Frames
    """Of the main thread, the OUTERMOST first; of those that move the ones that they share."""
    place: StackFrame | None
    """The innermost frame of the user's code; of those that move the innermost one that they share."""
    places: tuple[tuple[StackFrame, int], ...]
    """Where those that move were seen, and how often: the most frequent first."""
    awaits_peers: bool
    """Some wait there for the other ranks."""
    holders: tuple[LockHolder, ...]
    threads: tuple[ThreadPlace, ...]
    """That run the user's code, the most frequent first."""
    helpers: int
    """Threads of libraries that no code of the user's is in: the most of one process."""
    like: int = -1
    """Place in the list of the group before it that shares most of its outer frames; -1: none shares one."""
    shared: int = 0
    """How many."""


def group_stacks(processes: Mapping[str, SampledProcess]) -> tuple[StackGroup, ...]:
    """Name of a process (its rank, or else its pid) → what was seen of it, in the order in which a group names its members."""
    members: dict[Hashable, list[str]] = {}
    for name, process in processes.items():
        members.setdefault(_key(process), []).append(name)
    largest = sorted(members.values(), key=len, reverse=True)
    return tuple(_related(_group({name: processes[name] for name in names}) for names in largest))


def _key(process: SampledProcess) -> Hashable:
    last = _last(process)
    if process.motion is Motion.MOVES and last:
        return Motion.MOVES, last[-1].file, last[-1].function
    return process.motion, last


def _last(process: SampledProcess) -> Frames:
    """Of the main thread in the newest look, the innermost first."""
    return process.samples[-1][0].frames if process.samples and process.samples[-1] else ()


def _group(processes: Mapping[str, SampledProcess]) -> StackGroup:
    motion = next(iter(processes.values())).motion
    mains = [threads[0] for process in processes.values() for threads in process.samples if threads]
    frames = _common(mains) if motion is Motion.MOVES else tuple(reversed(mains[-1].frames)) if mains else ()
    shared = ThreadStack(0, "", False, tuple(reversed(frames)))
    places = Counter(main.place for main in mains if main.place is not None) if motion is Motion.MOVES else Counter[StackFrame]()
    threads, helpers = _threads(processes)
    return StackGroup(
        members=tuple(processes), motion=motion, frames=frames, place=shared.place, places=tuple(places.most_common()),
        awaits_peers=shared.awaits_peers or any(process.awaits_peers for process in processes.values()),
        holders=_holders(processes), threads=threads, helpers=helpers,
    )  # fmt: skip


def _common(stacks: Iterable[ThreadStack]) -> Frames:
    """The outer frames that all of them share, the outermost first."""
    different = [frames[::-1] for frames in {stack.frames for stack in stacks}]
    first, last = min(different, default=()), max(different, default=())  # in their order: what these two share, all do
    return tuple(frame for frame, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))


def _threads(processes: Mapping[str, SampledProcess]) -> tuple[tuple[ThreadPlace, ...], int]:
    """Of the threads beside the main one, in the newest look: the groups of those that run the user's code, and how many others a process has at most."""
    found: dict[tuple[str, StackFrame], dict[str, None]] = {}
    helpers = 0
    for name, process in processes.items():
        others = process.samples[-1][1:] if process.samples else ()
        places = [(thread.name, thread.users_place) for thread in others]
        helpers = max(helpers, sum(place is None for _, place in places))
        for thread, place in places:
            if place is not None:
                found.setdefault((thread, place), {})[name] = None
    merged: dict[tuple[str, StackFrame], dict[str, None]] = {}
    for (thread, place), members in found.items():
        merged.setdefault((NUMBER.sub("N", thread), place), {}).update(members)
    groups = (ThreadPlace(thread, place, tuple(members)) for (thread, place), members in merged.items())
    return tuple(sorted(groups, key=lambda group: -len(group.members))), helpers


def _holders(processes: Mapping[str, SampledProcess]) -> tuple[LockHolder, ...]:
    found: dict[tuple[str, StackFrame | None], list[str]] = {}
    for name, process in processes.items():
        holding = [{thread.thread: thread for thread in threads if thread.holds_interpreter} for threads in process.samples]
        for number in set.intersection(*map(set, holding)) if holding else ():
            thread = holding[-1][number]
            main = process.samples[-1][0].thread == number
            found.setdefault(("" if main else thread.name or f"thread {number}", thread.place), []).append(name)
    return tuple(LockHolder(thread, place, tuple(members)) for (thread, place), members in found.items())


def _related(groups: Iterable[StackGroup]) -> Iterable[StackGroup]:
    """Each with the group before it that shares most outer frames: a prefix tree of all stacks, whose nodes know the first group that went there."""
    tree: dict[StackFrame, _Node] = {}
    for number, group in enumerate(groups):
        level, like, shared = tree, -1, 0
        for depth, frame in enumerate(group.frames, start=1):
            node = level.get(frame)
            if node is None:
                node = level[frame] = _Node(number, {})
            elif node.first != number:
                like, shared = node.first, depth
            level = node.inner
        yield replace(group, like=like, shared=shared)


class _Node(NamedTuple):
    first: int
    inner: "dict[StackFrame, _Node]"


def name_ranges(names: Iterable[str]) -> tuple[str, ...]:
    """Names that differ in the number at their end alone are one range.

    >>> name_ranges(["0", "1", "2", "7", "node-a/0", "node-a/1", "mine"])
    ('0-2', '7', 'node-a/[0-1]', 'mine')
    """
    numbers: dict[str, list[int]] = {}
    order: dict[tuple[str, bool], None] = {}
    for name in names:
        found = NAME.fullmatch(name)
        counted = found is not None and len(found[2]) <= DIGITS
        if found is not None and counted:
            numbers.setdefault(found[1], []).append(int(found[2]))
        order[(found[1] if found is not None and counted else name, counted)] = None
    return tuple(text for stem, counted in order for text in (_ranges(stem, sorted(set(numbers[stem]))) if counted else [stem]))


def _ranges(stem: str, numbers: Sequence[int]) -> list[str]:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [f"{first}-{last}" if last > first else str(first) for first, last in spans]
    if not stem:
        return texts
    return [f"{stem}[{','.join(texts)}]" if len(numbers) > 1 else f"{stem}{texts[0]}"]
