"""How an epoch is formed: from `Prepare` over the votes to a valid layout. Steps that handlers have in common.

Such an epoch ends the old workers and starts new processes, or it is *in place*: `Prepare` fences the elastic workers (hard:
at once; soft: once their step is done), it is valid when the votes are enough and each has reported what it holds, and then
they get a transition. Where too few of them are left they only save a checkpoint and end. Whatever goes wrong on the way
begins another epoch with a higher number.
"""

from msgspec.structs import replace

from eagle_eye.errors import PermanentError
from eagle_eye.training.checkpoint.roll_backs import with_roll_back
from eagle_eye.types import Layout, NodePlace, RankPlacement, Transition, digest_of
from remediation.launcher.job_declaration import DEATH, LOST, EpochRequest, JobPhase

from .coordinator_effects import (
    AskGrant,
    EmitEvent,
    EndWorkers,
    HaltWorkers,
    Prepare,
    RegroupWorkers,
    ReportLayout,
    Start,
)
from .coordinator_facts import (
    BoundaryTimeout,
    JoinersTimeout,
    MajorityTimeout,
    MergeTimeout,
    PhaseTimeout,
    ReconnectTimeout,
    ReplacementTimeout,
    WorkerDied,
)
from .coordinator_state import CoordinatorState, Effects
from .membership import Member, rank_order, rank_placements

UNKNOWN = NodePlace()
ISOLATED = "too few launchers of the job can be reached to begin another epoch"
STALLS = "a launcher or worker of the running epoch cannot be reached: ask again when it is back, or when the job has gone on without it"

# --- begin ------------------------------------------------------------------------------------------------------------


def heal(state: CoordinatorState, request: EpochRequest) -> Effects:
    """Begin an epoch on the job's own budget: in place if elastic workers live on, else with new processes if the budget allows."""
    if not (state.may_go_on or state.lives_on):
        return _hold_back(state, request)
    if request.reason == LOST and state.death is not None and state.only_silent and not state.lives_on:
        return _await_silent(state, request)
    refusal = state.budget.refusal(request.failure)
    state.exhausted = _exhausted(request.failure, refusal)
    state.budget.take(request.failure)
    request = replace(request, paid=True)
    if state.lives_on:
        return begin(state, replace(request, in_place=True, halt=state.exhausted, final=bool(state.exhausted)))
    return _exhaust(state, request) if refusal else restart(state, request)


def _hold_back(state: CoordinatorState, request: EpochRequest) -> Effects:
    """Others may have gone on, or go on training: until it is known that they have not, no worker is ended here."""
    state.request = request
    effects = isolate(state)
    state.phase, state.led = JobPhase.WAITING, False
    state.timers.disarm(MajorityTimeout)
    state.timers.arm(state.declaration.grant_s)
    return [*effects, *state.answer(error=ISOLATED)]


def _await_silent(state: CoordinatorState, request: EpochRequest) -> Effects:
    """RUNNING: a worker has died, and a launcher may only be held up: to start without it, and again with it, would be one restart too many."""
    state.request, state.phase, state.held_back = request, JobPhase.WAITING, True
    state.timers.arm(state.declaration.silent_s)
    return []


def isolate(state: CoordinatorState, *, trains: bool = False) -> Effects:
    """A majority has been away for a lease (the workers may train on), or is missed now: each is told once."""
    if state.last is None or (state.isolated and (trains or state.held_back)):
        return []
    state.isolated, state.held_back = True, not trains
    state.give_up_at = state.clock.monotonic() + state.declaration.wait_nodes_s
    missing = ", ".join(state.missing)
    so = "the job trains on, and could not heal itself" if trains else "workers are left as they are"
    message = f"{missing} cannot be reached and {state.reachable.votes} of {state.reachable.total} launchers are too few to go on without: {so}"
    return [state.job_event("coordinator.isolated", message, trains=trains)]


def _exhausted(failure: str, refusal: str) -> str:
    return refusal and f"{failure}, and {refusal}"


def fail_at_start(state: CoordinatorState, fact: WorkerDied) -> Effects:
    """Of the job's first epoch."""
    return state.fail(f"the script ended before its first step: {fact.at_start}")


