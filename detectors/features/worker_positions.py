"""Positions of a job's workers (step, marks, phase), and which of them the others wait for."""

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

    def line(self, index: int) -> str:
        """One worker's position as text for a line of evidence."""
        row = self.table[index]
        phase = PHASES[int(row[PHASE])] if np.isfinite(row[PHASE]) else "an unknown phase"
        state = chr(int(row[STATE])) if np.isfinite(row[STATE]) else "?"
        step = f"step {row[STEP]:.0f}, mark {row[MARKS]:.0f}" if np.isfinite(row[STEP]) else "an unknown step"
        age = f" for {row[AGE]:.1f} s" if np.isfinite(row[AGE]) else ""
        return f"worker {self.workers[index]} stands in {phase} of {step}{age}, process state {state}"


def missed_by_most(table: Doubles, behind: Truths, pausing: Truths) -> Truths:
    """The few workers of the same step that have not reached the pause in which most of the workers are."""
    if pausing.sum() * 2 <= len(table):
        return np.zeros_like(pausing)
    few: Truths = behind & ~pausing & (table[:, MARKS] < np.nanmin(table[pausing, MARKS]))
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
    step, marks = np.nanmin(table[culprits, STEP]), np.nanmin(table[culprits, MARKS])
    early = at.finished & ((table[:, STEP] < step) | ((table[:, STEP] == step) & (table[:, MARKS] <= marks)))
    named = culprits & ~np.isin(table[:, PHASE], (COMMUNICATION, OTHER)) if early.any() else culprits
    alone: Truths = np.zeros_like(named) if named.sum() > 1 and (named | at.finished).all() else named
    return alone


def furthest_behind(table: Doubles, behind: Truths) -> Truths:
    """Workers in the lowest step with the fewest marks that do not wait; none if that would be all of them."""
    busy = behind & (table[:, PHASE] != COMMUNICATION) & (table[:, RUNNING] != 0.0)
    # if all of them wait: the other workers have already left the communication in which these are
    found: Truths = busy & (table[:, MARKS] == np.nanmin(table[busy, MARKS])) if busy.any() else behind
    return np.zeros_like(found) if found.all() else found


def row_of(event: Event, now: float) -> list[float]:
    """A `stall` event as a row of COLUMNS; its phase may be a name or an index."""
    phase = event.attributes.get("phase", "")
    index = PHASES.index(phase) if phase in PHASES else integer_attribute(event, "phase")
    known = event.attributes.get("marks", "") != ""
    state = event.attributes.get("state", "") or "?"
    age = float_attribute(event, "age_s") + max(0.0, now - event.time)
    step, marks = (integer_attribute(event, "step"), integer_attribute(event, "marks")) if known else (np.nan, np.nan)
    return [step, marks, float(index) if index >= 0 else np.nan, float(ord(state[0])), 1.0, age]


def waiting_for(at: WorkerPositions, index: int) -> Iterator[Evidence]:
    """Evidence: how many other workers wait in communication."""
    waits = (at.table[:, PHASE] == COMMUNICATION) & (np.arange(len(at.workers)) != index)
    if waits.any():
        yield Evidence(text=f"{int(waits.sum())} others wait in communication", metric="waiting", value=float(waits.sum()))
