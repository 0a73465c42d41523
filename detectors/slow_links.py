"""Slow links, by how long collectives and messages of a group take beside those of other groups; and communication that is slow as a whole, beside its own past.

What is compared are groups with the same role (data, tensor, pipeline, context, expert parallel, and pairs of stages), of the same size, that move the same bytes. Of a group counts the
member whose collectives are shortest: who comes last waits for nobody, so that a worker that computes longer makes no slow link; where a member is not measured nothing
is said of its groups, for it may be the last. A group whose members compute more unequally than those of others is left out, too: now one of them comes last, now another.

A group is slow whose collectives take 1.3 times as long as the median of its kind, at less bandwidth, for `sustained` looks. What all slow groups have in common, and no usual one, is the place: a
link, a node, or nobody knows which; what was told changes only when it becomes narrower or is another one for as many looks. Where all groups are slow alike, or there are too few to compare, only the past of the whole tells: that is
communication.slow of the job. Nobody is accused: it informs.

The metrics are those that NCCL Inspector measures on the GPU (collectors/nccl_inspector.py), else those of torch's flight recorder where NCCL's times are in it
(collectors/flight_recorder.py: TORCH_NCCL_ENABLE_TIMING=1), whose times are the bytes of one collective over its bandwidth; the ring is read seldom, and what was not read anew counts
as no further look. Without either nothing is said.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio, Seconds
from eagle_eye.types import Claim, Entity, Evidence, Floats, Integers, Kind, Layout, Step

from .features.active_claims import ActiveClaims
from .features.collective_groups import CommonPlace, GroupClass, Truths, group_classes, least, place_of
from .features.current_steps import CurrentSteps
from .features.own_compute import compute_of
from .features.step_time import zero_if_unknown

SLOW_LINK, SLOW_COMMUNICATION = "link.slow", "communication.slow"
ENDINGS = ("measured_mean_s", "bus_bytes_per_s", "measured_bytes_per_s")
"""Of the metrics of a role: how long one takes, at which bandwidth, and how many bytes a second are moved."""
RING_BANDWIDTH, RING_BYTES = "ring_bus_bandwidth_bytes_per_s", "ring_mean_bytes"
"""The same of the flight recorder: bandwidth, and the bytes of one."""
MEAN, BANDWIDTH, BYTES = range(len(ENDINGS))
SAME_READING = 1e-3
"""By less does the time of a group not differ where the flight recorder was not read anew: its bandwidth is told each second, and read from time to time."""
SAME_BYTES = 0.15
"""Groups whose bytes differ by less are compared."""
COMPARED = 3
"""Groups, at least, of which one can be slow."""
LOOK_S = 5.0
"""The agent reads so often."""
FRESH_S = 12.0
"""What was measured longer ago does not count."""
SKEW = 0.02
"""Share of a step by which the members of a group compute more unequally than those of others: they wait for one another."""
RATHER = 0.05
"""Weight of the newest step in how unequally members compute."""
LEVEL = 8
"""Looks that make the past of a kind of groups; the best such past counts."""


class _Looked(NamedTuple):
    """All groups of a class, at one look."""

    mean_s: Floats
    """NaN: not all members are measured."""
    bandwidth: Floats
    usual_s: float
    """Median of those that move the same bytes."""
    usual_bandwidth: float
    comparable: Truths
    renewed: Truths
    """It was measured anew since it was counted last."""


@dataclass
class _ClassState:
    """What is known of a class of groups."""

    groups: GroupClass
    streak: Integers
    """Looks in which a group was slow, less twice those in which it was not."""
    confirmed: Truths
    skew: Floats
    """Of each group: seconds a step from its first to its last member."""
    recent: list[tuple[float, float]] = field(default_factory=list)
    """Usual seconds and bandwidth of the looks that are no level yet."""
    level: tuple[float, float] | None = None
    """The shortest such seconds of a whole window, and the bandwidth of that time."""
    slow_looks: int = 0
    """In succession, in which the class as a whole was slower than that."""
    looked: _Looked | None = None
    counted_s: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    """Of each group, as it was when it was counted last."""
    unfollowed: Truths = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Groups that were measured anew since the past of the class was looked at last."""


