"""Handlers of facts about workers, most of them elastic. `coordinator_state_machine.py` says in which state each one applies."""

from msgspec.structs import replace

from eagle_eye.event_attributes import EXCLUDED_STALLED
from remediation.launcher.job_declaration import DEATH, LOST, EpochRequest, JobPhase

from .coordinator_effects import DismissWorker, EmitEvent
from .coordinator_facts import (
    BoundaryTimeout,
    ConnectionsBroke,
    JoinersTimeout,
    LastCheckpointStatus,
    LateFailure,
    MergeTimeout,
    ReconnectTimeout,
    ReplacementTimeout,
    StateHeld,
    TrainingFinished,
    WorkerDied,
    WorkerEntered,
    WorkerExited,
    WorkerFinished,
    WorkerRegrouped,
    WorkerResumed,
    WorkersStalled,
    WorkersStarted,
    WorkersStuck,
)
from .coordinator_state import CoordinatorState, Effects
from .epoch_formation import (
    amend,
    begin,
    fail_at_start,
    fail_halted,
    heal,
    recharge,
    replace_workers,
    restart,
    validate_if_agreed,
)
from .launcher_handlers import EVICTED, first_epoch_in_place, report_start
from .repeated_failure import ended_early_again, repeated, skip_or_stop
from .worker_registry import JoinRequest

EXPLAINED_BY_DEATH = frozenset({"broken", "stuck", "join"})
"""Reasons of an epoch that is another one's once a worker of the running epoch turns out to be dead."""

# --- entered ------------------------------------------------------------------------------------------------------------


def entered_too_late(_: CoordinatorState, fact: WorkerEntered) -> Effects:
    """HALTING, ENDED: there is no epoch for it."""
    request = fact.join_request
    return [DismissWorker(node=request.node, worker=request.worker, reason="the job has ended")]


def entered_meanwhile(state: CoordinatorState, fact: WorkerEntered) -> Effects:
    """No epoch is running: it is kept in the registry for the next one."""
    if state.elastic.registry.done:
        return entered_too_late(state, fact)
    if fact.join_request.node in state.membership.evicted:
        return _turn_away(state, fact.join_request)
    _register(state, fact.join_request)
    return []


def entered_while_running(state: CoordinatorState, fact: WorkerEntered) -> Effects:
    """RUNNING: it joins at the next boundary, together with others that are on their way."""
    if state.elastic.registry.done:
        return entered_too_late(state, fact)
    if fact.join_request.node in state.membership.evicted:
        return _turn_away(state, fact.join_request)
    served = _register(state, fact.join_request)
    if state.last is None:
        return []
    if not state.last.in_place:
        return first_epoch_in_place(state)
    if served:  # it was fenced without our knowing, and what it held is gone
        return begin(state, EpochRequest(reason="join", in_place=True))
    if state.elastic.registry.awaited:
        state.timers.arm_batch(JoinersTimeout)
        return []
    return _take_in(state)


def replacement_is_due(state: CoordinatorState, _: ReplacementTimeout) -> Effects:
    """RUNNING: the back-off of a worker that kept dying is over."""
    return replace_workers(state)


def joiners_are_complete(state: CoordinatorState, _: JoinersTimeout) -> Effects:
    """RUNNING: the workers that wait become part of the job at the next boundary."""
    return _take_in(state)


def _take_in(state: CoordinatorState) -> Effects:
    if state.last is None or not state.last.in_place or not state.elastic.waiting(state.eligible):
        return []
    return begin(state, EpochRequest(reason="join", in_place=True, soft=bool(state.elastic.serving)))


def _register(state: CoordinatorState, request: JoinRequest) -> bool:
    """It has entered; whether it was part of the running epoch."""
    state.elastic.registry.enter(request)
    state.budget.suit_elastic_workers()
    served = state.elastic.serving.pop(request.worker, None) is not None
    state.elastic.state_holders.lost(request.worker)
    return served


