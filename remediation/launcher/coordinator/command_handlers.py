"""Handlers of commands of the leader and of operators. `coordinator_state_machine.py` says in which state each one applies.

Each command gets one `CommandResult`: at once if it is refused or nothing is to be done, else when its epoch has started.
"""

from msgspec.structs import replace

from remediation.launcher.job_declaration import EpochRequest, JobPhase

from .coordinator_effects import CommandResult, End
from .coordinator_facts import (
    BoundaryTimeout,
    JobCommand,
    LiftEviction,
    RebalanceCommand,
    ResizeCommand,
    RestartCommand,
    StopCommand,
)
from .coordinator_state import CoordinatorState, Effects
from .epoch_formation import ISOLATED, STALLS, begin, replace_workers
from .worker_handlers import exclude_leaving


def refuse(state: CoordinatorState, fact: JobCommand) -> Effects:
    """Not in this state."""
    return [CommandResult(command=fact.key, error=f"the job is {state.phase}: ask again in its next epoch")]


# --- restart ------------------------------------------------------------------------------------------------------------


def restart_running(state: CoordinatorState, fact: RestartCommand) -> Effects:
    """RUNNING: all workers, some workers, or an eviction in place."""
    return _restart_some(state, fact) if _names_workers_alone(state, fact) else _restart(state, fact)


def restart_idle(state: CoordinatorState, fact: RestartCommand) -> Effects:
    """WAITING, BACKOFF, SPENT: all workers, at once."""
    return refuse(state, fact) if _names_workers_alone(state, fact) else _restart(state, fact)


def _names_workers_alone(state: CoordinatorState, fact: RestartCommand) -> bool:
    return bool(fact.workers) and state.in_place and not (_changes_state(fact) or fact.exclude or fact.release or fact.swap)


def _changes_state(fact: RestartCommand) -> bool:
    """The workers are to go on from another state, or with other data: none of them can live on."""
    return fact.resume_step >= 0 or bool(fact.skip or fact.swap)


def _restart(state: CoordinatorState, fact: RestartCommand) -> Effects:
    request = EpochRequest(reason=fact.reason, kind=fact.kind, plan=fact.plan, resume_step=fact.resume_step)
    evicted = (state.membership.evicted | set(fact.exclude)) - set(fact.release)
    in_place = bool(fact.exclude or fact.release) and not (_changes_state(fact) or fact.workers) and _lives_without(state, evicted)
    error = _too_few_nodes_without(state, evicted) or (state.elastic.too_few_without(evicted, state.membership) if in_place else "")
    error = error or _unknown_nodes(state, fact.swap) or _overdrawn(state, fact)
    if error:
        return [CommandResult(command=fact.key, error=error)]
    if in_place:
        return _evict_in_place(state, fact.key, evicted, request)
    state.membership.evicted = evicted
    state.skipped |= set(fact.skip)
    state.swap = fact.swap
    if not fact.own:
        state.restarts.reset()
    state.unanswered.append(fact.key)
    return begin(state, request)


def _overdrawn(state: CoordinatorState, fact: RestartCommand) -> str:
    """Charge the job's own budget if the command says so; the error if nothing is left of it. A restart that backs off is paid for."""
    if not fact.own or state.phase is JobPhase.BACKOFF:
        return ""
    kind = fact.kind or fact.reason
    refusal = state.budget.refusal(kind)
    state.budget.take(kind)
    return refusal and f"the job's own budget is exhausted: {refusal}"


def _unknown_nodes(state: CoordinatorState, nodes: tuple[str, ...]) -> str:
    missing = next((node for node in nodes if not state.membership.is_connected(node)), "")
    return missing and f"no launcher of the job is on {missing}: its ranks cannot be exchanged"


def _too_few_nodes_without(state: CoordinatorState, evicted: set[str]) -> str:
    left = state.membership.connected_without(evicted)
    if left >= state.declaration.min_nodes:
        return ""
    return f"without {', '.join(sorted(evicted))} {left} node(s) are left, the job needs {state.declaration.min_nodes}"


def _restart_some(state: CoordinatorState, fact: RestartCommand) -> Effects:
    serving = state.elastic.serving
    found = [worker for worker in fact.workers if worker in serving]
    if not found:  # the job was faster
        return [CommandResult(command=fact.key, epoch=state.epoch)]
    if len(found) == len(serving):  # none would be left to go on
        return _restart(state, RestartCommand(key=fact.key, plan=fact.plan, reason=fact.reason, kind=fact.kind, own=fact.own))
    error = _overdrawn(state, fact)
    if error:
        return [CommandResult(command=fact.key, error=error)]
    state.unanswered.append(fact.key)
    excluded = [effect for worker in found for effect in state.elastic.exclude(worker, "it is restarted by command")]
    return excluded + begin(state, EpochRequest(reason=fact.reason, kind=fact.kind, plan=fact.plan, in_place=True))


# --- evict and release ----------------------------------------------------------------------------------------------------


def _lives_without(state: CoordinatorState, evicted: set[str]) -> bool:
    """The job may heal in place, and some worker that has its state stays."""
    if state.last is None or state.phase is not JobPhase.RUNNING or not state.in_place:
        return False
    return any(state.last.node_of(worker) not in evicted for worker in state.elastic.serving)


