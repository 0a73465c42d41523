"""Incident → plan → guards → execution → outcome. Contain first, explain after.

What the server calls. It owns no thread: the server calls `receive_incidents`, `receive_snapshot` and `tick`; all three are
quick, take one lock, and may be called from different threads. Actions run in threads of their own, one per job at a time.
What happens to an incident is decided in incident_loop.py.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from eagle_eye.clock import Clock
from eagle_eye.configured_places import ConfiguredPlaces
from eagle_eye.ledger import Ledger, Throughput, TransitionCost
from eagle_eye.protocols import Action, Guard
from eagle_eye.rpc.control_messages import Body, Decision, OperatorCommand, PendingPlansQuery
from eagle_eye.types import Demand, Incident, JobSnapshot, Notice, Outcome, Plan, digest_of
from remediation.actions.notify import Notify
from remediation.live.live_planner import LivePlanner
from remediation.live.precomputed_plans import PrecomputedPlans
from remediation.live.resize_limit import ResizeLimit
from remediation.operators.approval_requests import ApprovalRequests
from remediation.operators.operator_commands import OperatorCommands, Releases
from remediation.policy.engine_settings import EngineSettings

from .action_results import ActionResults
from .action_undo import ActionUndo
from .background_actions import BackgroundActions
from .cluster_view import ClusterView
from .decision_recorder import DecisionRecorder
from .engine_state import EngineState
from .execution import ActionReport, Execution, StartThread, in_thread
from .failover import Failover
from .guard_review import GuardReview
from .handler_failures import HandlingFailures
from .incident_loop import IncidentLoop
from .incident_phase import ActionEnded, IncidentPhase
from .path_test_requests import PathTestRequests
from .pending_verifications import PendingVerifications
from .preconditions import Preconditions
from .repair_planner import RepairPlanner
from .self_healing import SelfHealing
from .tracked_incident import TrackedIncident

NOTIFY_S = 5.0
"""A notifier hands news on: within milliseconds."""
log = logging.getLogger(__name__)


class Engine:
    """The only one that acts. `leads` is asked before every step: a leader without a lease stops."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        actions: Mapping[str, Action],
        guards: Sequence[Guard],
        clock: Clock,
        settings: EngineSettings | None = None,
        places: ConfiguredPlaces | None = None,
        leads: Callable[[], bool] = lambda: True,
        start: StartThread = in_thread,
        publish: Callable[[str, Outcome], None] = lambda _job, _outcome: None,
    ) -> None:
        self._leads = leads
        self._notifier = actions.get("notify")
        self._show: Callable[[Mapping[str, TrackedIncident]], None] = lambda _cases: None
        self._lock = threading.RLock()
        self._ledger, self._clock, self._settings = ledger, clock, settings or EngineSettings()
        self._execution = Execution(actions=actions, log=ledger, clock=clock, leads=leads, start=start, refusal=self._refusal)
        self._failures = HandlingFailures(clock)
        self._state = state = EngineState(cluster_view=ClusterView(places or ConfiguredPlaces()))
        self._recorder = recorder = DecisionRecorder(state=state, ledger=ledger, clock=clock, publish=publish)
        self._review = review = GuardReview(
            state=state, ledger=ledger, clock=clock, settings=self._settings, guards=guards, execution=self._execution
        )
        self._background = BackgroundActions(recorder=recorder, execution=self._execution, clock=clock)
        self._preconditions = Preconditions(state=state, background=self._background, clock=clock, lock=self._lock)
        self._live = LivePlanner(
            state=state, recorder=recorder, execution=self._execution, clock=clock, settings=self._settings, background=self._background,
            limit=ResizeLimit(recorder=recorder, settings=self._settings), notify=self._notify,
        )  # fmt: skip
        self.precomputed_plans = PrecomputedPlans(
            state=state, review=review, clock=clock, settings=self._settings, live=self._live, lock=self._lock
        )
        """For the next single event of each kind."""
        self.path_tests = PathTestRequests(state=state, settings=self._settings, clock=clock, lock=self._lock)
        """That incidents want."""
        self._action_undo = ActionUndo(
            state=state, ledger=ledger, clock=clock, settings=self._settings, background=self._background, notify=self._notify
        )
        self._verifications = PendingVerifications(state=state, recorder=recorder, clock=clock, settings=self._settings, action_undo=self._action_undo)
        self._loop = self._incident_loop()
        self._releases = Releases(state=state, ledger=ledger, clock=clock, background=self._background, live=self._live)
        self._commands = OperatorCommands(state=state, recorder=recorder, review=review, ledger=ledger, clock=clock)
        self._approvals = ApprovalRequests(state=state, ledger=ledger, clock=clock, settings=self._settings)

    def _incident_loop(self) -> IncidentLoop:
        state, recorder, review, verifications = self._state, self._recorder, self._review, self._verifications
        ledger, clock, settings, execution = self._ledger, self._clock, self._settings, self._execution
        planner = RepairPlanner(
            state=state, recorder=recorder, review=review, execution=execution, clock=clock, settings=settings,
            live=self._live, notify=self._notify,
        )  # fmt: skip
        self_healing = SelfHealing(
            state=state, recorder=recorder, review=review, ledger=ledger, clock=clock, settings=settings,
            planner=planner, verifications=verifications, notify=self._notify, precomputed=self.precomputed_plans.covers,
        )  # fmt: skip
        results = ActionResults(
            state=state, recorder=recorder, execution=execution, clock=clock, planner=planner, verifications=verifications, self_healing=self_healing,
            action_undo=self._action_undo,
        )
        return IncidentLoop(
            state=state, recorder=recorder, review=review, ledger=ledger, clock=clock, settings=settings,
            planner=planner, verifications=verifications, self_healing=self_healing, results=results, live=self._live, notify=self._notify,
            failures=self._failures,
        )  # fmt: skip

    # --- what the server calls -----------------------------------------------------------------------------------

    def resume(self) -> None:
        """Take over from the leader before: call once, before anything else."""
        with self._lock:
            Failover(
                state=self._state, recorder=self._recorder, background=self._background, live=self._live,
                verifications=self._verifications, ledger=self._ledger, clock=self._clock, settings=self._settings,
            ).run()  # fmt: skip

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
            known = self._state.job(job)
            known.heal, known.budget_left, known.nodes_min, known.demand = heal, budget_left, nodes_min, demand

    def receive_incidents(self, incidents: Sequence[Incident]) -> None:
        """New and revised incidents, from diagnosis."""
        with self._lock:
            for incident in incidents:
                self._loop.receive(incident)

    def receive_snapshot(self, snapshot: JobSnapshot) -> None:
        """Every snapshot of every job, at a tick or a cut of the stream."""
        with self._lock:
            job = self._state.job(snapshot.job)
            for event in job.update(snapshot, calm=not self._state.has_open_fault(snapshot.job)):
                self._loop.receive_event(event, job)
            self._verifications.follow_short(job)

    def replay_snapshot(self, snapshot: JobSnapshot) -> None:
        """A snapshot from before this leader was elected: the job's state is updated, nothing is acted on."""
        with self._lock:
            has_open_fault = any(not tracked.escalation.only_informs and tracked.opened <= snapshot.time for tracked in self._state.incidents_of(snapshot.job))
            self._state.job(snapshot.job).update(snapshot, calm=not has_open_fault)

    def tick(self) -> None:
        """About twenty times a second. Raises what ends the leader's term (handler_failures.py); all else is contained where it happens."""
        if not self._leads():
            return
        with self._lock:
            self._take_reports()
            self._loop.tick()
            self._failures.contain("the live planner", self._live.advance)
            self._failures.contain("what is carried out beside the incidents", self._background.advance)
            self._take_reports()
            self._failures.contain("a listener of the engine", lambda: self._show(self._state.incidents))

    def decide(self, decision: Decision, approved: bool, link: str = "") -> Body:
        """Approve or refuse a plan that waits for approval; `link`: the token of the approval link that is used up by it.

        Raises ControlError if it does not wait, has expired or has changed, or if the link decides no more."""
        with self._lock:
            return self._approvals.decide(decision, approved, link)

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
            return dict(self._review.counts)

    def measured_throughputs(self) -> tuple[Throughput, ...]:
        """Throughput of each job by number of workers, measured while no incident was open: what the planner computes with."""
        with self._lock:
            return tuple(each for job in self._state.jobs.values() for each in job.measured_throughputs())

    def transition_costs(self) -> tuple[TransitionCost, ...]:
        """Seconds that elastic jobs needed to regroup and to take workers in: what the planner computes with."""
        with self._lock:
            return tuple(each for job in self._state.jobs.values() for each in job.transition_costs(self._clock.now()))

    def clock_skews(self) -> dict[str, float]:
        """Node → seconds that its clock is ahead of the server's (negative: behind); nodes whose clocks are right are left out."""
        with self._lock:
            telemetry = self._state.cluster_view.telemetry(self._state.jobs.values())
            return {node: each.skew_s for node, each in telemetry.items() if each.skew_s}

    def status(self) -> Body:
        """Incidents that have not ended, plans that wait for approval, cordoned nodes, verdicts of guards, silences, windows and breakers."""
        with self._lock:
            incidents = [tracked for tracked in self._state.incidents.values() if tracked.phase is not IncidentPhase.ENDED]
            return {
                "incidents": [
                    {"id": tracked.incident.id, "job": tracked.job, "cause": tracked.incident.cause, "state": tracked.state.value,
                     "waits_for": tracked.phase.value, "plan": tracked.plan.id if tracked.plan is not None else ""}
                    for tracked in incidents
                ],
                "waiting": [tracked.plan.id for tracked in incidents if tracked.phase is IncidentPhase.HELD and tracked.plan is not None],
                "cordoned": [cordon.node for cordon in self._ledger.cordoned()],
                "verdicts": {f"{guard} {said}": count for (guard, said), count in sorted(self._review.counts.items())},
                **self._commands.in_force(),
            }

    # --- inside ------------------------------------------------------------------------------------------------------

    def _refusal(self, plan: Plan) -> str:
        return self._preconditions.refusal(plan)

    def _take_reports(self) -> None:
        for report in self._execution.reports():
            self._failures.contain(f"the report of plan {report.plan.id}", partial(self._take_report, report), once=True)

    def _take_report(self, report: ActionReport) -> None:
        tracked = self._state.incidents.get(report.plan.incident)
        self._live.action_ended(report)
        if self._background.holds(report.plan):
            self._background.ended(report, self._action_undo.undone)
        elif tracked is not None:
            self._loop.contain(tracked, ActionEnded(report))

    def _notify(self, tracked: TrackedIncident, news: str) -> Plan:
        """Record the news for the incident's alert; the delivery worker sends it."""
        now, news = self._clock.now(), news + self._commands.expected(tracked)
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
        tracked.notifications += 1
        self._hand_on(plan)
        return plan

    def _hand_on(self, plan: Plan) -> None:
        """Ours writes into the ledger, and waits for nothing else; a stranger's may hold us, with the lock that everybody needs who asks the server something."""
        if isinstance(self._notifier, Notify):
            self._execution.here(self._notifier, plan)
        elif self._notifier is not None and not self._execution.within(self._notifier, plan, NOTIFY_S):
            message = f"the action notify ({type(self._notifier).__module__}) has not returned for {NOTIFY_S:g} s and is not asked again before the server is started again: mend it"
            self._notifier = None
            log.error("%s", message)
            self._ledger.save_notice(Notice(name="action.hung", time=self._clock.now(), message=message))