def _turn_away(state: CoordinatorState, request: JoinRequest) -> Effects:
    """A worker of an evicted node has entered, or entered again: it is not waited for."""
    state.elastic.registry.gone(request.worker)
    served = state.elastic.serving.pop(request.worker, None) is not None
    dismissed: Effects = [DismissWorker(node=request.node, worker=request.worker, reason=EVICTED)]
    if not served:
        return dismissed
    state.elastic.lost.add(request.worker)
    return dismissed + begin(state, replace(state.request, in_place=True, soft=False))


# --- held ---------------------------------------------------------------------------------------------------------------


def collect_state(state: CoordinatorState, fact: StateHeld) -> Effects:
    """FORMING: the epoch in place may be valid now; the silent workers are excluded."""
    if not state.is_forming(fact.epoch) or state.forming is None or not state.request.in_place:
        return []
    state.elastic.holdings |= {holding.worker: holding for holding in fact.holdings}
    silent = [worker for worker in fact.silent if worker in state.forming.workers and worker in state.elastic.registry.entered]
    if not silent:
        return validate_if_agreed(state)
    excluded = [effect for worker in silent for effect in state.elastic.exclude(worker, "it did not answer a fence", proved=False)]
    return excluded + begin(state, replace(state.request, soft=False))


# --- died ---------------------------------------------------------------------------------------------------------------


def _is_elastic(state: CoordinatorState) -> bool:
    return (state.last is not None and state.last.in_place) or bool(state.elastic.registry.entered)


def forget_dead(state: CoordinatorState, fact: WorkerDied) -> bool:
    """Take it out of what is known of elastic workers; False if the job has none, or another process has its name by now."""
    if not _is_elastic(state) or state.elastic.registry.is_of_another_life(fact.worker, fact.pid):
        return False
    state.elastic.state_holders.lost(fact.worker, fact.step)
    state.elastic.count_respawn(fact.worker, state.membership.members)
    if state.elastic.registry.is_replaced(fact.worker):
        state.elastic.replacement_backoff.died(fact.worker, fact.kind)
    state.elastic.lose(fact.worker)
    return True


def died_meanwhile(state: CoordinatorState, fact: WorkerDied) -> Effects:
    """No epoch is running or being formed: it is known to be gone."""
    forget_dead(state, fact)
    repeated(state, fact)
    return []


def died_while_spent(state: CoordinatorState, fact: WorkerDied) -> Effects:
    """SPENT: a death of the failure that was one too many, told late: it may say what all of them died of."""
    forget_dead(state, fact)
    return failed_before(state, fact)


def failed_before(state: CoordinatorState, fact: WorkerDied) -> Effects:
    """What a worker of an epoch that is over had failed of: nothing is healed for it, and it counts where the same came before."""
    why = repeated(state, fact)
    return skip_or_stop(state, fact, why, served=True) if why else recharge(state, fact)


def note_failure(state: CoordinatorState, fact: LateFailure) -> Effects:
    """The same, while no workers run that would fail again."""
    repeated(state, fact)
    return []


def died_while_halting(state: CoordinatorState, fact: WorkerDied) -> Effects:
    """HALTING: one less to wait for."""
    if not forget_dead(state, fact) or state.elastic.registry.entered:
        return []
    return fail_halted(state)


def died_while_running(state: CoordinatorState, fact: WorkerDied) -> Effects:
    """RUNNING: the job heals, fails, or is finished."""
    if not _is_elastic(state):
        return _process_died(state, fact)
    served, done = fact.worker in state.elastic.serving, fact.worker in state.elastic.registry.done
    if not forget_dead(state, fact) or state.last is None:
        return []
    if done:
        return _ended(state, fact)
    if not state.last.in_place:
        return _died_unmet(state, fact)
    return _died_at_work(state, fact) if served else [*state.elastic.not_grown(), *replace_workers(state)]


def _process_died(state: CoordinatorState, fact: WorkerDied) -> Effects:
    """Of a job that is not elastic."""
    if state.last is None or (fact.worker and fact.worker not in state.last.workers):  # such as of a launcher without workers
        return []
    if not state.is_current(fact.epoch):
        return failed_before(state, fact)
    begun = report_start(state, WorkersStarted(epoch=fact.epoch))  # who dies at once may be told before the launchers have answered
    if _fails_by_itself(state, fact):
        return [*begun, *fail_at_start(state, fact)]
    if why := repeated(state, fact):
        return [*begun, *skip_or_stop(state, fact, why)]
    return [*begun, *heal(state, _failure(state, fact))]