@dataclass
class SlowLinks:
    """Claims link.slow of a link, node or job, and communication.slow of a job; both inform only."""

    needs_job: ClassVar[bool] = True
    ratio: Ratio = 1.3
    """Times as long as other groups with the same role, or as in the past."""
    sustained: Count = 5
    """Looks in succession; one is made each 5 s."""
    look_s: Seconds = LOOK_S
    _epoch: int = field(default=-1, init=False, repr=False)
    _layout: Layout | None = field(default=None, init=False, repr=False)
    _classes: list[_ClassState] = field(default_factory=list, init=False, repr=False)
    _column: Integers = field(default_factory=lambda: np.zeros(0, np.int64), init=False, repr=False)
    """Of each worker of the layout: its column in the frame, -1: none."""
    _names: tuple[str, ...] = field(default=(), init=False, repr=False)
    """The frame's workers."""
    _read: dict[str, Floats] = field(default_factory=dict, init=False, repr=False)
    """Role → ENDINGS × workers of the layout: the newest that was measured."""
    _read_at: dict[str, Floats] = field(default_factory=dict, init=False, repr=False)
    """Role → seconds since the first look at which that was."""
    _began: float = field(default=0.0, init=False, repr=False)
    _last_look: float = field(default=0.0, init=False, repr=False)
    _step_s: float = field(default=0.0, init=False, repr=False)
    _by_ring: frozenset[str] = field(default=frozenset(), init=False, repr=False)
    """Roles that are measured by the flight recorder alone."""
    _told: CommonPlace | None = field(default=None, init=False, repr=False)
    """What the open link.slow is about."""
    _elsewhere: tuple[CommonPlace, int, int] | None = field(default=None, init=False, repr=False)
    """Where it seems to be instead, in how many looks in succession that same place was seen, and any other than the one told."""
    _compared: tuple[tuple[Truths, ...], CommonPlace] | None = field(default=None, init=False, repr=False)
    """Which groups are slow and which usual, and what they have in common: worked out again only when that changes."""
    _since: float = field(default=0.0, init=False, repr=False)
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._begin(None, event.time)
            yield from self._claims.withdraw_all(event.time, why)
        if not frame.tick or frame.layout is None:
            return
        if frame.layout is not self._layout and frame.layout != self._layout:
            self._begin(frame.layout, frame.time)
            yield from self._claims.withdraw_all(frame.time, "its workers have changed")
        self._layout = frame.layout
        self._take(frame)
        if not self._read:
            return
        for step in self._steps.of(frame):
            self._add_skew(step)
        if frame.time - self._last_look >= self.look_s:
            self._last_look = frame.time
            yield from self._look(frame)

    # --- measuring

    def _begin(self, layout: Layout | None, time: float) -> None:
        self._layout, self._began, self._last_look = layout, time, time
        self._told, self._elsewhere, self._compared, self._since = None, None, None, 0.0
        self._read, self._read_at, self._names, self._classes = {}, {}, (), []

    def _take(self, frame: Frame) -> None:
        """Keep what was measured since the tick before."""
        read, names = frame.metrics.get(Kind.WORKER, {}), frame.entities.get(Kind.WORKER, ())
        roles = _roles(read)
        if not roles or self._layout is None:
            return
        if names is not self._names:
            self._arrange(names, self._layout)
        self._by_ring = frozenset(role for role in roles if not _is_measured(read, role))
        for role, measured in roles.items():
            rows = measured[:, self._column]
            new = (self._column >= 0) & np.isfinite(rows[MEAN])
            kept, at = self._read.get(role), self._read_at.get(role)
            count = len(self._column)
            self._read[role] = np.where(new, rows, kept if kept is not None else np.float32(np.nan))
            self._read_at[role] = np.where(new, np.float32(frame.time - self._began), at if at is not None else np.full(count, -np.inf, np.float32))

    def _arrange(self, names: tuple[str, ...], layout: Layout) -> None:
        self._names = names
        column = {name: index for index, name in enumerate(names)}
        self._column = np.array([column.get(worker, -1) for worker in layout.workers], np.int64)
        if not self._classes:
            self._classes = [_state_of(each) for each in group_classes(layout)]

    def _add_skew(self, step: Step) -> None:
        """How unequally the members of each group compute."""
        busy = compute_of(step)
        if busy is None or self._layout is None or step.workers != self._layout.workers:
            return
        own, step_s = zero_if_unknown(busy), float(np.nanmedian(step.values["step_s"]))
        self._step_s += RATHER * (step_s - self._step_s) if self._step_s else step_s
        for state in self._classes:
            of_group = own[state.groups.members]
            state.skew += np.float32(RATHER) * (of_group.max(axis=1) - of_group.min(axis=1) - state.skew)

    # --- judging

    def _look(self, frame: Frame) -> Iterator[Claim]:
        for state in self._classes:
            state.looked = self._looked(state, frame.time - self._began)
            if state.looked is not None:
                self._count(state, state.looked)
        yield from self._links(frame)
        yield from self._whole(frame)

    def _looked(self, state: _ClassState, now: float) -> _Looked | None:
        """None where nothing of the class was measured of late."""
        read, members = self._read.get(state.groups.role), state.groups.members
        if read is None:
            return None
        fresh = now - self._read_at[state.groups.role] <= FRESH_S
        rows = np.where(fresh, read, np.float32(np.nan))
        mean_s = least(rows[MEAN], members)
        moved, bandwidth = rows[BYTES][members].mean(axis=1), rows[BANDWIDTH][members].max(axis=1)
        known = np.isfinite(mean_s) & np.isfinite(moved)
        if not known.any():
            return None
        usual = np.median(moved[known])
        same = known & (np.abs(moved - usual) <= SAME_BYTES * usual)
        if not same.any():
            return None
        renewed = np.isfinite(mean_s)
        if state.groups.role in self._by_ring:
            renewed &= ~(np.abs(mean_s - state.counted_s) <= SAME_READING * state.counted_s)
        return _Looked(mean_s, bandwidth, float(np.median(mean_s[same])), float(np.median(bandwidth[same])), same, renewed)

    def _count(self, state: _ClassState, looked: _Looked) -> None:
        """Of each group whether it has been slow for long enough, and no more for long enough."""
        enough = looked.comparable.sum() >= COMPARED
        slow = looked.comparable & enough & (looked.mean_s >= self.ratio * looked.usual_s)
        if np.isfinite(looked.usual_bandwidth):
            slow &= ~(looked.bandwidth > looked.usual_bandwidth / (0.5 + 0.5 * self.ratio))
        if looked.comparable.any():
            slow &= ~(state.skew - np.median(state.skew[looked.comparable]) > SKEW * self._step_s) | (self._step_s == 0.0)
        state.counted_s = np.where(looked.renewed, looked.mean_s, state.counted_s)
        state.streak = np.where(looked.renewed, np.clip(state.streak + np.where(slow, 1, -2), 0, 2 * self.sustained), state.streak)
        state.confirmed = (state.streak >= self.sustained) | (state.confirmed & (state.streak > 1))

    def _links(self, frame: Frame) -> Iterator[Claim]:
        assert self._layout is not None
        if not any(state.confirmed.any() for state in self._classes):
            yield from self._withdraw(frame.time, "its groups take as long as others again")
            self._since = 0.0
            return
        place = self._place(self._layout)
        if self._is_settled(place):
            yield from self._tell(place, frame)

    def _place(self, layout: Layout) -> CommonPlace:
        """What the slow groups have in common, and no usual one."""
        usual = [_usual(state) for state in self._classes]
        masks = (*(state.confirmed for state in self._classes), *usual)
        if self._compared is None or not all(map(np.array_equal, self._compared[0], masks)):
            members = [state.groups.members for state in self._classes]
            slow = [each[state.confirmed] for each, state in zip(members, self._classes, strict=True)]
            self._compared = masks, place_of(layout, slow, [each[those] for each, those in zip(members, usual, strict=True)])
        return self._compared[1]

    def _is_settled(self, place: CommonPlace) -> bool:
        """Whether it is to be told: the first one, a link or node among those told, or the same other place for long enough; and any other one, where a link or node was named that it is not."""
        told = self._told
        if told is None or (place.entity is not None and place.is_narrower_than(told)):
            return True
        if place.is_same_as(told) or (place.entity is None and place.nodes < told.nodes and 2 * len(place.nodes) > len(told.nodes)):  # a node or two less is no news
            self._elsewhere = None
            return False
        before, same, looks = self._elsewhere or (place, 0, 0)
        same, looks = same + 1 if place.is_same_as(before) else 1, looks + 1
        self._elsewhere = place, same, looks
        return (same if told.entity is None else looks) >= self.sustained

    def _tell(self, place: CommonPlace, frame: Frame) -> Iterator[Claim]:
        entity = place.entity or Entity(kind=Kind.JOB, name=frame.job)
        if self._told is not None and self._told.entity != place.entity:
            yield from self._withdraw(frame.time, "more is known of where it is")
        self._told, self._elsewhere = place, None
        self._since = self._since or frame.time - self.sustained * self.look_s
        slow = [(state, number) for state in self._classes for number in np.flatnonzero(state.confirmed).tolist()]
        lines = [self._line(state, number) for state, number in slow[:4]]
        more = [Evidence(text=f"and {len(slow) - 4} other groups")] if len(slow) > 4 else []
        claim = Claim(entity=entity, kind=SLOW_LINK, score=0.7 if place.entity else 0.5, since=self._since, evidence=(*lines, *more, Evidence(text=place.text)))
        yield from self._claims.report(claim)

    def _withdraw(self, time: float, why: str) -> Iterator[Claim]:
        for entity, kind in list(self._claims.open):
            if kind == SLOW_LINK:
                yield from self._claims.withdraw(entity, kind, time, why)
        self._told, self._elsewhere = None, None

    def _line(self, state: _ClassState, number: int) -> Evidence:
        looked = state.looked
        workers = [self._layout.placements[index].worker for index in state.groups.members[number].tolist()] if self._layout is not None else []
        whose = ", ".join(workers[:2]) + (f" and {len(workers) - 2} others" if len(workers) > 2 else "")
        took = float(looked.mean_s[number]) if looked is not None else float("nan")
        usual = looked.usual_s if looked is not None else float("nan")
        what = "messages" if state.groups.role == "p2p" else f"{state.groups.role} collectives"
        text = f"{what} of {whose} take {took * 1e3:.3g} ms, those of {int(looked.comparable.sum()) if looked else 0} such groups {usual * 1e3:.3g} ms at the median, with the same bytes; who comes last into them waits as long"
        return Evidence(text=text, metric="collective_s", value=took, threshold=self.ratio * usual)

    # --- the whole, beside its past

    def _whole(self, frame: Frame) -> Iterator[Claim]:
        job, slow = Entity(kind=Kind.JOB, name=frame.job), []
        for state in self._classes:
            if state.looked is not None:
                self._follow(state, state.looked)
                if state.slow_looks >= self.sustained:
                    slow.append(state)
        if not slow:
            yield from self._claims.withdraw(job, SLOW_COMMUNICATION, frame.time, "its collectives take as long as before")
        elif (job, SLOW_COMMUNICATION) not in self._claims:
            lines = tuple(_past_line(state) for state in slow)
            yield from self._claims.report(Claim(entity=job, kind=SLOW_COMMUNICATION, score=0.6, since=frame.time - self.sustained * self.look_s, evidence=lines))

    def _follow(self, state: _ClassState, looked: _Looked) -> None:
        """The past of a class, that no slow time drags along; half of its groups or more are measured anew from one look to the next. More bytes in one take longer at no less bandwidth."""
        state.unfollowed = state.unfollowed | looked.renewed
        if 2 * int(state.unfollowed[looked.comparable].sum()) < int(looked.comparable.sum()):
            return
        state.unfollowed = np.zeros_like(state.unfollowed)
        if state.level is not None:
            before, bandwidth = state.level
            slower = looked.usual_s >= self.ratio * before and looked.usual_bandwidth <= bandwidth / (0.5 + 0.5 * self.ratio)
            state.slow_looks = min(state.slow_looks + 1, 2 * self.sustained) if slower else max(state.slow_looks - 2, 0)
        state.recent.append((looked.usual_s, looked.usual_bandwidth))
        if len(state.recent) == LEVEL:
            seconds, bandwidths = np.median(np.array(state.recent), axis=0).tolist()
            state.recent.clear()
            if state.level is None or seconds < state.level[0]:
                state.level = seconds, bandwidths


