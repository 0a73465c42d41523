"""Incident → plan → guards → execution → outcome. Contain first, explain after.

The engine owns no loop: its server calls `consider`, `follow` and `tick`. All three are quick and may be called
from different threads; actions run in threads of their own, one per job at a time.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

from eagle_eye.clock import Clock
from eagle_eye.ledger import Ledger, Throughput, TransitionCost
from eagle_eye.protocols import Action, Guard
from eagle_eye.rpc.control_messages import Body, Decision, OperatorCommand, PendingPlansQuery
from eagle_eye.types import Demand, Incident, IncidentState, JobSnapshot, Outcome, Plan, digest_of
from remediation.live.live_planner import LivePlanner
from remediation.live.precomputed_plans import PrecomputedPlans
from remediation.operators.approvals import Approvals
from remediation.operators.operator_commands import OperatorCommands
from remediation.operators.releases import Releases
from remediation.policy.engine_settings import EngineSettings
from remediation.policy.escalation import INFORM

from .action_results import ActionResults
from .background_actions import BackgroundActions
from .debounce import Debounce
from .engine_state import EngineState
from .execution import Execution, Start, in_thread
from .failover import take_over
from .planning_loop import PlanningLoop
from .rollback import Rollback
from .self_healing import SelfHealing, answer_to, fault_epoch
from .tracked_incident import IncidentPhase, TrackedIncident
from .verifier import Verifier

OVER = (IncidentState.HEALED, IncidentState.FAILED, IncidentState.CLOSED)


class Engine:
    """The only one that acts. `leads` is asked before every step: a leader without a lease stops."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        actions: Mapping[str, Action],
        guards: Sequence[Guard],
        clock: Clock,
        policy: EngineSettings | None = None,
        leads: Callable[[], bool] = lambda: True,
        start: Start = in_thread,
        publish: Callable[[str, Outcome], None] = lambda _job, _outcome: None,
    ) -> None:
        self._leads = leads
        self._notifier = actions.get("notify")
        self._show: Callable[[Mapping[str, TrackedIncident]], None] = lambda _cases: None
        self._lock = threading.RLock()
        execution = Execution(actions=actions, book=ledger, clock=clock, leads=leads, start=start)
        self._desk = EngineState(
            ledger=ledger, clock=clock, policy=policy or EngineSettings(), guards=guards, execution=execution, publish=publish
        )
        self._errands = BackgroundActions(self._desk)
        self._live = LivePlanner(self._desk, self._errands)
        self.precomputed_plans = PrecomputedPlans(self._desk, self._live, self._lock)
        """What stands ready for the next event."""
        self._proposals = PlanningLoop(self._desk, self._live, self._notify)
        self._recourse = Rollback(self._desk, self._errands, self._notify)
        self._judging = Verifier(self._desk, self._recourse, self._proposals.propose, self._notify)
        self._containment = SelfHealing(self._desk, self._proposals, self._judging, self._notify, self.precomputed_plans.covers)
        self._aftermath = ActionResults(self._desk, self._proposals, self._judging, self._containment)
        self._releases = Releases(self._desk, self._errands, self._live)
        self._people = OperatorCommands(self._desk)
        self._approvals = Approvals(self._desk)

    # --- what the server calls -----------------------------------------------------------------------------------

    def resume(self) -> None:
        """Take over from the leader before: call once, before anything else."""
        with self._lock:
            take_over(self._desk, self._errands)

    def on_tick(self, look: Callable[[Mapping[str, TrackedIncident]], None]) -> None:
        """At the end of each tick `look` sees every case; it returns at once."""
        with self._lock:
            self._show = look

    def leads(self) -> bool:
        """Whether this leader's lease is still its own."""
        return self._leads()

    def declare_job(self, job: str, *, heal: str, budget_left: int, nodes_min: int = 1, demand: Demand | None = None) -> None:
        """What the job's coordinator says of its own permission, and of the workers that an elastic job wants."""
        with self._lock:
            known = self._desk.job(job)
            known.heal, known.budget_left, known.nodes_min, known.demand = heal, budget_left, nodes_min, demand

    def receive_incidents(self, incidents: Sequence[Incident]) -> None:
        """New and revised incidents."""
        with self._lock:
            for incident in incidents:
                self._consider(incident)

    def receive_snapshot(self, snapshot: JobSnapshot) -> None:
        """Every snapshot of every job, tick or cut."""
        with self._lock:
            job = self._desk.job(snapshot.job)
            for event in job.update(snapshot, calm=not self._desk.has_open_fault(snapshot.job)):
                self._containment.answer(event, job)
            self._judging.follow_short(job)

    def replay_snapshot(self, snapshot: JobSnapshot) -> None:
        """A snapshot from before this leader's time: what it tells of the job is learned, nothing is answered."""
        with self._lock:
            has_open_fault = any(tracked.escalation is not INFORM and tracked.opened <= snapshot.time for tracked in self._desk.incidents_of(snapshot.job))
            self._desk.job(snapshot.job).update(snapshot, calm=not has_open_fault)

    def tick(self) -> None:
        """About twenty times a second."""
        if not self._leads():
            return
        with self._lock:
            self._take_reports()
            for tracked in list(self._desk.incidents.values()):
                self._advance(tracked)
            self._judging.judge()
            self._live.advance()
            self._errands.advance()
            self._take_reports()
            self._show(self._desk.incidents)

    def decide(self, decision: Decision, approved: bool) -> Body:
        """A person's word on the plan that waits. Raises ControlError if none does, or another one."""
        with self._lock:
            return self._approvals.decide(decision, approved)

    def pending_plans(self, question: PendingPlansQuery) -> Body:
        """What waits for a person's word. Raises ControlError for a plan that does not."""
        with self._lock:
            return self._approvals.pending_plans(question)

    def release(self, node: str, person: str) -> Body:
        """A person lets a node take part again: written down, and told to the jobs that leave it out."""
        with self._lock:
            return {"node": node, "jobs": self._releases.ask(node, person)}

    def order(self, order: OperatorCommand) -> Body:
        """A silence, a window, the closing of a breaker, a note. Raises ControlError for what cannot be meant."""
        with self._lock:
            return self._people.order(order)

    def guard_counts(self) -> dict[tuple[str, str], int]:
        """(guard, allow | hold | refuse) → how often it was said since this leader began."""
        with self._lock:
            return dict(self._desk.counts)

    def measured_throughputs(self) -> tuple[Throughput, ...]:
        """What the jobs reached while nothing was wrong: the planner's measurements."""
        with self._lock:
            return tuple(each for job in self._desk.jobs.values() for each in job.measured_throughputs())

    def transition_costs(self) -> tuple[TransitionCost, ...]:
        """What changes of their workers took elastic jobs: the planner's costs."""
        with self._lock:
            return tuple(each for job in self._desk.jobs.values() for each in job.transition_costs(self._desk.clock.now()))

    def clock_skews(self) -> dict[str, float]:
        """Node → seconds that its clock is ahead of ours (negative: behind), of nodes whose clocks are off."""
        with self._lock:
            heard = self._desk.cluster_view.telemetry(self._desk.jobs.values())
            return {node: told.skew_s for node, told in heard.items() if told.skew_s}

    def status(self) -> Body:
        """What is open, what waits for a person, who is out, and what stands in the way of plans."""
        with self._lock:
            cases = [tracked for tracked in self._desk.incidents.values() if tracked.phase is not IncidentPhase.ENDED]
            return {
                "incidents": [
                    {"id": tracked.incident.id, "job": tracked.job, "cause": tracked.incident.cause, "state": tracked.state.value,
                     "waits_for": tracked.phase.value, "plan": tracked.plan.id if tracked.plan is not None else ""}
                    for tracked in cases
                ],
                "waiting": [tracked.plan.id for tracked in cases if tracked.phase is IncidentPhase.HELD and tracked.plan is not None],
                "cordoned": [cordon.node for cordon in self._desk.ledger.cordoned()],
                "verdicts": {f"{guard} {said}": count for (guard, said), count in sorted(self._desk.counts.items())},
                **self._people.standing(),
            }

    # --- incidents -----------------------------------------------------------------------------------------------

    def _consider(self, incident: Incident) -> None:
        tracked = self._desk.incidents.get(incident.id)
        if tracked is None:
            self._open(incident)
            return
        changed = tracked.settling.revise(incident, self._desk.clock.now())
        absorbed = not incident.active and bool(tracked.incident.culprits) and not incident.culprits
        again = incident.since > self._desk.memory.last_on(incident.id)
        tracked.incident = incident
        self._desk.ledger.save_incident(incident, tracked.state)
        if not incident.active:
            self._over(tracked, absorbed=absorbed)
        elif tracked.state is IncidentState.HEALED and again:
            self._desk.move(tracked, IncidentPhase.SETTLING, state=IncidentState.OPEN)
            self._treat(tracked)
        elif (changed or again) and tracked.phase is IncidentPhase.PARKED:
            self._treat(tracked)

    def _open(self, incident: Incident) -> None:
        desk = self._desk
        job = desk.job(incident.job)
        tracked = TrackedIncident(
            incident=incident,
            state=IncidentState.OPEN,
            phase=IncidentPhase.SETTLING,
            opened=incident.time,
            settling=Debounce.of(incident, desk.clock.now()),
            epoch=fault_epoch(incident, job),
        )
        desk.open(tracked)
        known = desk.ledger.incident_record(incident.id)
        if known is not None and known.state in OVER:
            tracked.phase, tracked.state = IncidentPhase.ENDED, known.state  # of the leader before; diagnosis has not closed it yet
        desk.ledger.save_incident(incident, tracked.state)
        if tracked.phase is IncidentPhase.ENDED:
            return
        if incident.active or tracked.escalation.self_healed:  # over at first sight: its epoch was read together with the death
            self._judging.came_back(tracked)
            self._treat(tracked)
        else:
            desk.move(tracked, IncidentPhase.ENDED, state=IncidentState.CLOSED)

    def _treat(self, tracked: TrackedIncident) -> None:
        """The first answer to an incident: what may follow its first finding does."""
        desk = self._desk
        job, escalation = desk.job(tracked.job), tracked.escalation
        if escalation is not INFORM:
            job.discard_since(tracked.incident.since)
        answer = answer_to(tracked, job)
        if escalation is INFORM:
            self._inform(tracked)
        elif answer is not None:
            self._containment.contained(tracked, answer)
        elif escalation.self_healed:
            desk.move(tracked, IncidentPhase.CONTAINED_BY_JOB, due=job.stream_time + desk.policy.contain_s)
        elif escalation.stops_job:
            self._proposals.propose(tracked)
        else:
            desk.move(tracked, IncidentPhase.SETTLING, due=self._desk.settled(tracked))

    def _inform(self, tracked: TrackedIncident) -> None:
        """Unknown, or nothing that a repair could help: somebody is told, nobody is touched."""
        self._desk.move(tracked, IncidentPhase.PARKED)
        plan = self._notify(tracked, "nothing is done about it")
        self._desk.keep(plan)
        self._desk.record_plan(plan, "done", "nobody is touched")

    def _over(self, tracked: TrackedIncident, *, absorbed: bool) -> None:
        """Every finding was withdrawn, or the epoch of the fault is over, or another incident explains it (absorbed)."""
        self._live.incident_closed(tracked)
        waits = tracked.phase in (IncidentPhase.SETTLING, IncidentPhase.HELD, IncidentPhase.RETRYING) and not tracked.escalation.lasting
        waits = waits or (absorbed and tracked.phase not in (IncidentPhase.RUNNING, IncidentPhase.TRYING, IncidentPhase.ENDED))
        if waits and tracked.plan is not None and tracked.phase is IncidentPhase.HELD:
            self._desk.record_plan(tracked.plan, "stale", "the incident was over before the plan was carried out")
        if waits or tracked.phase is IncidentPhase.PARKED:
            self._desk.move(tracked, IncidentPhase.ENDED, state=IncidentState.CLOSED)

    # --- time ------------------------------------------------------------------------------------------------------

    def _advance(self, tracked: TrackedIncident) -> None:
        desk, now = self._desk, self._desk.clock.now()
        if tracked.phase is IncidentPhase.CONTAINED_BY_JOB and desk.job(tracked.job).stream_time > tracked.due:
            self._containment.missing(tracked)
        elif tracked.phase in (IncidentPhase.SETTLING, IncidentPhase.HELD) and now >= tracked.due:
            self._proposals.propose(tracked)
        elif tracked.phase is IncidentPhase.RETRYING and now >= tracked.due and tracked.plan is not None:
            self._aftermath.retry(tracked, tracked.plan, now)

    def _take_reports(self) -> None:
        for report in self._desk.execution.reports():
            tracked = self._desk.incidents.get(report.plan.incident)
            self._live.action_ended(report)
            if self._errands.holds(report.plan):
                self._errands.ended(report, self._recourse.undone)
            elif tracked is not None and tracked.phase is IncidentPhase.RUNNING:
                self._aftermath.reported(tracked, report)

    def _notify(self, tracked: TrackedIncident, news: str) -> Plan:
        """Tell somebody, at once: it only writes the news down for the alert."""
        now, news = self._desk.clock.now(), news + self._people.expected(tracked)
        plan = Plan(
            id=digest_of("notify", tracked.incident.id, news, now),
            incident=tracked.incident.id,
            action="notify",
            targets=(),
            made=now,
            expires=now,
            severity=tracked.incident.severity,
            own=True,
            reason=news,
        )
        tracked.told += 1
        if self._notifier is not None:
            self._desk.execution.here(self._notifier, plan)
        return plan