def recharge(state: CoordinatorState, fact: WorkerDied) -> Effects:
    """FORMING, BACKOFF: the workers end because one missed a peer, and only now it is told what that peer died of: the budget is charged for that, or the
    script fails before its first step, and is not started again."""
    taken_for = state.request
    if not taken_for.symptom or fact.missed_a_peer or state.last is None or fact.epoch != state.last.epoch:
        return []
    if state.phase not in {JobPhase.FORMING, JobPhase.BACKOFF}:
        return []
    if fact.at_start and state.last.reason == "start":
        return fail_at_start(state, fact)
    state.request = replace(taken_for, kind=fact.kind, symptom=False, cause=fact.cause or taken_for.cause)
    refusal = state.budget.recharge(taken_for.failure, fact.kind)
    state.exhausted = _exhausted(fact.kind, refusal)
    return _exhaust(state, state.request) if refusal else []


def _exhaust(state: CoordinatorState, request: EpochRequest) -> Effects:
    state.phase = JobPhase.SPENT
    state.give_up_at = state.clock.monotonic() + state.declaration.wait_nodes_s
    state.await_command()
    attributes = {
        "heal": state.budget.rule.heal, "restarts": str(state.budget.spent), "cause": request.cause, "kind": request.failure,
        "epoch": str(state.epoch if state.last is None else state.last.epoch), "nodes": ",".join(state.missing if request.reason == LOST else ()),
    }  # fmt: skip
    reports = [ReportLayout(layout=state.last)] if state.last is not None else []  # elected since the last epoch, it is not known there
    return [
        *reports,
        EmitEvent(name="budget.exhausted", message=state.exhausted, attributes=attributes),
        EndWorkers(nodes=state.membership.connected, reason="heal budget exhausted", after_death=request.reason == DEATH),
    ]


def restart(state: CoordinatorState, request: EpochRequest) -> Effects:
    """Start new processes after a failure that nobody has survived: at once, or after a while if they keep failing without progress."""
    seconds = state.restarts.failed(request.step)
    if seconds <= 0.0:
        return begin(state, request)
    state.phase = JobPhase.BACKOFF
    state.elastic.clear()
    state.timers.clear()
    state.timers.arm(seconds)
    state.request = replace(request, in_place=False, soft=False, halt="", final=False)
    message = f"the workers are started again in {seconds:g} s: {request.failure}, without progress since the restart before"
    attributes = {
        "epoch": str(state.epoch), "seconds": f"{seconds:g}", "reason": request.reason, "kind": request.failure, "cause": request.cause,
        "restarts": str(state.budget.spent),
    }  # fmt: skip
    return [
        EmitEvent(name="restart.delayed", message=message, attributes=attributes),
        EndWorkers(nodes=state.membership.connected, reason=message, after_death=request.reason == DEATH), *state.answer(error=message),
    ]  # fmt: skip


def begin(state: CoordinatorState, request: EpochRequest) -> Effects:
    """Begin an epoch, in place if that is requested and living workers are left."""
    request = _of_the_death(state, request)
    if request.soft and not state.may_go_on:
        return state.answer(error=ISOLATED)
    if request.soft and state.stalls:
        return []  # the step might be waited for in vain; what is decided about the loss takes in who waits to join
    if not request.soft:
        state.timers.disarm(BoundaryTimeout, ReconnectTimeout)
    if request.in_place:
        state.elastic.lose_unreachable(state.last, state.membership)
    members = state.eligible
    placements = state.elastic.placements(members) if request.in_place else ()
    if not placements:
        return state.fail(request.halt) if request.final else begin_with_new_processes(state, request)
    state.timers.disarm(JoinersTimeout)
    state.request = replace(request, halt=request.halt or state.elastic.too_few(len(members), len(placements)))
    state.elastic.holdings = {}
    effects = _form(state, members, placements)
    if not request.soft:
        state.elastic.down_since = state.elastic.down_since or state.clock.monotonic()
        state.timers.arm(state.declaration.merge_s, MergeTimeout)
    return effects


def _of_the_death(state: CoordinatorState, request: EpochRequest) -> EpochRequest:
    """Whoever seemed lost with its workers can be reached again: what is left of the failure is the worker that has died."""
    died = state.death
    if request.reason != LOST or died is None or not state.all_here:
        return request
    if request.paid:
        state.budget.recharge(request.failure, died.kind)
    return replace(request, reason=DEATH, cause=died.cause, kind=died.kind, symptom=died.missed_a_peer)


def begin_with_new_processes(state: CoordinatorState, request: EpochRequest) -> Effects:
    """The job is not elastic, or no worker of it is left. Waits where too few nodes are there."""
    if not state.may_go_on:
        return _hold_back(state, request)
    state.elastic.clear()
    state.timers.disarm(JoinersTimeout, ReconnectTimeout, MergeTimeout, MajorityTimeout)
    state.request = replace(request, in_place=False, soft=False, halt="", final=False)
    members = state.eligible
    if len(members) < state.declaration.min_nodes:
        return _wait_for_nodes(state, len(members))
    by_rank = rank_order(state.last, members, state.swap)
    return _form(state, members, rank_placements(state.declaration.job.rsplit("/", 1)[-1], by_rank, state.declaration.parallel))


