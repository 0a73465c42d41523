"""Where the workers of a job are, and who of them keeps the others waiting."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle_eye.training.messages import PHASES
from eagle_eye.types import Doubles, Event, Evidence

from .active_claims import float_attribute, integer_attribute

COLUMNS = ("step", "marks", "phase", "state", "running", "progress_age_s")
STEP, MARKS, PHASE, STATE, RUNNING, AGE = range(len(COLUMNS))
COMMUNICATION, DATA, OTHER = (float(PHASES.index(name)) for name in ("communication", "data", "other"))
PAUSES = tuple(float(PHASES.index(name)) for name in ("data", "evaluation", "checkpoint"))
STOPPED = float(ord("T"))

Truths = NDArray[np.bool_]


class WorkerPositions(NamedTuple):
    """Where the workers of the layout are."""

    workers: tuple[str, ...]
    table: Doubles
    """workers × COLUMNS; NaN = not known."""
    told: Truths
    """Their node has said, with a `stall` event, that they stand still."""
    late: Truths
    """Read some ticks ago; the batch since is late."""
    finished: Truths
    """Their loop is over and their process is gone: they stand for nobody and nobody waits for them."""

    def line(self, index: int) -> str:
        """One worker's position in words."""
        row = self.table[index]
        phase = PHASES[int(row[PHASE])] if np.isfinite(row[PHASE]) else "an unknown phase"
        state = chr(int(row[STATE])) if np.isfinite(row[STATE]) else "?"
        step = f"step {row[STEP]:.0f}, mark {row[MARKS]:.0f}" if np.isfinite(row[STEP]) else "an unknown step"
        age = f" for {row[AGE]:.1f} s" if np.isfinite(row[AGE]) else ""
        return f"worker {self.workers[index]} stands in {phase} of {step}{age}, process state {state}"


def missed_by_most(table: Doubles, behind: Truths, pausing: Truths) -> Truths:
    """Most workers are in a pause that these few, in the same step, have not come to: they wait in it for them."""
    if pausing.sum() * 2 <= len(table):
        return np.zeros_like(pausing)
    few: Truths = behind & ~pausing & (table[:, MARKS] < np.nanmin(table[pausing, MARKS]))
    return few


def finished_rows(table: Doubles) -> Truths:
    """Rows of processes that are gone after their loop was over: where they came to is known, their state is not."""
    found: Truths = (table[:, RUNNING] == 0.0) & np.isfinite(table[:, MARKS]) & np.isnan(table[:, STATE])
    return found


def not_awaiting_the_finished(at: WorkerPositions, culprits: Truths) -> Truths:
    """Who of them may still be named beside workers that have finished.

    One that left the loop before the place where these stand may be what they wait for, unless their phase says that
    they wait for nobody. And several that are all who is left stand at the same place.
    """
    if not at.finished.any() or not culprits.any():
        return culprits
    table = at.table
    step, marks = np.nanmin(table[culprits, STEP]), np.nanmin(table[culprits, MARKS])
    early = at.finished & ((table[:, STEP] < step) | ((table[:, STEP] == step) & (table[:, MARKS] <= marks)))
    named = culprits & ~np.isin(table[:, PHASE], (COMMUNICATION, OTHER)) if early.any() else culprits
    alone: Truths = np.zeros_like(named) if named.sum() > 1 and (named | at.finished).all() else named
    return alone


def furthest_behind(table: Doubles, behind: Truths) -> Truths:
    """Those in the lowest step that wait for nobody, the least marks first; nobody if that is everybody."""
    busy = behind & (table[:, PHASE] != COMMUNICATION) & (table[:, RUNNING] != 0.0)
    # if they all wait: the others have left the step whose communication these never came out of
    found: Truths = busy & (table[:, MARKS] == np.nanmin(table[busy, MARKS])) if busy.any() else behind
    return np.zeros_like(found) if found.all() else found


def row_of(event: Event, now: float) -> list[float]:
    """A `stall` event as a row of COLUMNS; the phase may be told by name or index."""
    phase = event.attributes.get("phase", "")
    index = PHASES.index(phase) if phase in PHASES else integer_attribute(event, "phase")
    known = event.attributes.get("marks", "") != ""
    state = event.attributes.get("state", "") or "?"
    age = float_attribute(event, "age_s") + max(0.0, now - event.time)
    step, marks = (integer_attribute(event, "step"), integer_attribute(event, "marks")) if known else (np.nan, np.nan)
    return [step, marks, float(index) if index >= 0 else np.nan, float(ord(state[0])), 1.0, age]


def waiting_for(at: WorkerPositions, index: int) -> Iterator[Evidence]:
    """How many wait in communication for this one."""
    waits = (at.table[:, PHASE] == COMMUNICATION) & (np.arange(len(at.workers)) != index)
    if waits.any():
        yield Evidence(text=f"{int(waits.sum())} others wait in communication", metric="waiting", value=float(waits.sum()))
