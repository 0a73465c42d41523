"""The coordinator's state machine: what each fact does in each state of the job, and to which states it may lead.

    coordinator learns a fact → TRANSITIONS[type of the fact][state] → effects

Every pair of a state and a kind of fact has an entry: a handler, or the reason why the fact is ignored. docs/architecture.md
draws the states; a test compares the drawing with this table.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from remediation.launcher.job_declaration import JobPhase

from . import command_handlers as command
from . import coordinator_facts
from . import epoch_formation as epoch
from . import launcher_handlers as launcher
from . import worker_handlers as worker
from .coordinator_effects import EndWorkers, Prepare
from .coordinator_facts import Fact
from .coordinator_state import CoordinatorState, Effects

GATHERING, FORMING, RUNNING, WAITING = JobPhase.GATHERING, JobPhase.FORMING, JobPhase.RUNNING, JobPhase.WAITING
BACKOFF, SPENT, HALTING, ENDED = JobPhase.BACKOFF, JobPhase.SPENT, JobPhase.HALTING, JobPhase.ENDED

Leads = frozenset[JobPhase]


class TableEntry(msgspec.Struct, frozen=True):
    """What a fact does in a state."""

    do: Callable[[CoordinatorState, Any], Effects]
    to: Leads = frozenset()
    """States to which it may lead, besides the one that it finds."""


class Ignored(msgspec.Struct, frozen=True):
    """Nothing follows from a fact in a state."""

    reason: str


Row = Mapping[JobPhase, TableEntry | Ignored]

# Where the steps that handlers have in common may lead:
BEGIN: Leads = frozenset({FORMING, WAITING})
"""An epoch begins, or there are too few nodes."""
FIRST_HEAL: Leads = BEGIN | {SPENT}
"""The same on the job's own budget."""
HEAL: Leads = FIRST_HEAL | {BACKOFF}
"""The same, and nothing may have come of the restart before."""
VALID: Leads = frozenset({RUNNING, HALTING})
"""An epoch is valid, or its workers can only save their state."""
END: Leads = frozenset({ENDED})
REPEATED: Leads = BEGIN | {BACKOFF, SPENT, ENDED}
"""The step that fails again is skipped by new workers, or the job ends; or the heal budget is charged for what it is."""


def _row(otherwise: TableEntry | Ignored, **states: TableEntry | Ignored) -> Row:
    """The handlers for one kind of fact."""
    return MappingProxyType({state: states.get(state.name, otherwise) for state in JobPhase})


_NOT_FORMING = Ignored("no epoch is being formed: the vote is for one that is valid or overtaken")
_NO_EPOCH = Ignored("no epoch is running: the fact is about one that is over")
_OVERTAKEN = Ignored("the epoch that armed the timer was overtaken")