def _form(state: CoordinatorState, members: list[Member], placements: tuple[RankPlacement, ...]) -> Effects:
    state.epoch = state.quorum.open_vote(state.epoch)
    state.forming = _layout(state, members, placements)
    state.quorum.ballot = digest_of(state.forming)
    state.phase = JobPhase.FORMING
    state.timers.arm(state.declaration.prepare_s)
    if not state.request.soft:
        _await_majority(state)
    if state.last is not None and not state.forming.in_place and not state.reachable.majority:
        state.quorum.ungranted = True
        return ask_leader(state, state.forming)
    return [prepare(state, state.forming, state.membership.connected)]


def ask_leader(state: CoordinatorState, layout: Layout) -> Effects:
    """For a grant, before the votes are asked for."""
    state.quorum.leader_asked = True
    return [AskGrant(layout=layout, missing=state.missing, last=state.last.epoch if state.last is not None else 0)]


def prepare(state: CoordinatorState, layout: Layout, nodes: tuple[str, ...]) -> Prepare:
    """Ask these launchers for their votes."""
    soft = state.serving if state.request.soft and layout.in_place else ()
    return Prepare(nodes=nodes, layout=layout, ballot=state.quorum.ballot, given_up=tuple(sorted(state.quorum.given_up)), soft=soft)


def _layout(state: CoordinatorState, members: list[Member], placements: tuple[RankPlacement, ...]) -> Layout:
    request = state.request
    idle = [member for member in state.membership.ordered(state.last) if member not in members]
    places = {member.node: member.place for member in (*members, *idle) if member.place != UNKNOWN}
    return Layout(
        job=state.declaration.job, epoch=state.epoch, time=state.clock.now(), coordinator=state.declaration.node,
        launchers={member.node: member.address for member in (*members, *idle)}, placements=placements,
        excluded=tuple(sorted(state.membership.evicted)), reason=request.reason, plan=request.plan, resume_step=request.resume_step,
        skipped=tuple(sorted(state.skipped)), restarts=state.budget.spent, restarts_by_kind=state.budget.spent_by_kind, in_place=request.in_place,
        places=places, rolled_back=with_roll_back(state.last.rolled_back if state.last is not None else (), state.epoch, request.resume_step),
    )  # fmt: skip


def amend(state: CoordinatorState) -> Effects:
    """Another death within the same moment: the epoch goes on without that worker, too."""
    members = state.eligible
    placements = state.elastic.placements(members)
    asked = state.forming.workers if state.forming is not None else ()
    newcomers = any(placement.worker not in asked for placement in placements)  # nobody has asked them what they hold
    if not placements or newcomers or state.elastic.too_few(len(members), len(placements)):
        return begin(state, state.request)
    layout = _layout(state, members, placements)
    state.forming = replace(layout, launchers=state.forming.launchers) if state.forming is not None else layout  # as it was voted for
    return validate_if_agreed(state)


def _wait_for_nodes(state: CoordinatorState, here: int) -> Effects:
    if state.phase is not JobPhase.WAITING:
        state.give_up_at = state.clock.monotonic() + state.declaration.wait_nodes_s
    state.phase = JobPhase.WAITING
    state.timers.arm(state.declaration.wait_nodes_s)
    _await_majority(state)
    reason = f"{here} node(s) are left, the job needs {state.declaration.min_nodes}"
    effects = state.answer(error=reason)
    if state.last is None or not state.last.in_place:
        return effects  # workers that wait for their peers harm nobody, and go on if those come back as they are
    return [EndWorkers(nodes=state.membership.connected, reason=reason), *effects]


def _await_majority(state: CoordinatorState) -> None:
    """From now on, whatever is begun until there is one."""
    state.timers.arm_once(state.declaration.lease_s, MajorityTimeout)


# --- validate ---------------------------------------------------------------------------------------------------------


def validate_if_agreed(state: CoordinatorState) -> Effects:
    """Make the epoch valid if every node of it, and enough of the last one's launchers, have voted and reported."""
    layout = state.forming
    if layout is None or (layout.in_place and not state.elastic.holdings.keys() >= set(layout.workers)):
        return []
    if state.timers.armed(MergeTimeout) or not state.quorum.agreed(layout):
        return []
    count = state.quorum.count(state.last)
    if count.majority or (count.grantable and state.quorum.granted):
        return validate(state, layout)
    silent = [node for node in state.quorum.entitled(state.last) if node not in state.quorum.acknowledged]
    if any(state.membership.is_connected(node) for node in silent) or not count.grantable or state.quorum.leader_asked or state.last is None:
        return []
    state.quorum.leader_asked = True
    return [AskGrant(layout=layout, missing=tuple(silent), last=state.last.epoch)]


