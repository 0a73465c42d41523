"""Handlers of facts about launchers and their votes. `coordinator_state_machine.py` says in which state each one applies."""

from msgspec.structs import replace

from eagle_eye.types import Layout
from remediation.launcher.job_declaration import LOST, EpochRequest, JobPhase

from .coordinator_effects import DismissWorker, EmitEvent
from .coordinator_facts import (
    GrantAnswer,
    JoinersTimeout,
    LauncherJoined,
    MajorityTimeout,
    NodeFinished,
    NoProgress,
    PhaseTimeout,
    PrepareFailed,
    ReconnectTimeout,
    SessionBroke,
    VoteGiven,
    VoteRefused,
    WorkersStarted,
)
from .coordinator_state import CoordinatorState, Effects
from .epoch_formation import (
    begin,
    fail_halted,
    heal,
    isolate,
    prepare,
    replace_workers,
    resume,
    take_in,
    validate_if_agreed,
)
from .repeated_failure import confirm_suspicion

EVICTED = "its node is evicted from the job"

# --- joined -------------------------------------------------------------------------------------------------------------


def register(state: CoordinatorState, fact: LauncherJoined) -> tuple[bool, Effects]:
    """What holds in every state. Returns whether it is the process that was known before, and the effects for its workers."""
    evicted = fact.member.node in state.membership.evicted
    same = state.membership.add(fact.member)
    if state.last is not None and fact.member.node in state.last.nodes:
        state.unbroken = state.unbroken and same and _as_it_was(state, fact)
        state.restarted = state.restarted or not same
    state.quorum.hear(fact.member.node, fact.undecided)
    reunited = _reunited(state)
    state.quorum.learn(fact.promised)
    state.elastic.registry.returned(fact.member.node, fact.elastic if _can_use_workers(state, fact.last) and not evicted else ())
    if fact.elastic:
        state.budget.suit_elastic_workers()
    if not evicted:
        return same, reunited
    return same, [*reunited, *(DismissWorker(node=fact.member.node, worker=each.worker, reason=EVICTED) for each in fact.elastic)]


def _as_it_was(state: CoordinatorState, fact: LauncherJoined) -> bool:
    """Its workers are those of the last epoch; or it asked to join before it voted for that epoch, or before it was told to start it."""
    if state.last is None:
        return False
    newest = state.last.epoch if state.started == state.last.epoch else state.last.epoch + 1
    if fact.member.node in state.quorum.prepared and fact.promised < newest:
        return True  # whatever it says of its workers, it says of older ones
    return not fact.idle and fact.last is not None and fact.last.epoch == state.last.epoch


def _reunited(state: CoordinatorState) -> Effects:
    """RUNNING: a majority is here again, and the epoch is still the last one."""
    if not (state.isolated and state.phase is JobPhase.RUNNING and state.reachable.majority):
        return []
    state.isolated = state.held_back = False
    return [state.job_event("coordinator.reunited", "a majority of the launchers can be reached again")]


def _can_use_workers(state: CoordinatorState, last: Layout | None) -> bool:
    """Elastic workers that got this layout last may live on: no epoch with new processes has begun since."""
    if state.phase is JobPhase.GATHERING or state.last is None:
        return True
    if state.phase is JobPhase.FORMING:
        return state.request.in_place
    return state.last.in_place or (last is not None and last.epoch == state.last.epoch)


def joined_only(state: CoordinatorState, fact: LauncherJoined) -> Effects:
    """BACKOFF, SPENT, HALTING, ENDED: it is a member, and no epoch begins because of it."""
    return register(state, fact)[1]


def joined_while_gathering(state: CoordinatorState, fact: LauncherJoined) -> Effects:
    """GATHERING: it may know a newer layout than we do, and it may be the last that was waited for."""
    _, effects = register(state, fact)
    _adopt(state, fact.last)
    return effects + _gathered(state, patient=True)