def _evict_in_place(state: CoordinatorState, key: str, evicted: set[str], request: EpochRequest) -> Effects:
    """A soft epoch: the workers that leave finish the step with the others. `evicted`: all nodes that take no part from now on.

    If they do not come to its end they are excluded, and the others do their part of the step.
    """
    leaving = state.elastic.evicted_workers(evicted)
    if state.stalls and not (leaving and state.may_go_on):  # nobody's workers are touched without a majority, nor for a node that is idle
        return [CommandResult(command=key, error=STALLS if state.may_go_on else ISOLATED)]
    state.elastic.forgive(state.membership.evicted - evicted)
    state.membership.evicted = evicted
    state.unanswered.append(key)
    state.elastic.registry.leaving |= leaving
    if state.stalls:
        return exclude_leaving(state, request)
    if leaving:
        state.timers.arm(state.declaration.boundary_s, BoundaryTimeout)
    return begin(state, replace(request, in_place=True, soft=True))


def release(state: CoordinatorState, fact: LiftEviction) -> Effects:
    """RUNNING, WAITING: the node takes part again if there is room and its launcher is connected."""
    _lift_eviction(state, fact.node)
    room = state.last is not None and len(state.last.nodes) < state.declaration.max_nodes
    if not state.membership.is_connected(fact.node) or not room:
        return [CommandResult(command=fact.key, epoch=state.epoch)]
    if state.in_place:
        return [*replace_workers(state), CommandResult(command=fact.key, epoch=state.epoch)]
    state.unanswered.append(fact.key)
    return begin(state, EpochRequest(reason="node released", plan=fact.plan))


def release_later(state: CoordinatorState, fact: LiftEviction) -> Effects:
    """Other states: the next epoch may use the node."""
    _lift_eviction(state, fact.node)
    return [CommandResult(command=fact.key, epoch=state.epoch)]


def _lift_eviction(state: CoordinatorState, node: str) -> None:
    state.membership.evicted.discard(node)
    state.elastic.forgive([node])


# --- stop -----------------------------------------------------------------------------------------------------------------


def stop(state: CoordinatorState, fact: StopCommand) -> Effects:
    """The job ends with code 130."""
    state.phase = JobPhase.ENDED
    state.timers.clear()
    return [*stop_ended(state, fact), state.job_event("job.finished", "stopped", reason="stopped"), End(code=130, reason="stopped")]


def stop_ended(state: CoordinatorState, fact: StopCommand) -> Effects:
    """ENDED: it is so already."""
    return [CommandResult(command=fact.key, epoch=state.epoch)] if fact.key else []


# --- rebalance and resize ---------------------------------------------------------------------------------------------------


def _not_now(state: CoordinatorState) -> str:
    """Why a command to elastic workers cannot be done; '' if it can."""
    if state.last is None or not state.last.in_place:
        return "the workers of this job are not elastic (they do not call eagle_eye.elastic), or have not met yet"
    if state.phase is not JobPhase.RUNNING:
        return f"the job is {state.phase}: ask again in its next epoch"
    return STALLS if state.stalls else ""


def refuse_elastic(state: CoordinatorState, fact: JobCommand) -> Effects:
    """Not in this state, or not for this job."""
    return [CommandResult(command=fact.key, error=_not_now(state))]


def rebalance(state: CoordinatorState, fact: RebalanceCommand) -> Effects:
    """RUNNING: from the next boundary on each worker's part of the micro-batches follows these numbers."""
    error = _not_now(state) or _wrong_share(state, fact.shares)
    if error:
        return [CommandResult(command=fact.key, error=error)]
    state.elastic.speeds = dict(fact.shares)
    state.unanswered.append(fact.key)
    return begin(state, EpochRequest(reason="rebalance", plan=fact.plan, in_place=True, soft=True))


def _wrong_share(state: CoordinatorState, shares: dict[str, float]) -> str:
    unknown = sorted(shares.keys() - state.elastic.serving.keys())
    if unknown:
        return f"{unknown[0]} is no worker of the job"
    wrong = next((worker for worker, share in shares.items() if not share > 0), "")
    return wrong and f"the share of {wrong} must be above zero"


def resize(state: CoordinatorState, fact: ResizeCommand) -> Effects:
    """RUNNING: the last workers of a node leave at a boundary, new ones are forked and join.

    The result comes once it is so. Where a worker cannot be started the job stays as it was, and the result says so.
    """
    error = _not_now(state) or _wrong_sizes(state, fact.sizes)
    if error:
        return [CommandResult(command=fact.key, error=error)]
    registry = state.elastic.registry
    before = {member.node: registry.size(member) for member in state.eligible if member.node in fact.sizes}
    registry.sizes |= fact.sizes
    state.elastic.forgive(fact.sizes)
    forked = replace_workers(state)
    grows = state.elastic.await_growth(fact.key, fact.sizes, before)
    surplus = state.elastic.surplus(fact.sizes, state.eligible)
    registry.leaving |= surplus
    if not surplus:
        return forked if grows else [*forked, CommandResult(command=fact.key, epoch=state.epoch)]
    if not grows:
        state.unanswered.append(fact.key)
    return forked + begin(state, EpochRequest(reason="resize", plan=fact.plan, in_place=True, soft=True))


def _wrong_sizes(state: CoordinatorState, sizes: dict[str, int]) -> str:
    unknown = next((node for node in sizes if not state.membership.is_connected(node)), "")
    if unknown:
        return f"no launcher of the job is on {unknown}"
    after = [sizes.get(member.node, state.elastic.registry.size(member)) for member in state.eligible]
    if min(after) < 0 or sum(after) < state.declaration.min_workers:
        return f"{sum(after)} worker(s) would be left, the job needs {state.declaration.min_workers} (--min-workers)"
    return ""
