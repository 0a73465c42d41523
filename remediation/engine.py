"""Incident → plan → guards → execution → outcome. Contain first, explain after.

The engine owns no loop: its server calls `consider`, `follow` and `tick`. All three are quick and may be called
from different threads; actions run in threads of their own, one per job at a time.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.errors import ControlError
from eagle_eye.frames import Frame
from eagle_eye.ledger import Ledger
from eagle_eye.protocols import Action, Guard
from eagle_eye.rpc.messages import Body, Decision
from eagle_eye.types import Approval, Event, Incident, IncidentState, Plan, Progress, digest_of

from .cases import Case, Phase
from .containment import answer_to, events_of, fault_epoch, plan_of
from .desk import Desk
from .execution import Execution, Report, Start, in_thread
from .jobs import Begun, Job
from .judging import Judging
from .ladder import INFORM
from .policy import Policy
from .proposals import SOON_S, Proposals
from .releases import Releases
from .resumption import take_over
from .settle import Settling

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
        policy: Policy | None = None,
        leads: Callable[[], bool] = lambda: True,
        start: Start = in_thread,
    ) -> None:
        self._leads = leads
        self._notifier = actions.get("notify")
        self._lock = threading.RLock()
        execution = Execution(actions=actions, book=ledger, clock=clock, leads=leads, start=start)
        self._desk = Desk(
            ledger=ledger, clock=clock, policy=policy or Policy(), guards=guards, execution=execution
        )
        self._proposals = Proposals(self._desk, self._notify)
        self._judging = Judging(self._desk, self._proposals.propose, self._notify)
        self._releases = Releases(self._desk)

    # --- what the server calls -----------------------------------------------------------------------------------

    def resume(self) -> None:
        """Take over from the leader before: call once, before anything else."""
        with self._lock:
            take_over(self._desk)

    def declare(self, job: str, *, budget_left: int, nodes_min: int = 1) -> None:
        """What the job's coordinator says of its own permission."""
        with self._lock:
            known = self._desk.job(job)
            known.budget_left, known.nodes_min = budget_left, nodes_min

    def consider(self, incidents: Sequence[Incident]) -> None:
        """New and revised incidents."""
        with self._lock:
            for incident in incidents:
                self._consider(incident)

    def follow(self, frame: Frame) -> None:
        """Every frame of every job, tick or cut."""
        with self._lock:
            job = self._desk.job(frame.job)
            calm = not any(case.treatment is not INFORM for case in self._desk.cases_of(frame.job))
            for event in job.follow(frame, calm=calm):
                self._answer(event, job)
            self._judging.follow_short(job)

    def tick(self) -> None:
        """About twenty times a second."""
        if not self._leads():
            return
        with self._lock:
            self._take_reports()
            for case in list(self._desk.cases.values()):
                self._advance(case)
            self._judging.judge()
            self._releases.advance()
            self._take_reports()

    def decide(self, decision: Decision, approved: bool) -> Body:
        """A person's word on the plan that waits. Raises ControlError if none does, or another one."""
        with self._lock:
            case = self._waiting(decision.plan)
            plan = case.plan
            assert plan is not None
            if decision.digest and decision.digest != plan.digest:
                raise ControlError(
                    f"the plan has changed: {plan.digest} waits now, not {decision.digest}. Look at it and decide again."
                )
            now = self._desk.clock.now()
            valid = decision.valid_s or self._desk.policy.expires_s
            word = Approval(digest=plan.digest, person=decision.person, approved=approved, time=now, expires=now + valid)
            self._desk.ledger.save_approval(word)
            case.due = now
            return {"plan": plan.id, "action": plan.action, "digest": plan.digest, "approved": approved}

    def release(self, node: str, person: str) -> Body:
        """A person lets a node take part again: written down, and told to the jobs that leave it out."""
        with self._lock:
            return {"node": node, "jobs": self._releases.ask(node, person)}

    def status(self) -> Body:
        """What is open, what waits for a person, who is out."""
        with self._lock:
            cases = [case for case in self._desk.cases.values() if case.phase is not Phase.ENDED]
            return {
                "incidents": [
                    {"id": case.incident.id, "job": case.job, "cause": case.incident.cause, "state": case.state.value,
                     "waits_for": case.phase.value, "plan": case.plan.id if case.plan is not None else ""}
                    for case in cases
                ],
                "waiting": [case.plan.id for case in cases if case.phase is Phase.HELD and case.plan is not None],
                "cordoned": [cordon.node for cordon in self._desk.ledger.cordoned()],
            }

    # --- incidents -----------------------------------------------------------------------------------------------

    def _consider(self, incident: Incident) -> None:
        case = self._desk.cases.get(incident.id)
        if case is None:
            self._open(incident)
            return
        changed = case.settling.revise(incident, self._desk.clock.now())
        ended = self._desk.memory.attempts_on(incident, frozenset(), 0.0)
        again = bool(ended) and incident.since > max(attempt.ended for attempt in ended)
        case.incident = incident
        self._desk.ledger.save_incident(incident, case.state)
        if not incident.active:
            self._over(case)
        elif case.state is IncidentState.HEALED and again:
            self._desk.move(case, Phase.SETTLING, state=IncidentState.OPEN)
            self._treat(case)
        elif changed and case.phase is Phase.PARKED:
            self._treat(case)

    def _open(self, incident: Incident) -> None:
        desk = self._desk
        job = desk.job(incident.job)
        case = Case(
            incident=incident,
            state=IncidentState.OPEN,
            phase=Phase.SETTLING,
            opened=incident.time,
            settling=Settling.of(incident, desk.clock.now()),
            epoch=fault_epoch(incident.since, events_of(incident), job),
        )
        desk.cases[incident.id] = case
        desk.ledger.save_incident(incident, case.state)
        if incident.active:
            self._judging.came_back(case)
            self._treat(case)
        else:
            desk.move(case, Phase.ENDED, state=IncidentState.CLOSED)

    def _treat(self, case: Case) -> None:
        """The first answer to an incident: what may follow its first finding does."""
        desk = self._desk
        job, treatment = desk.job(case.job), case.treatment
        if treatment is not INFORM:
            job.disturbed(case.incident.since)
        answer = answer_to(case, job)
        if treatment is INFORM:
            self._inform(case)
        elif answer is not None:
            self._contained(case, answer)
        elif treatment.by_itself:
            desk.move(case, Phase.CONTAINED_BY_JOB, due=job.seen + desk.policy.contain_s)
        elif treatment.standstill:
            self._proposals.propose(case)
        else:
            desk.move(case, Phase.SETTLING, due=self._settled(case))

    def _inform(self, case: Case) -> None:
        """Unknown, or nothing that a repair could help: somebody is told, nobody is touched."""
        self._desk.move(case, Phase.PARKED)
        plan = self._notify(case, "nothing is done about it")
        self._desk.keep(plan)
        self._desk.note_plan(plan, "done", "nobody is touched")

    def _over(self, case: Case) -> None:
        """Every finding was withdrawn, or the epoch of the fault is over."""
        waits = case.phase in (Phase.SETTLING, Phase.HELD, Phase.RETRYING) and not case.treatment.lasting
        if waits and case.plan is not None and case.phase is Phase.HELD:
            self._desk.note_plan(case.plan, "stale", "the incident was over before the plan was carried out")
        if waits or case.phase is Phase.PARKED:
            self._desk.move(case, Phase.ENDED, state=IncidentState.CLOSED)

    def _settled(self, case: Case) -> float:
        return case.settling.due(self._desk.policy.settle_s, self._desk.policy.settle_max_s)

    # --- what a job does to itself ---------------------------------------------------------------------------------

    def _answer(self, event: Event, job: Job) -> None:
        """A new epoch, a spent budget, an end."""
        for case in self._desk.cases_of(job.name):
            if event.name in ("job.finished", "job.failed"):
                self._job_over(case, event)
            elif event.name == "budget.spent" and case.phase is Phase.CONTAINED_BY_JOB:
                case.alone = False
                self._desk.move(case, Phase.SETTLING, due=self._settled(case))
            elif event.name == "epoch.begun" and case.phase in (Phase.CONTAINED_BY_JOB, Phase.SETTLING, Phase.HELD, Phase.RETRYING):
                self._take_epoch(case, job)

    def _take_epoch(self, case: Case, job: Job) -> None:
        """A new epoch: the plan's own, whose answer was lost, or one that made it needless."""
        begun, plan = answer_to(case, job), case.plan
        if plan is not None and case.phase is Phase.RETRYING and any(begun.plan == plan.id for begun in job.begun):
            case.plan = None
            self._judging.begin(case, plan, (), began=job.begun[-1].time)
        elif begun is not None and case.incident.id not in self._desk.trials:
            self._contained(case, begun)

    def _contained(self, case: Case, begun: Begun) -> None:
        """The coordinator has healed it by itself; only what outlasts that is still to be done."""
        desk = self._desk
        job, now = desk.job(case.job), desk.clock.now()
        earlier = [attempt for attempt in self._proposals.attempts(case) if attempt.incident != case.incident.id]
        if case.plan is not None and case.phase in (Phase.HELD, Phase.RETRYING):
            desk.note_plan(case.plan, "stale", f"epoch {begun.epoch} began first: {begun.reason}")
        plan = plan_of(case, begun, job, now, desk.policy)
        told = Progress(step=f"epoch {begun.epoch}", state="intended", time=begun.time, detail=begun.reason)
        done = msgspec.structs.replace(told, state="done")
        desk.memory.plan(plan)
        desk.ledger.intend(plan, told)
        desk.ledger.did(plan, done)
        desk.note_plan(plan, "intended")
        case.plan, case.rung = None, plan.action
        self._judging.begin(case, plan, (told, done), began=begun.time)
        rungs = case.treatment.rungs
        outlasts = plan.action not in rungs or any(attempt.action == plan.action for attempt in earlier)
        if rungs and outlasts and self._proposals.rung(case) is not None:
            desk.move(case, Phase.SETTLING, due=self._settled(case))

    def _job_over(self, case: Case, event: Event) -> None:
        desk = self._desk
        trial = desk.trials.pop(case.incident.id, None)
        if trial is not None:
            job = desk.job(case.job)
            desk.note(trial.outcome(job, "failed", desk.clock.now(), "the job ended before it could be judged"))
        elif case.phase is Phase.HELD and case.plan is not None:
            desk.note_plan(case.plan, "stale", "the job ended")
        ended = IncidentState.CLOSED if event.name == "job.finished" else IncidentState.FAILED
        desk.move(case, Phase.ENDED, state=ended)

    # --- time ------------------------------------------------------------------------------------------------------

    def _advance(self, case: Case) -> None:
        desk, now = self._desk, self._desk.clock.now()
        if case.phase is Phase.CONTAINED_BY_JOB and desk.job(case.job).seen > case.due:
            self._not_contained(case)
        elif case.phase in (Phase.SETTLING, Phase.HELD) and now >= case.due:
            self._proposals.propose(case)
        elif case.phase is Phase.RETRYING and now >= case.due and case.plan is not None:
            self._retry(case, case.plan, now)

    def _not_contained(self, case: Case) -> None:
        """The coordinator did not do what it does by itself: a repair is sent, unless it was a false alarm."""
        if case.incident.active:
            self._proposals.propose(case)
        else:
            self._desk.move(case, Phase.ENDED, state=IncidentState.CLOSED)

    def _retry(self, case: Case, plan: Plan, now: float) -> None:
        desk = self._desk
        job = desk.job(case.job)
        if now >= plan.expires:
            desk.note_plan(plan, "failed", "expired before it could be carried out")
            self._failed(case, plan)
        elif job.current is None or desk.execution.busy(case.job):
            desk.move(case, Phase.RETRYING, due=now + SOON_S)
        elif job.epoch > plan.targets[0].epoch:
            self._stale(case, plan, f"the job is at epoch {job.epoch} already")
        else:
            desk.move(case, Phase.RUNNING)
            desk.execution.begin(plan)

    # --- what became of an action ----------------------------------------------------------------------------------

    def _take_reports(self) -> None:
        for report in self._desk.execution.reports():
            case = self._desk.cases.get(report.plan.incident)
            if case is None:
                self._releases.ended(report)
            elif case.phase is Phase.RUNNING:
                self._reported(case, report)

    def _reported(self, case: Case, report: Report) -> None:
        desk, plan = self._desk, report.plan
        if plan.action in case.treatment.evidence:
            self._evidence(case, report)
        elif report.ending == "done":
            case.plan = None
            self._judging.begin(case, plan, report.progress, began=desk.clock.now())
        elif report.ending == "stale":
            self._stale(case, plan, report.detail)
        elif report.ending == "retry" and desk.clock.now() + report.delay < plan.expires:
            desk.move(case, Phase.RETRYING, due=desk.clock.now() + report.delay)
        elif report.ending != "stopped":
            desk.note_plan(plan, "failed", report.detail, report.progress)
            self._failed(case, plan)

    def _evidence(self, case: Case, report: Report) -> None:
        """Evidence is worth little: whether it could be had or not, the repair goes on."""
        if report.ending == "stopped":
            return
        done = report.ending == "done"
        plan = report.plan
        self._desk.note_plan(plan, "done" if done else "failed", report.detail, report.progress)
        case.plan = None
        case.prepared.add(plan.action)
        self._desk.move(case, Phase.SETTLING)
        begun = answer_to(case, self._desk.job(case.job))
        if begun is not None:
            self._contained(case, begun)
        else:
            self._proposals.propose(case)

    def _stale(self, case: Case, plan: Plan, why: str) -> None:
        """The epoch that the plan was made for is over: it is never carried out, but planned anew."""
        desk = self._desk
        job = desk.job(case.job)
        if job.layout is not None and job.layout.plan == plan.id:
            case.plan = None
            self._judging.begin(case, plan, (), began=job.layout.time)
            return
        desk.note_plan(plan, "stale", why)
        case.plan = None
        case.epoch = plan.targets[0].epoch
        begun = answer_to(case, job)
        if begun is not None:
            self._contained(case, begun)
        elif case.incident.active or case.treatment.lasting:
            if not case.treatment.epoch_cures:
                case.epoch += 1  # plan anew only once the newer epoch's layout is here
            desk.move(case, Phase.SETTLING, due=desk.clock.now() + SOON_S)
        else:
            desk.move(case, Phase.ENDED, state=IncidentState.CLOSED)

    def _failed(self, case: Case, plan: Plan) -> None:
        """Refused or expired: the job's own restart becomes a matter of mode and guards, else the next repair."""
        case.plan = None
        if plan.own and plan.action == "restart_worker" and case.alone:
            case.alone = False
        else:
            self._proposals.remember(case, plan, failed=True)
        self._proposals.propose(case)

    def _waiting(self, name: str) -> Case:
        for case in self._desk.cases.values():
            if case.phase is Phase.HELD and case.plan is not None and name in (case.plan.id, case.incident.id, case.plan.digest):
                return case
        waiting = [case.plan.id for case in self._desk.cases.values() if case.phase is Phase.HELD and case.plan is not None]
        raise ControlError(f"no plan {name!r} waits for a decision; waiting: {', '.join(waiting) or 'none'}")

    def _notify(self, case: Case, news: str) -> Plan:
        """Tell somebody, at once: it only puts a letter into the ledger."""
        now = self._desk.clock.now()
        plan = Plan(
            id=digest_of("notify", case.incident.id, news, now),
            incident=case.incident.id,
            action="notify",
            targets=(),
            made=now,
            expires=now,
            severity=case.incident.severity,
            own=True,
            reason=news,
        )
        if self._notifier is not None:
            self._desk.execution.here(self._notifier, plan)
        return plan