def joined_while_forming(state: CoordinatorState, fact: LauncherJoined) -> Effects:
    """FORMING: it is asked for its vote, or the epoch begins anew with it."""
    same, effects = register(state, fact)
    layout, node = state.forming, fact.member.node
    if layout is None:
        return effects
    if state.quorum.ungranted:
        return effects + (resume(state) or begin(state, state.request))
    if node in layout.nodes and not same:
        return effects + begin(state, state.request)
    if state.quorum.agreed(layout) and node not in layout.nodes and node not in state.membership.evicted:
        return effects + begin(state, state.request)
    return [*effects, prepare(state, layout, (node,))]


def joined_while_waiting(state: CoordinatorState, fact: LauncherJoined) -> Effects:
    """WAITING: further joiners are waited for a moment."""
    _, effects = register(state, fact)
    if fact.member.node not in state.membership.evicted:
        state.timers.arm_batch()
    return effects


def joined_while_running(state: CoordinatorState, fact: LauncherJoined) -> Effects:
    """RUNNING: it is back and nothing has changed, or an epoch with it begins after a moment."""
    same, effects = register(state, fact)
    if fact.member.node in state.membership.evicted:
        return effects
    if state.in_place:
        return effects + _joined_in_place(state, fact, same)
    if state.last is None:
        state.timers.arm_batch()
        return effects
    taken = fact.member.node in state.last.nodes
    unchanged = taken and same and _as_it_was(state, fact)
    if unchanged or (not taken and len(state.last.nodes) >= state.declaration.max_nodes):
        return effects + (first_epoch_in_place(state) if fact.elastic and not state.last.in_place else [])
    if not taken:
        return effects + take_in(state)
    if state.budget.rule.limit == 0:
        return effects + heal(state, EpochRequest(reason=LOST))
    state.timers.arm_batch()
    return effects


def _joined_in_place(state: CoordinatorState, fact: LauncherJoined, same: bool) -> Effects:
    """A launcher joins a job that trains; its workers are part of the registry already."""
    last, node = state.last, fact.member.node
    if last is None:
        return []
    if not same:
        lost = state.elastic.serving_on(node, last)
        for worker in lost:
            state.elastic.lose(worker)
        if lost:
            return heal(state, EpochRequest(reason=LOST))
    elif node in last.nodes and (fact.held or fact.last is None or fact.last.epoch != last.epoch):
        return begin(state, EpochRequest(reason="node returned", in_place=True))  # it has missed what its workers received
    if state.elastic.waiting(state.eligible):
        state.timers.arm_batch(JoinersTimeout)
    return replace_workers(state)


def first_epoch_in_place(state: CoordinatorState) -> Effects:
    """The workers of a job that has just been started meet once all of them have entered."""
    known = state.elastic.registry.entered.keys() | state.elastic.died_unmet
    if state.last is None or not known >= set(state.last.workers):
        return []
    return begin(state, EpochRequest(reason="join", in_place=True))


# --- gathering ----------------------------------------------------------------------------------------------------------


def gathering_is_late(state: CoordinatorState, _: PhaseTimeout) -> Effects:
    """GATHERING: no more launchers are waited for than are needed."""
    return _gathered(state, patient=False)


def _gathered(state: CoordinatorState, patient: bool) -> Effects:
    """Begin if all are here, or if enough are and the time is over."""
    if state.last is not None:
        return _succeed(state, patient)
    here, declaration = len(state.eligible), state.declaration
    waits = state.timers.armed()
    if here >= declaration.max_nodes or (here >= declaration.min_nodes and not waits and not patient):
        return begin(state, state.request)
    if not waits and here >= declaration.min_nodes:
        state.timers.arm_batch()
    return []


def _succeed(state: CoordinatorState, patient: bool) -> Effects:
    """After an election: all that are awaited, or at least half of the last layout."""
    here = set(state.membership.connected)
    if not (state.awaited <= here or (not patient and state.may_go_on)):
        if not state.timers.armed() and patient:
            state.timers.arm_batch()
        return []
    if state.own_loss:
        return heal(state, state.request)
    return begin(state, replace(state.request, in_place=state.lives_on))


def _adopt(state: CoordinatorState, last: Layout | None) -> None:
    """A joiner knows a newer valid layout than we do."""
    if last is None or (state.last is not None and last.epoch <= state.last.epoch):
        return
    if state.last is None:
        state.request = EpochRequest(reason="node returned")
    state.last = last
    state.epoch = max(state.epoch, last.epoch)
    state.membership.evicted, state.skipped = set(last.excluded), set(last.skipped)
    state.budget.inherit(last.restarts, last.restarts_by_kind, state.clock.now() - last.time)
    state.awaited = set(last.voters)
    state.timers.arm_batch()