def _fails_by_itself(state: CoordinatorState, fact: WorkerDied) -> bool:
    """The script ended before its first step: to start it again helps nobody.

    Who missed a peer, or whose peers are lost, says nothing of that: what the peer died of is told next, perhaps that it was killed. A job that
    may not start again would wait for that in vain.
    """
    if not fact.at_start or state.suspects or state.last is None or state.last.reason != "start":
        return False
    return not fact.missed_a_peer or bool(state.budget.refusal(fact.kind))


def _died_at_work(state: CoordinatorState, fact: WorkerDied) -> Effects:
    if fact.at_start and not state.elastic.stepped:
        return fail_at_start(state, fact)
    state.elastic.noticed_s = max(state.elastic.noticed_s, fact.noticed_s)
    if why := repeated(state, fact):
        return skip_or_stop(state, fact, why, served=True)
    return heal(state, replace(_failure(state, fact), plan=state.elastic.plan_for_loss(fact.worker, state.epoch)))


def _failure(state: CoordinatorState, fact: WorkerDied) -> EpochRequest:
    """A death beside a lost session is the node's, and no matter how the worker ended.

    Of an epoch that could not be started (no event tells of a worker) the order to go back still stands: what lies beyond may be what it was given for.
    """
    unstarted = bool(fact.at_start) and not fact.cause
    resume_step = state.last.resume_step if state.last is not None and unstarted else -1
    if state.suspects:
        return EpochRequest(reason=LOST, cause=fact.cause, step=fact.step, resume_step=resume_step)
    return EpochRequest(reason=DEATH, cause=fact.cause, kind=fact.kind, symptom=fact.missed_a_peer, step=fact.step, resume_step=resume_step)


def _died_unmet(state: CoordinatorState, fact: WorkerDied) -> Effects:
    """Of the workers of a new epoch, some of which have entered."""
    if state.last is None or not state.is_current(fact.epoch):
        return []
    if fact.at_start and state.last.reason == "start":
        return fail_at_start(state, fact)
    state.elastic.died_unmet.add(fact.worker)
    if not state.budget.rule.in_place or not state.elastic.registry.entered:
        return [*report_start(state, WorkersStarted(epoch=fact.epoch)), *heal(state, _failure(state, fact))]
    return first_epoch_in_place(state)


def died_while_forming(state: CoordinatorState, fact: WorkerDied) -> Effects:
    """FORMING: the epoch goes on without it, or begins anew."""
    served, leaving = fact.worker in state.elastic.serving, fact.worker in state.elastic.registry.leaving
    if not forget_dead(state, fact):
        why = repeated(state, fact)
        return skip_or_stop(state, fact, why) if why else recharge(state, fact)
    layout, request = state.forming, state.request
    if layout is None or not layout.in_place:
        return []
    if fact.worker in state.elastic.registry.done:
        return _ended(state, fact)
    if served and (why := repeated(state, fact)):
        return skip_or_stop(state, fact, why, served=True)
    if request.soft:
        if served and leaving:  # it was to go: only its part of the step is lost
            return begin(state, replace(request, soft=False))
        if served:
            return heal(state, _failure(state, fact))
        return begin(state, request) if fact.worker in layout.workers else []
    return _died_fenced(state, fact, served=served) if fact.worker in layout.workers else []


def _died_fenced(state: CoordinatorState, fact: WorkerDied, *, served: bool) -> Effects:
    """One of the workers that were asked what they hold."""
    request = state.request
    if served and (request.reason in EXPLAINED_BY_DEATH or (request.reason == LOST and state.all_here)):
        request = state.request = replace(request, reason=DEATH, cause=fact.cause)
    if not state.elastic.placements(state.eligible):
        return _last_died(state, fact)
    return amend(state) if state.timers.armed(MergeTimeout) else begin(state, request)


