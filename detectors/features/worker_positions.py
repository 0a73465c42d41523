"""Positions of a job's workers (step, marks, phase), which of them the others wait for, and whether they go on waiting in different places."""

from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle_eye.activity.hang_verdict import ActivityKind
from eagle_eye.event_attributes import float_attribute, integer_attribute
from eagle_eye.training.messages import PHASES
from eagle_eye.types import Doubles, Event, Evidence

COLUMNS = ("step", "step_marks", "phase", "state", "running", "progress_age_s", "activity", "marks", "activity_seen_s")
STEP, STEP_MARKS, PHASE, STATE, RUNNING, AGE, ACTIVITY, MARKS, SEEN = range(len(COLUMNS))
ACTIVITIES = tuple(ActivityKind)
"""What the metric `activity` is an index into."""
ELSEWHERE = tuple(kind for kind in ActivityKind if kind not in (ActivityKind.AWAITS_PEERS, ActivityKind.EXCHANGES, ActivityKind.AWAITS_GPU, ActivityKind.UNKNOWN))
"""What a worker does that waits for nobody, whatever its last mark says: a script that only marks `communication` may evaluate after it.
Who waits for its GPU may wait there for a collective of NCCL: of that the mark tells."""
COMMUNICATION, DATA, OTHER = (float(PHASES.index(name)) for name in ("communication", "data", "other"))
PAUSES = tuple(float(PHASES.index(name)) for name in ("data", "evaluation", "checkpoint"))
STOPPED = float(ord("T"))
PRINTABLE = (ord("!"), ord("~"))
"""Letters of process states are among these."""

WAITING_ROUNDS = 2
"""In which the same must have been seen before it is believed that workers wait in different places."""

Truths = NDArray[np.bool_]


class WorkerPositions(NamedTuple):
    """Position and state of every worker of a layout at one moment."""

    workers: tuple[str, ...]
    table: Doubles
    """workers × COLUMNS; NaN = not known."""
    reported: Truths
    """Their agent has sent a `stall` event about them."""
    late: Truths
    """Their row is some ticks old: the newest batch is late."""
    finished: Truths
    """Their training loop is over and their process is gone: no worker waits for them."""
    doing: Mapping[str, str] = MappingProxyType({})
    """Worker → what it does, of those that were looked into."""
    places: Mapping[str, str] = MappingProxyType({})
    """Worker → the line of the user's code in which it is, of those that were looked into."""

    def line(self, index: int) -> str:
        """One worker's position as text for a line of evidence."""
        row = self.table[index]
        phase = PHASES[int(row[PHASE])] if 0 <= row[PHASE] < len(PHASES) else "an unknown phase"
        state = chr(int(row[STATE])) if PRINTABLE[0] <= row[STATE] <= PRINTABLE[1] else "?"
        step = f"step {row[STEP]:.0f}, mark {row[STEP_MARKS]:.0f} of it" if np.isfinite(row[STEP]) else "an unknown step"
        age = f" for {row[AGE]:.1f} s" if np.isfinite(row[AGE]) else ""
        doing = self.doing.get(self.workers[index], "")
        return f"worker {self.workers[index]} stands in {phase} of {step}{age}, process state {state}" + (f": it {doing}" if doing else "")

    def shows(self, *kinds: ActivityKind) -> Truths:
        """Of whom the last look said one of these."""
        found: Truths = np.isin(self.table[:, ACTIVITY], [float(ACTIVITIES.index(kind)) for kind in kinds])
        return found

    @property
    def waiting(self) -> Truths:
        """Who waits for the other workers: by its stack, or by its last mark while nobody has seen what it does."""
        marked = (self.table[:, PHASE] == COMMUNICATION) & ~self.shows(*ELSEWHERE)
        found: Truths = (marked | self.shows(ActivityKind.AWAITS_PEERS, ActivityKind.EXCHANGES)) & ~self.finished
        return found


def fewest(table: Doubles, rows: Truths, column: int) -> float:
    """The least of a column in these rows; infinite where none of them is known."""
    return float(np.min(table[:, column], where=rows & np.isfinite(table[:, column]), initial=np.inf))


def missed_by_most(table: Doubles, behind: Truths, pausing: Truths) -> Truths:
    """The few workers of the same step that have not reached the pause in which most of the workers are."""
    if pausing.sum() * 2 <= len(table):
        return np.zeros_like(pausing)
    few: Truths = behind & ~pausing & (table[:, STEP_MARKS] < fewest(table, pausing, STEP_MARKS))
    return few


def finished_rows(table: Doubles) -> Truths:
    """Rows of processes that ended after their training loop: their position is known, their process state is not."""
    found: Truths = (table[:, RUNNING] == 0.0) & np.isfinite(table[:, MARKS]) & np.isnan(table[:, STATE])
    return found


