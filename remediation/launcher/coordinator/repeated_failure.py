"""What a job does about a failure that comes again: it skips the step whose data raises it, if its user allows that, else it stops."""

from remediation.launcher.job_declaration import DEATH, EpochRequest, JobPhase

from .coordinator_effects import EmitEvent
from .coordinator_facts import WorkerDied
from .coordinator_state import CoordinatorState, Effects
from .epoch_formation import begin, restart


def repeated(state: CoordinatorState, fact: WorkerDied) -> str:
    """Why the program or its data is to blame; '' if nothing shows it."""
    if fact.symptom and (early := state.early_ends.needed(fact.epoch, fact.step)):
        return ended_early_again(state, early, fact.epoch)
    if fact.missed_a_peer:
        state.failures.missed_a_peer(fact.worker, fact.epoch)
        return ""
    why = state.failures.repeated(fact.signature, fact.worker, fact.epoch, one_node=_on_one_node(state))
    if why and fact.signature is not None and fact.signature.ambiguous and not state.in_place:
        state.suspected = fact
        return ""
    return why


def _on_one_node(state: CoordinatorState) -> bool:
    return state.in_place and state.last is not None and len(state.last.nodes) == 1


def confirm_suspicion(state: CoordinatorState) -> Effects:
    """FORMING: every launcher has ended its workers, and told what they had died of: does the end without an exception still look like the program's?

    Elastic workers need no such wait: they live on when a peer dies.
    """
    fact, layout = state.suspected, state.forming
    if fact is None or fact.signature is None or layout is None or layout.in_place or not state.quorum.agreed(layout):
        return []
    state.suspected = None
    why = state.failures.told_again(fact.signature, fact.worker, fact.epoch) if state.request.reason == DEATH else ""
    return skip_or_stop(state, fact, why) if why else []


def ended_early_again(state: CoordinatorState, worker: str, epoch: int) -> str:
    """The same of a worker that ended with exit code 0 while the others still needed it."""
    return state.failures.repeated(state.early_ends.signature(worker, epoch), worker, epoch)


def skip_or_stop(state: CoordinatorState, fact: WorkerDied, why: str, *, served: bool = False) -> Effects:
    """`served`: an elastic worker, whose peers would die of it one after the other: they save a checkpoint before they end."""
    step = fact.signature.step if fact.signature is not None else -1
    if _being_skipped(state, step, fact.epoch):
        return []
    if step >= 0 and step not in state.skipped and len(state.skipped) < state.declaration.max_skipped_steps:
        return _skip(state, fact, step)
    reason = f"{why}{_no_skip(state, step)}" if fact.signature is not None else why
    if served and state.lives_on:
        return begin(state, EpochRequest(reason=DEATH, cause=fact.cause, kind=fact.kind, in_place=True, halt=reason, final=True))
    return state.fail(reason)


def _being_skipped(state: CoordinatorState, step: int, epoch: int) -> bool:
    """The workers that skip it have not started yet, or this death is of those before them."""
    if step not in state.skipped or state.phase is not JobPhase.RUNNING or state.last is None:
        return step in state.skipped
    return step not in state.last.skipped or epoch < state.last.epoch


def _skip(state: CoordinatorState, fact: WorkerDied, step: int) -> Effects:
    """All workers start again: those that live on have not been told to skip it."""
    state.skipped.add(step)
    told = f"{len(state.skipped)} of {state.declaration.max_skipped_steps} (--max-skipped-steps)"
    attributes = {"epoch": str(state.epoch), "step": str(step), "cause": fact.cause, "skipped": str(len(state.skipped))}
    event = EmitEvent(name="step.skipped", message=f"step {step} is skipped from now on, {told}: {fact.signature}", attributes=attributes)
    if state.phase is JobPhase.BACKOFF:  # its workers start when that is over
        return [event]
    return [event, *restart(state, EpochRequest(reason=DEATH, cause=fact.cause, kind=fact.kind, step=fact.step))]


def _no_skip(state: CoordinatorState, step: int) -> str:
    """Why the step was not skipped, for somebody who allows it."""
    allowed = state.declaration.max_skipped_steps
    if not allowed:
        return ""
    if step < 0:
        return "; it cannot be skipped: the step is not known (the script makes no marks)"
    if step in state.skipped:
        return f"; it comes although the batch of step {step} is drawn and skipped"
    return f"; {len(state.skipped)} steps are skipped already (--max-skipped-steps {allowed})"