def _last_died(state: CoordinatorState, fact: WorkerDied) -> Effects:
    """Nobody is left of the epoch that was being formed: new processes begin, unless the job was to end anyway."""
    request = state.request
    if request.final:
        return state.fail(request.halt)
    return restart(state, replace(request, step=max(request.step, fact.step))) if request.paid else heal(state, _failure(state, fact))


def died_while_backing_off(state: CoordinatorState, fact: WorkerDied) -> Effects:
    """BACKOFF: a death of the failure that the workers wait for, told late."""
    why = repeated(state, fact)
    forget_dead(state, fact)
    return skip_or_stop(state, fact, why) if why else recharge(state, fact)


# --- broken, stalled, stuck -----------------------------------------------------------------------------------------------


def remember_torn(state: CoordinatorState, fact: ConnectionsBroke) -> Effects:
    """The next transition takes the damaged layers from another worker."""
    if fact.sender in state.elastic.serving:
        state.elastic.torn.setdefault(fact.sender, set()).update(fact.layers)
    return []


def connections_broke(state: CoordinatorState, fact: ConnectionsBroke) -> Effects:
    """RUNNING, FORMING: with a suspect a node is lost; without one somebody may still be found dead."""
    remember_torn(state, fact)
    if not state.training or not state.is_current(fact.epoch) or fact.worker not in state.elastic.serving:
        return []
    if state.suspects:
        return heal(state, EpochRequest(reason=LOST))
    state.timers.arm_once(state.declaration.reconnect_s, ReconnectTimeout)
    return []


def reconnect(state: CoordinatorState, _: ReconnectTimeout) -> Effects:
    """RUNNING, FORMING: nobody was found dead: the same workers are connected anew."""
    return heal(state, EpochRequest(reason="broken")) if state.training and state.in_place else []


def exclude_stalled(state: CoordinatorState, fact: WorkersStalled) -> Effects:
    """RUNNING, FORMING: the others go on without them, unless all stall."""
    found = [worker for worker in fact.workers if worker in state.elastic.serving]
    if not state.training or not state.in_place or not state.is_current(fact.epoch):
        return []
    if not found or len(found) == len(state.elastic.serving):
        return []
    if state.phase is JobPhase.FORMING and state.elastic.evicted_workers(state.membership.evicted).issuperset(found):
        return exclude_leaving(state, state.request) if state.request.soft else []
    excluded = [effect for worker in found for effect in state.elastic.exclude(worker, EXCLUDED_STALLED)]
    state.elastic.noticed_s = max(fact.workers.values())
    return excluded + heal(state, EpochRequest(reason="stall"))


def regroup_stuck(state: CoordinatorState, fact: WorkersStuck) -> Effects:
    """RUNNING, FORMING: they are fenced and regrouped, and the one that does not answer is excluded."""
    if not state.training or not state.in_place or not state.is_current(fact.epoch):
        return []
    state.elastic.stuck_count += 1
    return heal(state, EpochRequest(reason="stuck"))


def boundary_is_late(state: CoordinatorState, _: BoundaryTimeout) -> Effects:
    """FORMING: the workers that are to leave do not come to the end of their step."""
    return exclude_leaving(state, state.request) if state.request.soft else []


def exclude_leaving(state: CoordinatorState, request: EpochRequest) -> Effects:
    """The others do not wait for the workers of evicted nodes."""
    why = f"{EVICTED}, and it did not come to the end of its step"
    leaving = sorted(state.elastic.evicted_workers(state.membership.evicted))
    excluded = [effect for worker in leaving for effect in state.elastic.exclude(worker, why)]
    return excluded + begin(state, replace(request, in_place=True, soft=False))


# --- the end --------------------------------------------------------------------------------------------------------------


def finished(state: CoordinatorState, fact: WorkerFinished) -> Effects:
    """Others may have died of it already, or will; where that comes back the job ends."""
    early = state.early_ends.finished(fact.worker, fact.epoch, fact.step)
    why = ended_early_again(state, early, fact.epoch) if early else ""
    return state.fail(why) if why else []