def _roles(read: Mapping[str, Floats]) -> dict[str, Floats]:
    """Role → ENDINGS × workers of the frame, of those of which something was measured since the tick before."""
    found: dict[str, Floats] = {}
    for name, bandwidth in read.items():
        if name.endswith(f"_{RING_BANDWIDTH}") and np.isfinite(bandwidth).any():
            role = name.removesuffix(f"_{RING_BANDWIDTH}")
            size = read.get(f"{role}_{RING_BYTES}", np.full(len(bandwidth), np.nan, np.float32))
            found[role] = np.array([size / np.where(bandwidth > 0.0, bandwidth, np.nan), bandwidth, size], np.float32)
    for name, mean_s in read.items():
        if name.endswith(f"_{ENDINGS[MEAN]}") and np.isfinite(mean_s).any():
            role = name.removesuffix(f"_{ENDINGS[MEAN]}")
            nothing = np.full(len(mean_s), np.nan, np.float32)
            found[role] = np.array([read.get(f"{role}_{ending}", nothing) for ending in ENDINGS], np.float32)
    return found


def _is_measured(read: Mapping[str, Floats], role: str) -> bool:
    """By NCCL Inspector, anew each time."""
    mean_s = read.get(f"{role}_{ENDINGS[MEAN]}")
    return mean_s is not None and bool(np.isfinite(mean_s).any())


def _state_of(groups: GroupClass) -> _ClassState:
    count = len(groups.members)
    nothing, no = np.full(count, np.nan, np.float32), np.zeros(count, np.bool_)
    return _ClassState(groups, np.zeros(count, np.int64), no, np.zeros(count, np.float32), counted_s=nothing, unfollowed=no)


def _usual(state: _ClassState) -> Truths:
    """Groups that were compared now and are not slow."""
    if state.looked is None or state.looked.comparable.sum() < COMPARED:
        return np.zeros(len(state.streak), np.bool_)
    usual: Truths = state.looked.comparable & (state.streak == 0) & ~state.confirmed
    return usual


def _past_line(state: _ClassState) -> Evidence:
    took, before = state.looked.usual_s if state.looked else float("nan"), state.level[0] if state.level else float("nan")
    groups = "messages from stage to stage" if state.groups.role == "p2p" else f"{state.groups.role} collectives"
    text = f"{groups} take {took * 1e3:.3g} ms at the median of {len(state.streak)} groups, {before * 1e3:.3g} ms at their best before: all are slow alike, or there are no others to compare"
    return Evidence(text=text, metric="collective_s", value=took, threshold=before)