TRANSITIONS: Mapping[type[Fact], Row] = MappingProxyType({
    # --- launchers ---
    coordinator_facts.LauncherJoined: _row(
        TableEntry(launcher.joined_only),
        GATHERING=TableEntry(launcher.joined_while_gathering, FIRST_HEAL), FORMING=TableEntry(launcher.joined_while_forming, BEGIN | {RUNNING}),
        RUNNING=TableEntry(launcher.joined_while_running, HEAL), WAITING=TableEntry(launcher.joined_while_waiting),
    ),
    coordinator_facts.SessionBroke: _row(
        TableEntry(launcher.lost_only),
        GATHERING=TableEntry(launcher.lost_silently), FORMING=TableEntry(launcher.lost_while_forming, HEAL | VALID),
        RUNNING=TableEntry(launcher.lost_while_running, HEAL), HALTING=TableEntry(launcher.lost_while_halting, END),
        ENDED=TableEntry(launcher.lost_silently),
    ),
    coordinator_facts.NoProgress: _row(
        Ignored("only the launchers of a running epoch are suspects"), RUNNING=TableEntry(launcher.suspects_are_lost, HEAL)
    ),
    # --- votes ---
    coordinator_facts.VoteGiven: _row(_NOT_FORMING, FORMING=TableEntry(launcher.count_vote, VALID)),
    coordinator_facts.VoteRefused: _row(TableEntry(launcher.learn_number), FORMING=TableEntry(launcher.take_higher_number, BEGIN)),
    coordinator_facts.PrepareFailed: _row(_NOT_FORMING, FORMING=TableEntry(launcher.leave_out, BEGIN | END)),
    coordinator_facts.GrantAnswer: _row(TableEntry(launcher.learn_leader), FORMING=TableEntry(launcher.count_grant, VALID)),
    coordinator_facts.WorkersStarted: _row(_NO_EPOCH, RUNNING=TableEntry(launcher.report_start)),
    # --- workers ---
    coordinator_facts.WorkerDied: _row(
        TableEntry(worker.died_meanwhile),
        FORMING=TableEntry(worker.died_while_forming, HEAL | VALID | END), RUNNING=TableEntry(worker.died_while_running, HEAL | END),
        BACKOFF=TableEntry(worker.died_while_backing_off, END | {SPENT}), SPENT=TableEntry(worker.died_while_spent, REPEATED),
        HALTING=TableEntry(worker.died_while_halting, END),
    ),
    coordinator_facts.LateFailure: _row(
        TableEntry(worker.failed_before, REPEATED),
        GATHERING=TableEntry(worker.note_failure), WAITING=TableEntry(worker.note_failure),
        HALTING=Ignored("the job is about to end"), ENDED=Ignored("the job is over"),
    ),
    coordinator_facts.WorkerFinished: _row(
        _NO_EPOCH,
        FORMING=TableEntry(worker.finished, END), RUNNING=TableEntry(worker.finished, END), BACKOFF=TableEntry(worker.finished, END),
    ),
    coordinator_facts.NodeFinished: _row(_NO_EPOCH, RUNNING=TableEntry(launcher.node_finished, END)),
    coordinator_facts.WorkerEntered: _row(
        TableEntry(worker.entered_meanwhile),
        FORMING=TableEntry(worker.entered_meanwhile, BEGIN), RUNNING=TableEntry(worker.entered_while_running, BEGIN),
        SPENT=TableEntry(worker.entered_meanwhile, BEGIN), HALTING=TableEntry(worker.entered_too_late),
        ENDED=TableEntry(worker.entered_too_late),
    ),
    coordinator_facts.StateHeld: _row(_NOT_FORMING, FORMING=TableEntry(worker.collect_state, BEGIN | VALID)),
    coordinator_facts.ConnectionsBroke: _row(
        TableEntry(worker.remember_torn),
        FORMING=TableEntry(worker.connections_broke, HEAL), RUNNING=TableEntry(worker.connections_broke, HEAL),
    ),
    coordinator_facts.WorkersStalled: _row(
        _NO_EPOCH, FORMING=TableEntry(worker.exclude_stalled, HEAL), RUNNING=TableEntry(worker.exclude_stalled, HEAL)
    ),
    coordinator_facts.WorkersStuck: _row(
        _NO_EPOCH, FORMING=TableEntry(worker.regroup_stuck, HEAL), RUNNING=TableEntry(worker.regroup_stuck, HEAL)
    ),
    coordinator_facts.WorkerRegrouped: _row(TableEntry(worker.regrouped)),
    coordinator_facts.WorkerResumed: _row(TableEntry(worker.resumed)),
    coordinator_facts.TrainingFinished: _row(TableEntry(worker.training_finished)),
    coordinator_facts.WorkerExited: _row(
        TableEntry(worker.exited),
        FORMING=TableEntry(worker.exited, BEGIN | END), RUNNING=TableEntry(worker.exited, END),
        HALTING=TableEntry(worker.exited_while_halting, END),
    ),
    coordinator_facts.LastCheckpointStatus: _row(TableEntry(worker.report_checkpoint), HALTING=TableEntry(worker.wait_for_checkpoint)),
    # --- commands ---
    coordinator_facts.RestartCommand: _row(
        TableEntry(command.refuse),
        RUNNING=TableEntry(command.restart_running, BEGIN), WAITING=TableEntry(command.restart_idle, BEGIN),
        BACKOFF=TableEntry(command.restart_idle, BEGIN), SPENT=TableEntry(command.restart_idle, BEGIN),
    ),
    coordinator_facts.LiftEviction: _row(
        TableEntry(command.release_later), RUNNING=TableEntry(command.release, BEGIN), WAITING=TableEntry(command.release, BEGIN)
    ),
    coordinator_facts.StopCommand: _row(TableEntry(command.stop, END), ENDED=TableEntry(command.stop_ended)),
    coordinator_facts.RebalanceCommand: _row(TableEntry(command.refuse_elastic), RUNNING=TableEntry(command.rebalance, BEGIN)),
    coordinator_facts.ResizeCommand: _row(TableEntry(command.refuse_elastic), RUNNING=TableEntry(command.resize, BEGIN)),
    # --- time ---
    coordinator_facts.PhaseTimeout: _row(
        Ignored("the job is over: its timers are disarmed"),
        GATHERING=TableEntry(launcher.gathering_is_late, FIRST_HEAL), FORMING=TableEntry(epoch.late_votes, BEGIN | VALID),
        RUNNING=TableEntry(launcher.batch_is_complete, BEGIN), WAITING=TableEntry(epoch.waited_for_nodes, HEAL | END | {RUNNING}),
        BACKOFF=TableEntry(epoch.backoff_is_over, BEGIN), SPENT=TableEntry(epoch.nobody_commanded, END),
        HALTING=TableEntry(epoch.halted_too_long, END),
    ),
    coordinator_facts.MajorityTimeout: _row(
        _OVERTAKEN, FORMING=TableEntry(epoch.no_majority_while_forming, END), RUNNING=TableEntry(launcher.majority_is_gone),
        WAITING=TableEntry(epoch.no_majority),
    ),
    coordinator_facts.MergeTimeout: _row(_OVERTAKEN, FORMING=TableEntry(epoch.merge_is_over, VALID)),
    coordinator_facts.JoinersTimeout: _row(_OVERTAKEN, RUNNING=TableEntry(worker.joiners_are_complete, BEGIN)),
    coordinator_facts.ReplacementTimeout: _row(
        Ignored("empty slots are filled once an epoch is valid"), RUNNING=TableEntry(worker.replacement_is_due)
    ),
    coordinator_facts.ReconnectTimeout: _row(_OVERTAKEN, FORMING=TableEntry(worker.reconnect, HEAL), RUNNING=TableEntry(worker.reconnect, HEAL)),
    coordinator_facts.BoundaryTimeout: _row(_OVERTAKEN, FORMING=TableEntry(worker.boundary_is_late, BEGIN)),
})  # fmt: skip


def apply(state: CoordinatorState, fact: Fact) -> Effects:
    """Change the state as the table says; what is to be done about the fact."""
    if isinstance(fact, coordinator_facts.WorkerDied):
        state.note_death(fact)
    entry = TRANSITIONS[type(fact)][state.phase]
    effects = [] if isinstance(entry, Ignored) else entry.do(state, fact)
    if isinstance(fact, coordinator_facts.WorkerDied) or any(isinstance(effect, Prepare | EndWorkers) for effect in effects):
        state.unbroken = False
    return effects


def edges() -> frozenset[tuple[JobPhase, JobPhase]]:
    """Every change of state that the table allows."""
    return frozenset(
        (state, to)
        for row in TRANSITIONS.values()
        for state, entry in row.items()
        if isinstance(entry, TableEntry)
        for to in entry.to - {state}
    )