def training_finished(state: CoordinatorState, fact: TrainingFinished) -> Effects:
    """A worker has done its part; the job is finished when all have exited."""
    elastic = state.elastic
    if state.last is not None and fact.epoch >= state.last.epoch and fact.worker in elastic.serving and fact.worker not in elastic.registry.leaving:
        elastic.registry.done.add(fact.worker)
    return _committed(state, fact.worker, fact.epoch, 0.0, ())  # the step in flight was its last: it commits no further one


def exited(state: CoordinatorState, fact: WorkerExited) -> Effects:
    """The job may be finished; a worker that was released makes room for another one."""
    registry = state.elastic.registry
    if registry.is_of_another_life(fact.worker, fact.pid):
        return []
    released = fact.worker in registry.leaving
    served = state.elastic.serving.pop(fact.worker, None) is not None
    registry.gone(fact.worker)
    if released or not (served or fact.worker in registry.done):
        return replace_workers(state)  # its node may have been released meanwhile
    registry.done.add(fact.worker)
    return _ended(state, None)


def exited_while_halting(state: CoordinatorState, fact: WorkerExited) -> Effects:
    """HALTING: the job has stopped when all have exited."""
    registry = state.elastic.registry
    if registry.is_of_another_life(fact.worker, fact.pid):
        return []
    state.elastic.serving.pop(fact.worker, None)
    registry.gone(fact.worker)
    return [] if registry.entered else fail_halted(state)


def _ended(state: CoordinatorState, death: WorkerDied | None) -> Effects:
    """One of those that have done their part has ended; have all?"""
    if death is not None and death.code is not None and death.code > 0:
        return state.fail(f"{death.worker} ended with code {death.code} after the training: see its log")
    if state.phase not in {JobPhase.RUNNING, JobPhase.FORMING}:
        return []
    if not state.elastic.serving:
        return state.finish()
    again = state.phase is JobPhase.FORMING and not state.request.soft
    return begin(state, state.request) if again else []


def report_checkpoint(state: CoordinatorState, fact: LastCheckpointStatus) -> Effects:
    """The event, if the checkpoint cannot be written."""
    return state.elastic.last_checkpoint.heard(fact.worker, fact.step, fact.why, fact.path)


def wait_for_checkpoint(state: CoordinatorState, fact: LastCheckpointStatus) -> Effects:
    """HALTING: as long as its worker reports, it is not ended: nothing else is left of the job."""
    state.timers.arm(state.declaration.halt_s)
    return report_checkpoint(state, fact)


# --- recovery statistics ----------------------------------------------------------------------------------------------------


def regrouped(state: CoordinatorState, fact: WorkerRegrouped) -> Effects:
    """What the transition cost this worker."""
    stats = state.elastic.recovery_stats
    if stats is None or stats.epoch != fact.epoch or fact.worker not in stats.waited_for:
        return []
    stats.regrouped(fact.timings)
    entered = state.elastic.registry.entered
    if "loaded_step" not in fact.timings or fact.worker not in entered:
        return []
    return state.elastic.state_holders.fell_back(fact.worker, int(fact.timings["loaded_step"]), len(entered[fact.worker].layers))


def resumed(state: CoordinatorState, fact: WorkerResumed) -> Effects:
    """The event `transition.done` once all have committed a step."""
    state.elastic.replacement_backoff.worked(fact.worker)
    stats = state.elastic.recovery_stats
    if stats is None or stats.epoch != fact.epoch:
        return []
    state.elastic.stepped, state.elastic.stuck_count = True, 0
    state.elastic.state_holders.add(fact.worker)
    return _committed(state, fact.worker, fact.epoch, fact.recompute_s, fact.recomputed)


def _committed(state: CoordinatorState, worker: str, epoch: int, recompute_s: float, recomputed: tuple[int, ...]) -> Effects:
    stats = state.elastic.recovery_stats
    if stats is None or stats.epoch != epoch or not stats.resumed(worker, recompute_s, recomputed):
        return []
    state.elastic.recovery_stats = None
    lost = stats.attributes["lost"]
    message = f"epoch {epoch} trains: {stats.words['reason']}" + (f", without {lost}" if lost else "")
    return [EmitEvent(name="transition.done", message=message, attributes=stats.attributes)]