def validate(state: CoordinatorState, layout: Layout) -> Effects:
    """The epoch is agreed upon: its workers are started, or regrouped, or halted where they cannot go on."""
    if not layout.in_place:
        state.elastic.registry.clear()
        state.elastic.died_unmet.clear()
        told = _run(state, layout)
        return [Start(nodes=state.membership.connected, layout=layout, cause=state.request.cause, budget_left=state.budget.left), *told]
    if state.request.halt:
        return _halt(state, layout, state.request.halt)
    try:
        transition = state.elastic.plan(layout)
    except PermanentError as error:
        who = state.elastic.state_holders.words
        return _halt(state, layout, f"{error}{who and f'; {who}'}")
    told = _run(state, layout)
    return [_regroup(state, layout, transition), *told, *replace_workers(state), *state.elastic.grown(state.epoch)]


def _run(state: CoordinatorState, layout: Layout) -> Effects:
    state.phase = JobPhase.RUNNING
    state.led, state.isolated, state.unbroken = True, False, True
    state.death, state.restarted, state.held_back = None, False, False
    state.last = layout
    state.quorum.decide(layout.epoch)
    state.swap = ()
    state.finished = set()
    state.restarts.runs()
    state.timers.disarm(PhaseTimeout, MajorityTimeout)
    state.membership.unused.clear()
    return take_in(state)


def take_in(state: CoordinatorState) -> Effects:
    """RUNNING: launchers that are here and outside of the epoch, though there is room: one with them begins in a moment, or it is told that none does."""
    outside = [member.node for member in state.membership.members.values() if _could_join(state, member)]
    if not outside:
        return []
    if state.budget.rule.limit > 0:
        state.timers.arm_batch()
        return []
    return [_unused(state, node) for node in outside if node not in state.membership.unused]


def _could_join(state: CoordinatorState, member: Member) -> bool:
    """A connected launcher that is not in the layout though there is room for it."""
    nodes = state.last.nodes if state.last is not None else ()
    outside = member.connected and member.node not in nodes and member.node not in state.membership.evicted
    return outside and len(nodes) < state.declaration.max_nodes


def _unused(state: CoordinatorState, node: str) -> EmitEvent:
    """To take it in, the workers that train would have to be started again, and the job may not do that of its own."""
    state.membership.unused.add(node)
    used = len(state.last.nodes) if state.last is not None else 0
    reason = f"the job trains on {used} of {state.declaration.max_nodes} nodes, and may not restart itself to take it in (--heal {state.budget.rule.heal})"
    message = f"the launcher on {node} is here and is not used: {reason}; the next restart takes it in"
    return EmitEvent(name="node.unused", message=message, node=node, attributes={"epoch": str(state.epoch), "reason": reason, "seen_by": state.declaration.node})


def _regroup(state: CoordinatorState, layout: Layout, transition: Transition) -> RegroupWorkers:
    state.timers.disarm(BoundaryTimeout, ReconnectTimeout)
    state.elastic.regroup(layout, transition, state.request)
    if state.elastic.waiting(state.eligible):
        state.timers.arm_batch(JoinersTimeout)
    registry = state.elastic.registry
    leaving = tuple(worker for worker in registry.leaving if worker in registry.entered)
    return RegroupWorkers(
        nodes=state.membership.connected, layout=layout, transition=transition, ballot=state.quorum.ballot, leaving=leaving,
        budget_left=state.budget.left,
    )  # fmt: skip


def replace_workers(state: CoordinatorState) -> Effects:
    """Fork a worker for each empty slot, while the job runs and may heal in place; one that keeps dying only after its back-off."""
    if not state.in_place or state.last is None or state.phase is not JobPhase.RUNNING or state.elastic.registry.done:
        return []
    effects = state.elastic.replacements(state.eligible, state.last)
    wait_s = state.elastic.replacement_backoff.wait_s
    if wait_s is not None:
        state.timers.arm(wait_s, ReplacementTimeout)
    return effects


def _halt(state: CoordinatorState, layout: Layout, reason: str) -> Effects:
    """One of the workers saves a checkpoint under this epoch, which a majority has agreed to; then they end."""
    state.phase = JobPhase.HALTING
    state.elastic.halt_reason = reason
    state.timers.clear()
    state.timers.arm(state.declaration.halt_s)
    saver = state.elastic.saver(layout)
    return [HaltWorkers(nodes=state.membership.connected, epoch=layout.epoch, reason=reason, code=1, saver=saver)]


