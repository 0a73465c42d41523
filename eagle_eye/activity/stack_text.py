"""Groups of stacks as lines for a person: the largest group with its whole stack, each other one from where it parts from one before it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from eagle_eye.writable_text import printable

from .motion import Motion
from .python_stacks import StackFrame, is_library
from .stack_facts import ProcessFact
from .stack_groups import StackGroup, name_ranges

NAMED = 8
"""Ranges of members that a line names; the rest is counted."""
PLACES, THREADS = 4, 4
"""That a group names."""
FOLDED, NAMED_LIBRARIES = 4, 3
"""So many frames of libraries in succession are one line; of how many it names."""
PLURALS = {"process": "processes"}
MOTIONS = {
    Motion.MOVES: "moving", Motion.COMPUTES: "computing", Motion.STANDS: "standing", Motion.STOPPED: "stopped", Motion.TRACED: "held by a debugger",
    Motion.ENDED: "ended", Motion.UNKNOWN: "",
}  # fmt: skip


class Line(NamedTuple):
    """One line; a narrow screen wraps it between words."""

    indent: int
    text: str
    heading: bool = False


def group_lines(
    groups: Sequence[StackGroup], word: str, facts: Mapping[str, Sequence[ProcessFact]] | None = None, *, full: bool = False
) -> Iterator[Line]:
    """All groups. `word`: what a member is, such as rank. `facts`: of each member. `full`: whole paths, and every frame of libraries."""
    every = sum(len(group.members) for group in groups)
    if verdict := peers_sentence(groups, word):
        yield Line(0, verdict)
    for number, group in enumerate(groups, start=1):
        yield Line(0, f"{number}. {_heading(group, word, every, full=full)}", heading=True)
        yield from (Line(3, printable(text)) for text in _about(group, word, facts or {}, full=full))
        yield from (Line(3 + indent, printable(text)) for indent, text in _stack(group, full=full))


def peers_sentence(groups: Sequence[StackGroup], word: str) -> str:
    """Who does not wait for the peers while others do; '' if nobody waits, or all do."""
    waiting = [member for group in groups if group.awaits_peers for member in group.members]
    others = [member for group in groups if not group.awaits_peers for member in group.members]
    if not waiting or not others:
        return ""
    one, few = ("waits for its peers", "wait for their peers"), ("does not", "do not")
    who = members_text(waiting, word)
    return f"{who[:1].upper()}{who[1:]} {one[len(waiting) > 1]}; {members_text(others, word)} {few[len(others) > 1]}."


def members_text(members: Sequence[str], word: str) -> str:
    """The word with the names as ranges.

    >>> members_text(["0", "1", "2", "5"], "rank")
    'ranks 0-2,5'
    """
    ranges = name_ranges(members)
    more = f" and {len(ranges) - NAMED} ranges more" if len(ranges) > NAMED else ""
    return printable(f"{word if len(members) == 1 else PLURALS.get(word, word + 's')} {','.join(ranges[:NAMED])}{more}")


def frame_text(frame: StackFrame, *, full: bool = False) -> str:
    """Place and function; `full`: with the whole path."""
    return f"{frame.file}:{frame.line} {frame.function}" if full else str(frame)


def _heading(group: StackGroup, word: str, every: int, *, full: bool) -> str:
    who = members_text(group.members, word)
    share = f" ({len(group.members)} of {every})" if every > 1 else ""
    place = frame_text(group.place, full=full) if group.place is not None else ""
    where = "" if not place else f" below {place}" if group.motion is Motion.MOVES else f" in {place}"
    peers = ["waiting for peers"] if group.awaits_peers else []
    what = ", ".join([*peers, *filter(None, [f"{MOTIONS[group.motion]}{where}".strip()])])
    return printable(f"{who}{share}: {what or 'no stack'}")


def _about(group: StackGroup, word: str, facts: Mapping[str, Sequence[ProcessFact]], *, full: bool) -> Iterator[str]:
    """Facts of the members, each once, with those that it holds for unless it holds for all."""
    if group.places:
        shown = ", ".join(f"{frame_text(place, full=full)} ({seen})" for place, seen in group.places[:PLACES])
        yield f"seen in {shown}" + (f" and {len(group.places) - PLACES} places more" if len(group.places) > PLACES else "")
    texts: dict[str, str] = {}
    whose: dict[str, list[str]] = {}
    for member in group.members:
        for fact in facts.get(member, ()):
            texts.setdefault(fact.key, fact.text)
            whose.setdefault(fact.key, []).append(member)
    for key, text in texts.items():
        yield text if len(whose[key]) == len(group.members) else f"{members_text(whose[key], word)}: {text}"
    for holder in group.holders:
        who = f"thread {holder.thread}" if holder.thread else "the main thread"
        where = f" in {frame_text(holder.place, full=full)}" if holder.place is not None else ""
        yield f"the interpreter's lock (GIL) is held by {who}{where}" + _of(holder.members, group, word)
    for thread in group.threads[: None if full else THREADS]:
        yield f"thread {thread.name or 'without a name'} in {frame_text(thread.place, full=full)}" + _of(thread.members, group, word)
    hidden = 0 if full else max(0, len(group.threads) - THREADS)
    rest = [f"{hidden} further places of threads"] * bool(hidden) + [f"{group.helpers} helper thread{'s' * (group.helpers > 1)} of libraries"] * bool(group.helpers)
    if rest:
        yield ", ".join(rest)


def _of(members: Sequence[str], group: StackGroup, word: str) -> str:
    return "" if len(members) == len(group.members) else f", of {members_text(members, word)}"


def _stack(group: StackGroup, *, full: bool) -> Iterator[tuple[int, str]]:
    """(indent, text), the outermost frame first."""
    frames = group.frames[group.shared :]
    if group.shared:
        rest = ", then" if frames else ""
        yield 0, f"as group {group.like + 1} down to {frame_text(group.frames[group.shared - 1], full=full)}{rest}"
    yield from ((2, text) for text in (_texts(frames) if not full else (frame_text(frame, full=True) for frame in frames)))


def _texts(frames: Sequence[StackFrame]) -> Iterator[str]:
    """Frames of libraries in succession are folded, but for the innermost one; a function that calls itself is told once."""
    runs = [(frame, len(list(same))) for frame, same in groupby(frames)]
    hidden: list[StackFrame] = []
    for place, (frame, times) in enumerate(runs):
        if is_library(frame.file) and place < len(runs) - 1:
            hidden += [frame] * times
            continue
        yield from _folded(hidden)
        hidden = []
        yield f"{frame_text(frame)}{f' (×{times})' if times > 1 else ''}"


def _folded(frames: Sequence[StackFrame]) -> Iterable[str]:
    if len(frames) < FOLDED:
        return [frame_text(frame) for frame in frames]
    libraries = list(dict.fromkeys(map(_library, frames)))
    more = f" and {len(libraries) - NAMED_LIBRARIES} more" if len(libraries) > NAMED_LIBRARIES else ""
    return [f"… {len(frames)} frames of {', '.join(libraries[:NAMED_LIBRARIES])}{more}"]


def _library(frame: StackFrame) -> str:
    """The package that a file belongs to: what follows site-packages, else the module."""
    _, found, path = frame.file.replace("/dist-packages/", "/site-packages/").rpartition("/site-packages/")
    if found:
        return path.partition("/")[0].removesuffix(".py")
    return frame.file.strip("<>").removeprefix("frozen ").rpartition("/")[2].partition(".")[0]