def batch_is_complete(state: CoordinatorState, _: PhaseTimeout) -> Effects:
    """RUNNING: one epoch for all launchers that have joined meanwhile."""
    if state.in_place:
        return replace_workers(state)
    if state.may_go_on:
        return begin(state, EpochRequest(reason="node returned"))
    state.timers.arm_batch()  # who has joined is not forgotten while a majority is away
    return []


# --- lost ---------------------------------------------------------------------------------------------------------------


def _session_broke(state: CoordinatorState, fact: SessionBroke) -> Effects:
    """The event; [] if there was no session."""
    if not state.membership.disconnect(fact.node, silent=fact.silent):
        return []
    state.membership.unused.discard(fact.node)
    message = f"the session of the launcher on {fact.node} broke"
    return [EmitEvent(name="peer.lost", message=message, node=fact.node, attributes={"seen_by": state.declaration.node})]


def lost_silently(state: CoordinatorState, fact: SessionBroke) -> Effects:
    """GATHERING, ENDED: nothing depends on it."""
    state.membership.disconnect(fact.node)
    return []


def lost_only(state: CoordinatorState, fact: SessionBroke) -> Effects:
    """WAITING, BACKOFF, SPENT: its workers are ended already."""
    return _session_broke(state, fact)


def lost_while_forming(state: CoordinatorState, fact: SessionBroke) -> Effects:
    """FORMING: its vote, or the report of its workers, will not come."""
    effects = _session_broke(state, fact)
    if not effects:
        return []
    lost = state.elastic.serving_on(fact.node, state.last)
    for worker in lost:
        state.elastic.lose(worker)
    if lost and state.request.soft:
        return effects + heal(state, EpochRequest(reason=LOST))
    concerned = state.forming is not None and fact.node in state.forming.nodes
    return effects + (begin(state, state.request) if concerned else validate_if_agreed(state))


def lost_while_running(state: CoordinatorState, fact: SessionBroke) -> Effects:
    """RUNNING: a second witness is needed; where connections between workers broke there is one."""
    effects = _session_broke(state, fact)
    if effects and state.timers.armed(ReconnectTimeout) and fact.node in state.suspects:
        return effects + heal(state, EpochRequest(reason=LOST))
    if not state.reachable.majority:
        state.timers.arm_once(state.declaration.lease_s, MajorityTimeout)
    return effects


def majority_is_gone(state: CoordinatorState, _: MajorityTimeout) -> Effects:
    """RUNNING: no majority has been there for a lease. The workers train as they can; the others are asked whether they have gone on."""
    return [] if state.reachable.majority else isolate(state, trains=True)


def lost_while_halting(state: CoordinatorState, fact: SessionBroke) -> Effects:
    """HALTING: its workers are not waited for."""
    effects = _session_broke(state, fact)
    if not effects:
        return []
    state.elastic.registry.drop(fact.node)
    return effects + ([] if state.elastic.registry.entered else fail_halted(state))


def suspects_are_lost(state: CoordinatorState, fact: NoProgress) -> Effects:
    """RUNNING: a launcher's session broke, and the workers have waited for its workers since."""
    if not state.suspects:
        return []
    return heal(state, EpochRequest(reason=LOST, step=fact.step)) if state.may_go_on else isolate(state)


# --- votes --------------------------------------------------------------------------------------------------------------


def count_vote(state: CoordinatorState, fact: VoteGiven) -> Effects:
    """FORMING: the epoch may be valid now."""
    if not state.is_forming(fact.epoch):
        return []
    state.quorum.hear(fact.node, fact.undecided)
    state.quorum.prepared.add(fact.node)
    if not fact.abstains:
        state.quorum.acknowledged.add(fact.node)
    return _withheld(state, fact) + (confirm_suspicion(state) or validate_if_agreed(state))


