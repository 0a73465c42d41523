"""The coordinator's state machine: what each fact does in each state of the job, and to which states it may lead.

    coordinator learns a fact → TRANSITIONS[type of the fact][state] → effects

Every pair of a state and a kind of fact has an entry: a transition, or the reason why the fact is ignored. docs/elastic.md
draws the states; a test compares the drawing with this table.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from . import command_transitions as command
from . import epoch_formation as epoch
from . import facts
from . import launcher_transitions as launcher
from . import worker_transitions as worker
from .coordinator_state import CoordinatorState, Effects
from .facts import Fact
from .job_declaration import JobPhase

GATHERING, FORMING, RUNNING, WAITING = JobPhase.GATHERING, JobPhase.FORMING, JobPhase.RUNNING, JobPhase.WAITING
SPENT, HALTING, ENDED = JobPhase.SPENT, JobPhase.HALTING, JobPhase.ENDED

Leads = frozenset[JobPhase]


class Transition(msgspec.Struct, frozen=True):
    """What a fact does in a state."""

    do: Callable[[CoordinatorState, Any], Effects]
    to: Leads = frozenset()
    """States to which it may lead, besides the one that it finds."""


class Ignored(msgspec.Struct, frozen=True):
    """Nothing follows from a fact in a state."""

    reason: str


Row = Mapping[JobPhase, Transition | Ignored]

# Where the steps that transitions have in common may lead:
BEGIN: Leads = frozenset({FORMING, WAITING})
"""An epoch begins, or there are too few nodes."""
HEAL: Leads = BEGIN | {SPENT}
"""The same on the job's own budget."""
VALID: Leads = frozenset({RUNNING, HALTING})
"""An epoch is valid, or its workers can only save their state."""
END: Leads = frozenset({ENDED})


def _row(otherwise: Transition | Ignored, **states: Transition | Ignored) -> Row:
    """The transitions for one kind of fact."""
    return MappingProxyType({state: states.get(state.name, otherwise) for state in JobPhase})


_NOT_FORMING = Ignored("no epoch is being formed: the vote is for one that is valid or overtaken")
_NO_EPOCH = Ignored("no epoch is running: the fact is about one that is over")
_OVERTAKEN = Ignored("the epoch that armed the timer was overtaken")