def fail_halted(state: CoordinatorState) -> Effects:
    """The workers of a job that stops have ended, or had long enough."""
    return state.fail(state.elastic.halt_reason + state.elastic.last_checkpoint.words)


# --- decided late -------------------------------------------------------------------------------------------------------


def late_votes(state: CoordinatorState, _: PhaseTimeout) -> Effects:
    """FORMING: go on without the launchers that did not vote in time; they join again when they answer. Who cannot vote is asked again."""
    if state.forming is None:
        return []
    if state.quorum.ungranted:
        return begin(state, state.request) if state.reachable.majority else ask_leader(state, state.forming)
    ready = state.quorum.prepared
    for node in state.forming.launchers:
        if node not in ready:
            state.membership.disconnect(node)
    again = not state.quorum.agreed(state.forming) or ready > state.quorum.acknowledged
    state.timers.arm(state.declaration.grant_s)
    return begin(state, state.request) if again else validate_if_agreed(state)


def merge_is_over(state: CoordinatorState, _: MergeTimeout) -> Effects:
    """FORMING: no further death belongs to the failure that this epoch heals."""
    return validate_if_agreed(state)


def no_majority(state: CoordinatorState, _: MajorityTimeout) -> Effects:
    """WAITING, FORMING: another part of the job may have gone on without this one: the launcher is to look for it."""
    if not state.reachable.majority:
        state.led = False
    return []


def no_majority_while_forming(state: CoordinatorState, fact: MajorityTimeout) -> Effects:
    """FORMING: elastic workers have been fenced for as long as a lease. They stay so, until the others are back or have gone on."""
    if state.last is None or not state.request.in_place:
        return no_majority(state, fact)
    count = state.reachable
    if count.majority:
        return []
    state.led = False  # others may go on: look for them
    effects = isolate(state)
    if count.grantable and not state.quorum.leader_answered and state.clock.monotonic() >= state.give_up_at:
        missing = ", ".join(state.missing)
        return state.fail(
            f"half of the launchers ({missing}) cannot be reached, and no server was there to say which half goes on: "
            "start the job again, with a server (--server) if one half is to go on by itself"
        )
    state.timers.arm(state.declaration.lease_s, MajorityTimeout)
    return effects


def waited_for_nodes(state: CoordinatorState, _: PhaseTimeout) -> Effects:
    """WAITING: go on if there are enough nodes, fail if they were waited for long enough."""
    if resumed := resume(state):
        return resumed
    if state.isolated or state.held_back:
        return _go_on(state)
    if len(state.eligible) >= state.declaration.min_nodes:
        return begin(state, EpochRequest(reason="node returned"))
    left = state.give_up_at - state.clock.monotonic()
    count = state.reachable
    if left <= 0 and not (count.majority or count.grantable):
        return []  # the others may have gone on: a minority does not decide how the job ends
    if left <= 0:
        return state.fail("too few nodes came back")
    state.timers.arm(left)
    return []


def resume(state: CoordinatorState) -> Effects:
    """WAITING, FORMING: whoever was missed is back as it was: the epoch goes on, and nobody is started again."""
    last = state.last
    if last is None or not state.unbroken or state.request.reason != LOST or not all(map(state.membership.is_connected, last.nodes)):
        return []
    state.phase, state.led, state.isolated, state.held_back = JobPhase.RUNNING, True, False, False
    state.timers.disarm(PhaseTimeout, MajorityTimeout)
    return [state.job_event("coordinator.reunited", "all launchers of the epoch can be reached again, and its workers are as they were")]


def _go_on(state: CoordinatorState) -> Effects:
    """What was held back is begun once a majority can be reached."""
    if not state.may_go_on:
        state.timers.arm(state.declaration.grant_s)
        return []
    state.isolated = state.held_back = False
    return begin(state, state.request) if state.request.paid else heal(state, state.request)


def backoff_is_over(state: CoordinatorState, _: PhaseTimeout) -> Effects:
    """BACKOFF: the workers have waited long enough."""
    return begin(state, state.request)


def nobody_commanded(state: CoordinatorState, _: PhaseTimeout) -> Effects:
    """SPENT: no restart was commanded in time."""
    return state.fail(f"{state.exhausted}; no restart was commanded in time")


def halted_too_long(state: CoordinatorState, _: PhaseTimeout) -> Effects:
    """HALTING: the workers did not end, and none reports that its checkpoint is still being written."""
    return fail_halted(state)