def _withheld(state: CoordinatorState, fact: VoteGiven) -> Effects:
    """The event for a launcher that is ready and cannot vote; once for each reason."""
    if not fact.abstains or state.quorum.withheld.get(fact.node) == fact.abstains:
        return []
    state.quorum.withheld[fact.node] = fact.abstains
    message = f"the launcher on {fact.node} cannot vote for epoch {fact.epoch}: {fact.abstains}"
    attributes = {"epoch": str(fact.epoch), "reason": fact.abstains, "seen_by": state.declaration.node}
    return [EmitEvent(name="vote.withheld", message=message, node=fact.node, attributes=attributes)]


def leave_out(state: CoordinatorState, fact: PrepareFailed) -> Effects:
    """FORMING: the kernel holds a launcher's workers: the others go on without it if they may."""
    if not state.is_forming(fact.epoch):
        return []
    state.membership.disconnect(fact.node)
    attributes = {"epoch": str(fact.epoch), "reason": fact.reason, "seen_by": state.declaration.node}
    message = f"the launcher on {fact.node} cannot prepare epoch {fact.epoch}: {fact.reason}; it joins again once they have ended"
    return [EmitEvent(name="node.held", message=message, node=fact.node, attributes=attributes), *begin(state, state.request)]


def take_higher_number(state: CoordinatorState, fact: VoteRefused) -> Effects:
    """FORMING: begin anew above the vote that the launcher has given."""
    state.quorum.learn(fact.promised)
    return begin(state, state.request) if state.is_forming(fact.epoch) else []


def learn_number(state: CoordinatorState, fact: VoteRefused) -> Effects:
    """Too late for the epoch that was formed, but the next one must be above it."""
    state.quorum.learn(fact.promised)
    return []


def count_grant(state: CoordinatorState, fact: GrantAnswer) -> Effects:
    """FORMING: half of the launchers go on if the leader agrees; else it is asked again."""
    state.quorum.leader_answered = fact.from_leader
    if state.forming is None or not state.is_forming(fact.epoch):
        return []
    if fact.granted and state.quorum.ungranted:
        state.quorum.ungranted, state.quorum.granted = False, True
        state.timers.arm(state.declaration.prepare_s)
        return [prepare(state, state.forming, state.membership.connected)]
    if fact.granted:
        state.quorum.granted = True
        return validate_if_agreed(state)
    state.quorum.leader_asked = False
    state.timers.arm(state.declaration.grant_s)
    return []


def learn_leader(state: CoordinatorState, fact: GrantAnswer) -> Effects:
    """Too late for the epoch that was formed; it still shows whether the leader can be reached."""
    state.quorum.leader_answered = fact.from_leader
    return []


# --- started and finished -------------------------------------------------------------------------------------------------


def report_start(state: CoordinatorState, fact: WorkersStarted) -> Effects:
    """RUNNING: the commands that asked for the epoch are done."""
    if state.last is None or not state.is_current(fact.epoch) or state.started == fact.epoch:
        return []
    state.started = fact.epoch
    effects: Effects = []
    if state.request.reason == "start":
        effects.append(state.job_event("job.started", "the workers were started"))
    attributes = {
        "epoch": str(fact.epoch), "reason": state.request.reason, "cause": state.request.cause, "kind": state.request.kind, "plan": state.request.plan,
        "excluded": ",".join(sorted(state.membership.evicted)), "restarts": str(state.budget.spent),
        "budget_left": str(state.budget.left), "in_place": str(int(state.last.in_place)),
        "skipped": ",".join(map(str, state.last.skipped)),
    }  # fmt: skip
    effects.append(EmitEvent(name="epoch.started", message=f"epoch {fact.epoch}: {state.request.reason}", attributes=attributes))
    return effects + state.answer(epoch=fact.epoch)


def node_finished(state: CoordinatorState, fact: NodeFinished) -> Effects:
    """RUNNING: the job is finished when every node is."""
    if state.last is None or not state.is_current(fact.epoch):
        return []
    state.finished.add(fact.node)
    if not state.finished.issuperset(state.last.nodes):
        return []
    started = report_start(state, WorkersStarted(epoch=fact.epoch))  # workers that end at once may end before all launchers have answered
    return [*started, *state.finish()]