TRANSITIONS: Mapping[type[Fact], Row] = MappingProxyType({
    # --- launchers ---
    facts.LauncherJoined: _row(
        Transition(launcher.joined_only),
        GATHERING=Transition(launcher.joined_while_gathering, HEAL), FORMING=Transition(launcher.joined_while_forming, BEGIN),
        RUNNING=Transition(launcher.joined_while_running, HEAL), WAITING=Transition(launcher.joined_while_waiting),
    ),
    facts.LauncherLost: _row(
        Transition(launcher.lost_only),
        GATHERING=Transition(launcher.lost_silently), FORMING=Transition(launcher.lost_while_forming, HEAL | VALID),
        RUNNING=Transition(launcher.lost_while_running, HEAL), HALTING=Transition(launcher.lost_while_halting, END),
        ENDED=Transition(launcher.lost_silently),
    ),
    facts.NoProgress: _row(
        Ignored("only the launchers of a running epoch are suspects"), RUNNING=Transition(launcher.suspects_are_lost, HEAL)
    ),
    # --- votes ---
    facts.VoteGiven: _row(_NOT_FORMING, FORMING=Transition(launcher.count_vote, VALID)),
    facts.VoteRefused: _row(Transition(launcher.learn_number), FORMING=Transition(launcher.take_higher_number, BEGIN)),
    facts.GrantAnswer: _row(Transition(launcher.learn_leader), FORMING=Transition(launcher.count_grant, VALID)),
    facts.EpochStarted: _row(_NO_EPOCH, RUNNING=Transition(launcher.report_start)),
    # --- workers ---
    facts.WorkerDied: _row(
        Transition(worker.died_meanwhile),
        FORMING=Transition(worker.died_while_forming, HEAL | VALID | END), RUNNING=Transition(worker.died_while_running, HEAL | END),
        HALTING=Transition(worker.died_while_halting, END),
    ),
    facts.NodeFinished: _row(_NO_EPOCH, RUNNING=Transition(launcher.node_finished, END)),
    facts.WorkerEntered: _row(
        Transition(worker.entered_meanwhile),
        FORMING=Transition(worker.entered_meanwhile, BEGIN), RUNNING=Transition(worker.entered_while_running, BEGIN),
        SPENT=Transition(worker.entered_meanwhile, BEGIN), HALTING=Transition(worker.entered_too_late),
        ENDED=Transition(worker.entered_too_late),
    ),
    facts.StateHeld: _row(_NOT_FORMING, FORMING=Transition(worker.collect_state, BEGIN | VALID)),
    facts.ConnectionsBroke: _row(
        Transition(worker.remember_torn),
        FORMING=Transition(worker.connections_broke, HEAL), RUNNING=Transition(worker.connections_broke, HEAL),
    ),
    facts.WorkersStalled: _row(
        _NO_EPOCH, FORMING=Transition(worker.exclude_stalled, HEAL), RUNNING=Transition(worker.exclude_stalled, HEAL)
    ),
    facts.WorkersStuck: _row(
        _NO_EPOCH, FORMING=Transition(worker.regroup_stuck, HEAL), RUNNING=Transition(worker.regroup_stuck, HEAL)
    ),
    facts.WorkerRegrouped: _row(Transition(worker.regrouped)),
    facts.WorkerResumed: _row(Transition(worker.resumed)),
    facts.TrainingFinished: _row(Transition(worker.training_finished)),
    facts.WorkerExited: _row(
        Transition(worker.exited),
        FORMING=Transition(worker.exited, BEGIN | END), RUNNING=Transition(worker.exited, END),
        HALTING=Transition(worker.exited_while_halting, END),
    ),
    facts.LastCheckpointStatus: _row(Transition(worker.report_checkpoint), HALTING=Transition(worker.wait_for_checkpoint)),
    # --- commands ---
    facts.RestartCommand: _row(
        Transition(command.refuse),
        RUNNING=Transition(command.restart_running, BEGIN), WAITING=Transition(command.restart_idle, BEGIN),
        SPENT=Transition(command.restart_idle, BEGIN),
    ),
    facts.ReleaseCommand: _row(
        Transition(command.release_later), RUNNING=Transition(command.release, BEGIN), WAITING=Transition(command.release, BEGIN)
    ),
    facts.StopCommand: _row(Transition(command.stop, END), ENDED=Transition(command.stop_ended)),
    facts.RebalanceCommand: _row(Transition(command.refuse_elastic), RUNNING=Transition(command.rebalance, BEGIN)),
    facts.ResizeCommand: _row(Transition(command.refuse_elastic), RUNNING=Transition(command.resize, BEGIN)),
    # --- time ---
    facts.PhaseTimeout: _row(
        Ignored("the job is over: its timers are disarmed"),
        GATHERING=Transition(launcher.gathering_is_late, HEAL), FORMING=Transition(epoch.late_votes, BEGIN | VALID),
        RUNNING=Transition(launcher.batch_is_complete, BEGIN), WAITING=Transition(epoch.waited_for_nodes, BEGIN | END),
        SPENT=Transition(epoch.nobody_commanded, END), HALTING=Transition(epoch.halted_too_long, END),
    ),
    facts.MajorityTimeout: _row(
        _OVERTAKEN, FORMING=Transition(epoch.no_majority_while_forming, BEGIN | END), WAITING=Transition(epoch.no_majority)
    ),
    facts.MergeTimeout: _row(_OVERTAKEN, FORMING=Transition(epoch.merge_is_over, VALID)),
    facts.JoinersTimeout: _row(_OVERTAKEN, RUNNING=Transition(worker.joiners_are_complete, BEGIN)),
    facts.ReconnectTimeout: _row(_OVERTAKEN, FORMING=Transition(worker.reconnect, HEAL), RUNNING=Transition(worker.reconnect, HEAL)),
    facts.BoundaryTimeout: _row(_OVERTAKEN, FORMING=Transition(worker.boundary_is_late, BEGIN)),
})  # fmt: skip


def apply(state: CoordinatorState, fact: Fact) -> Effects:
    """Change the state as the table says; what is to be done about the fact."""
    entry = TRANSITIONS[type(fact)][state.phase]
    return [] if isinstance(entry, Ignored) else entry.do(state, fact)


def edges() -> frozenset[tuple[JobPhase, JobPhase]]:
    """Every change of state that the table allows."""
    return frozenset(
        (state, to)
        for row in TRANSITIONS.values()
        for state, entry in row.items()
        if isinstance(entry, Transition)
        for to in entry.to - {state}
    )