def not_awaiting_the_finished(at: WorkerPositions, culprits: Truths) -> Truths:
    """Those of the culprits that can still be accused although other workers have finished.

    A worker that left the loop at an earlier position may be the one that these wait for, unless their phase shows that
    they wait for nobody. Several culprits that are all who is left are at the same position: none is accused.
    """
    if not at.finished.any() or not culprits.any():
        return culprits
    table = at.table
    step, marks = fewest(table, culprits, STEP), fewest(table, culprits, STEP_MARKS)
    early = at.finished & ((table[:, STEP] < step) | ((table[:, STEP] == step) & (table[:, STEP_MARKS] <= marks)))
    named = culprits & ~np.isin(table[:, PHASE], (COMMUNICATION, OTHER)) if early.any() else culprits
    alone: Truths = np.zeros_like(named) if named.sum() > 1 and (named | at.finished).all() else named
    return alone


def awaited(at: WorkerPositions) -> Truths:
    """Of whom one is suspected: those that wait for nobody, in their loop, else behind it. Who waits for its peers is their victim, however few
    marks it has set; only where all wait do their positions tell who has never come out of a collective."""
    left = ~at.finished
    busy: Truths = left & ~at.waiting
    inside: Truths = busy & (at.table[:, RUNNING] != 0.0)
    return inside if inside.any() else busy if busy.any() else left


def furthest_behind(at: WorkerPositions, behind: Truths) -> Truths:
    """Workers in the lowest step with the fewest marks that do not wait; none if that would be all of them, or if their marks tell nothing."""
    table = at.table
    busy = behind & ~at.waiting & (table[:, RUNNING] != 0.0)
    told = busy & (table[:, PHASE] != COMMUNICATION)
    # if all of them wait: the other workers have already left the communication in which these are
    found: Truths = told & (table[:, STEP_MARKS] == fewest(table, told, STEP_MARKS)) if busy.any() else behind
    return np.zeros_like(found) if found.all() else found


def elsewhere(at: WorkerPositions) -> Truths:
    """Who is not where most are: the others wait, and these few do something else or wait in another line of the script."""
    left = ~at.finished
    nobody: Truths = np.zeros_like(left)
    busy: Truths = left & ~at.waiting
    if busy.any():
        return nobody if busy.sum() * 2 > left.sum() else busy
    places = [at.places.get(name, "") if there else "" for name, there in zip(at.workers, left, strict=True)]
    known = Counter(place for place in places if place)
    if len(known) != 2 or "" in {place for place, there in zip(places, left, strict=True) if there}:
        return nobody
    (_, most), (rare, few) = known.most_common()
    return np.array([place == rare for place in places], dtype=bool) if few * 2 < most else nobody


class WaitingRounds:
    """Whether workers wait in different places at the same time: what was seen of one a moment ago may be over when another is looked at.

    Counts rounds in which every worker was looked at after all places were known, and was still in its own.
    """

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._since = 0.0
        self._rounds = 0

    def forget(self) -> None:
        """Somebody has moved, or is somewhere else."""
        self._seen, self._rounds = (), 0

    def confirmed(self, at: WorkerPositions, accused: Truths, now: float, *, tick: bool) -> bool:
        """Whether the same was seen in `WAITING_ROUNDS` rounds. `now`: of the frame; the looks that it tells of are older. Ages are those of a tick."""
        left = ~at.finished
        places = tuple(at.places.get(name, "") for name in at.workers)
        seen = (at.workers, places, accused.tobytes(), np.nan_to_num(at.table[left][:, [STEP, STEP_MARKS, ACTIVITY]], nan=-1.0).tobytes())
        if seen != self._seen:
            self._seen, self._since, self._rounds = seen, now, 0
        elif tick and bool((now - at.table[left, SEEN] > self._since).all()):
            self._since, self._rounds = now, self._rounds + 1
        return self._rounds >= WAITING_ROUNDS


def row_of(event: Event, now: float) -> list[float]:
    """A `stall` event as a row of COLUMNS; its phase may be a name or an index."""
    phase = event.attributes.get("phase", "")
    index = PHASES.index(phase) if phase in PHASES else integer_attribute(event, "phase")
    known = event.attributes.get("marks", "") != ""
    state = event.attributes.get("state", "") or "?"
    age = float_attribute(event, "age_s") + max(0.0, now - event.time)
    step, of_step, marks = (float(integer_attribute(event, name)) if known else np.nan for name in ("step", "step_marks", "marks"))
    activity = next((float(at) for at, kind in enumerate(ACTIVITIES) if kind.value == event.attributes.get("activity")), np.nan)
    return [step, of_step, float(index) if index >= 0 else np.nan, float(ord(state[0])), 1.0, age, activity, marks, np.nan]


def row_of_ended(event: Event) -> list[float]:
    """A `worker.finished` event as a row of COLUMNS: it may have ended in the middle of its step."""
    step = float(integer_attribute(event, "step")) if event.attributes.get("step") else np.nan
    return [step, -1.0, np.nan, np.nan, 0.0, np.nan, np.nan, np.nan, np.nan]


def waiting_for(at: WorkerPositions, index: int) -> Iterator[Evidence]:
    """Evidence: how many other workers wait in communication."""
    waits = (at.table[:, PHASE] == COMMUNICATION) & (np.arange(len(at.workers)) != index)
    if waits.any():
        yield Evidence(text=f"{int(waits.sum())} others wait in communication", metric="waiting", value=float(waits.sum()))
