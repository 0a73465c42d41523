"""Incident → plan → guards → execution → outcome. Contain first, explain after.

What the server calls. It owns no thread: the server calls `receive_incidents`, `receive_snapshot` and `tick`; all three are
quick, take one lock, and may be called from different threads. Actions run in threads of their own, one per job at a time.
What happens to an incident is decided in incident_loop.py.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

from eagle_eye.clock import Clock
from eagle_eye.ledger import Ledger, Throughput, TransitionCost
from eagle_eye.protocols import Action, Guard
from eagle_eye.rpc.control_messages import Body, Decision, OperatorCommand, PendingPlansQuery
from eagle_eye.types import Demand, Incident, JobSnapshot, Outcome, Plan, digest_of
from remediation.live.live_planner import LivePlanner
from remediation.live.precomputed_plans import PrecomputedPlans
from remediation.operators.approvals import Approvals
from remediation.operators.operator_commands import OperatorCommands
from remediation.operators.releases import Releases
from remediation.policy.engine_settings import EngineSettings
from remediation.policy.escalation import INFORM

from .action_results import ActionResults
from .background_actions import BackgroundActions
from .engine_state import EngineState
from .execution import Execution, Start, in_thread
from .failover import take_over
from .incident_loop import IncidentLoop
from .incident_phase import ActionEnded, IncidentPhase
from .repair_planner import RepairPlanner
from .rollback import Rollback
from .self_healing import SelfHealing
from .tracked_incident import TrackedIncident
from .verifier import Verifier


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
        self._background = BackgroundActions(self._desk)
        self._live = LivePlanner(self._desk, self._background)
        self.precomputed_plans = PrecomputedPlans(self._desk, self._live, self._lock)
        """For the next single event of each kind."""
        self._rollback = Rollback(self._desk, self._background, self._notify)
        self._verifier = Verifier(self._desk, self._rollback)
        self._loop = self._incident_loop()
        self._releases = Releases(self._desk, self._background, self._live)
        self._commands = OperatorCommands(self._desk)
        self._approvals = Approvals(self._desk)

    def _incident_loop(self) -> IncidentLoop:
        desk, verifier, notify = self._desk, self._verifier, self._notify
        planner = RepairPlanner(desk, self._live, notify)
        self_healing = SelfHealing(desk, planner, verifier, notify, self.precomputed_plans.covers)
        results = ActionResults(desk, planner, verifier, self_healing)
        return IncidentLoop(desk, planner, verifier, self_healing, results, self._live, notify)

    # --- what the server calls -----------------------------------------------------------------------------------

    def resume(self) -> None:
        """Take over from the leader before: call once, before anything else."""
        with self._lock:
            take_over(self._desk, self._background)

    def on_tick(self, look: Callable[[Mapping[str, TrackedIncident]], None]) -> None:
        """At the end of each tick `look` is called with every tracked incident, by its id; it must return at once."""
        with self._lock:
            self._show = look

    def leads(self) -> bool:
        """Whether this leader's lease is still its own."""
        return self._leads()

    def declare_job(self, job: str, *, heal: str, budget_left: int, nodes_min: int = 1, demand: Demand | None = None) -> None:
        """What the job's coordinator reports: what the job may do to itself, and the workers that an elastic job asks for."""
        with self._lock:
            known = self._desk.job(job)
            known.heal, known.budget_left, known.nodes_min, known.demand = heal, budget_left, nodes_min, demand

    def receive_incidents(self, incidents: Sequence[Incident]) -> None:
        """New and revised incidents, from diagnosis."""
        with self._lock:
            for incident in incidents:
                self._loop.receive(incident)

    def receive_snapshot(self, snapshot: JobSnapshot) -> None:
        """Every snapshot of every job, at a tick or a cut of the stream."""
        with self._lock:
            job = self._desk.job(snapshot.job)
            for event in job.update(snapshot, calm=not self._desk.has_open_fault(snapshot.job)):
                self._loop.receive_event(event, job)
            self._verifier.follow_short(job)

    def replay_snapshot(self, snapshot: JobSnapshot) -> None:
        """A snapshot from before this leader was elected: the job's state is updated, nothing is acted on."""
        with self._lock:
            has_open_fault = any(tracked.escalation is not INFORM and tracked.opened <= snapshot.time for tracked in self._desk.incidents_of(snapshot.job))
            self._desk.job(snapshot.job).update(snapshot, calm=not has_open_fault)

    def tick(self) -> None:
        """About twenty times a second."""
        if not self._leads():
            return
        with self._lock:
            self._take_reports()
            self._loop.tick()
            self._live.advance()
            self._background.advance()
            self._take_reports()
            self._show(self._desk.incidents)

    def decide(self, decision: Decision, approved: bool) -> Body:
        """Approve or refuse a plan that waits for approval. Raises ControlError if it does not wait, has expired or has changed."""
        with self._lock:
            return self._approvals.decide(decision, approved)

    def pending_plans(self, question: PendingPlansQuery) -> Body:
        """Plans that wait for approval. Raises ControlError for a named plan that does not."""
        with self._lock:
            return self._approvals.pending_plans(question)

    def release(self, node: str, person: str) -> Body:
        """An operator releases a node: recorded, and commanded to the jobs that it was evicted from. Raises ControlError if it is not cordoned."""
        with self._lock:
            return {"node": node, "jobs": self._releases.ask(node, person)}

    def order(self, order: OperatorCommand) -> Body:
        """A silence, a maintenance window, the closing of a breaker, a note. Raises ControlError for one that names nothing known."""
        with self._lock:
            return self._commands.order(order)

    def guard_counts(self) -> dict[tuple[str, str], int]:
        """(guard, allow | hold | refuse) → number of verdicts since this leader was elected."""
        with self._lock:
            return dict(self._desk.counts)

    def measured_throughputs(self) -> tuple[Throughput, ...]:
        """Throughput of each job by number of workers, measured while no incident was open: what the planner computes with."""
        with self._lock:
            return tuple(each for job in self._desk.jobs.values() for each in job.measured_throughputs())

    def transition_costs(self) -> tuple[TransitionCost, ...]:
        """Seconds that elastic jobs needed to regroup and to take workers in: what the planner computes with."""
        with self._lock:
            return tuple(each for job in self._desk.jobs.values() for each in job.transition_costs(self._desk.clock.now()))

    def clock_skews(self) -> dict[str, float]:
        """Node → seconds that its clock is ahead of the server's (negative: behind); nodes whose clocks are right are left out."""
        with self._lock:
            telemetry = self._desk.cluster_view.telemetry(self._desk.jobs.values())
            return {node: each.skew_s for node, each in telemetry.items() if each.skew_s}

    def status(self) -> Body:
        """Incidents that have not ended, plans that wait for approval, cordoned nodes, verdicts of guards, silences, windows and breakers."""
        with self._lock:
            incidents = [tracked for tracked in self._desk.incidents.values() if tracked.phase is not IncidentPhase.ENDED]
            return {
                "incidents": [
                    {"id": tracked.incident.id, "job": tracked.job, "cause": tracked.incident.cause, "state": tracked.state.value,
                     "waits_for": tracked.phase.value, "plan": tracked.plan.id if tracked.plan is not None else ""}
                    for tracked in incidents
                ],
                "waiting": [tracked.plan.id for tracked in incidents if tracked.phase is IncidentPhase.HELD and tracked.plan is not None],
                "cordoned": [cordon.node for cordon in self._desk.ledger.cordoned()],
                "verdicts": {f"{guard} {said}": count for (guard, said), count in sorted(self._desk.counts.items())},
                **self._commands.in_force(),
            }

    # --- inside ------------------------------------------------------------------------------------------------------

    def _take_reports(self) -> None:
        for report in self._desk.execution.reports():
            tracked = self._desk.incidents.get(report.plan.incident)
            self._live.action_ended(report)
            if self._background.holds(report.plan):
                self._background.ended(report, self._rollback.undone)
            elif tracked is not None:
                self._loop.handle(tracked, ActionEnded(report))

    def _notify(self, tracked: TrackedIncident, news: str) -> Plan:
        """Record the news for the incident's alert; the delivery worker sends it."""
        now, news = self._desk.clock.now(), news + self._commands.expected(tracked)
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
