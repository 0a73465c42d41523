"""The live planner: decides for elastic jobs after a loss or a straggler, and gives workers back after a repair."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.types import Incident, Mode, Plan, Severity, Target, digest_of
from remediation.engine.background_actions import BackgroundActions
from remediation.engine.decision_recorder import DecisionRecorder
from remediation.engine.engine_state import EngineState
from remediation.engine.execution import ActionReport, Execution
from remediation.engine.job_state import JobState
from remediation.engine.plan_builder import PlanRequest, workers_of
from remediation.engine.tracked_incident import TrackedIncident
from remediation.policy.downtime_model import restart_downtime
from remediation.policy.engine_settings import EngineSettings
from remediation.policy.escalation import DEATH, LOST, PROGRAM, Attempt

from .event_responses import best_worker_counts
from .live_cluster import LiveCluster, LiveJob, waf_before, waf_left, waf_since
from .live_decision import DecisionInputs, LiveDecision, decide_live
from .resize_limit import ResizeLimit
from .worker_placement import WorkerMoves, plan_moves

RETURN_WORKERS = "return_workers"
"""The record of workers that can run again and wait to be given to jobs."""
LEAST_SPEED = 0.05
"""Speeds below this count as this: a worker that makes no progress is no straggler."""
MEASURE_TIMEOUT_S = 120.0
"""How long to wait for steps that measure the effect of a change of workers."""


@dataclass(slots=True)
class PendingMeasurement:
    """A change of workers whose effect is not measured yet."""

    plan: Plan
    incident: Incident | None
    until: float


@dataclass(slots=True, kw_only=True)
class LivePlanner:
    """Called by the engine, which holds its lock."""

    state: EngineState
    recorder: DecisionRecorder
    execution: Execution
    clock: Clock
    settings: EngineSettings
    background: BackgroundActions
    limit: ResizeLimit
    notify: Callable[[TrackedIncident, str], object]
    _repaired: dict[str, int] = field(default_factory=dict)
    """Node → workers that can run there again and that no job has."""
    _restoring: str = ""
    """Id of the plan that gives them back."""
    _not_before: float = 0.0
    _unmeasured: list[PendingMeasurement] = field(default_factory=list)
    _returned: list[Plan] = field(default_factory=list)
    """What is recorded of the repaired workers, so that the next leader knows of them."""
    _uneven: dict[str, Plan] = field(default_factory=dict)
    """Job → the plan that took micro-batches away from a straggler."""

    # --- the running jobs ---------------------------------------------------------------------------------------------

    def cluster(self, of: str = "") -> LiveCluster:
        """The elastic jobs that may be planned for: this one, and those without an open incident."""
        jobs = [job for job in self.state.jobs.values() if job.demand is not None and job.current is not None and not job.over]
        calm = [job for job in jobs if job.name == of or not self.state.incidents_of(job.name)]
        return LiveCluster(jobs=tuple(self._live(job) for job in calm), spare=dict(self._repaired), worker_mtbf_s=self.settings.worker_mtbf_s)

    def _live(self, job: JobState) -> LiveJob:
        name = "/".join(job.name.split("/")[:2])
        assert job.demand is not None
        known = self.state.earlier_throughputs.get(name, {})
        measured = {**known, **{count: median(rate for _, rate in rates) for count, rates in job.rates.items() if rates}}
        return LiveJob(
            name=job.name,
            epoch=job.epoch,
            demand=job.demand,
            measured=measured,
            regroup_s=_median_or(job.regroup_times, self.state.earlier_costs.get((name, "regroup_s"), self.settings.regroup_s)),
            start_s=_median_or(job.join_times, self.state.earlier_costs.get((name, "start_s"), self.settings.start_s)),
        )

    # --- decisions ----------------------------------------------------------------------------------------------

    def applies_to(self, case: TrackedIncident, attempts: Sequence[Attempt]) -> bool:
        """Whether the case is a loss or a straggler of an elastic job, and no attempt has failed yet."""
        known = case.escalation in (DEATH, PROGRAM, LOST) or case.escalation.cost_weighed
        return known and self.state.job(case.job).demand is not None and not any(attempt.failed for attempt in attempts)

    def decide(self, case: TrackedIncident) -> LiveDecision | None:
        """The cheapest alternative; None: nothing to decide (the job has all its workers, or its throughput is not known well enough)."""
        job, cluster = self.state.job(case.job), self.cluster(case.job)
        live = cluster.job(case.job)
        if live is None:
            return None
        speeds = self._speeds(case, job) if case.escalation.cost_weighed else {}
        if not speeds and (case.escalation.cost_weighed or live.workers >= live.demand.most):
            return None
        inputs = DecisionInputs(
            repair_s=self.settings.horizon_s if speeds else self.settings.repair_s,
            restart_s=restart_downtime(job, self.settings),
            checkpoint_age_s=job.seconds_since_checkpoint(),
            speeds=speeds,
        )
        choice = decide_live(cluster, live, inputs)
        case.forecast = {"waf_before": cluster.waf({live.name: live.demand.most}), **choice.waf, "share": choice.share}
        return choice

    def request(self, case: TrackedIncident, choice: LiveDecision, attempts: Sequence[Attempt]) -> PlanRequest:
        """The decision as a request for a plan."""
        job = self.state.job(case.job)
        targets: tuple[Target, ...] = ()
        if choice.moves is not None:
            targets = self.targets(choice.moves)
        elif choice.action == "rebalance":
            speeds = self._speeds(case, job)
            targets = (Target(job=job.name, epoch=job.epoch, basis=job.basis, workers=tuple(speeds), speeds=speeds),)
        return PlanRequest(
            action=choice.action, own=False, incident=case.incident, attempts=attempts, now=self.clock.now(), cost=choice.cost,
            benefit=choice.benefit, alternatives=choice.alternatives, reason=f"{case.incident.cause}: {choice.how}", targets=targets,
        )  # fmt: skip

    def targets(self, moved: WorkerMoves) -> tuple[Target, ...]:
        """Donors before recipients."""
        jobs = [self.state.job(name) for name in moved.placement]
        return tuple(
            Target(job=job.name, epoch=job.epoch, basis=job.basis, workers_per_node=moved.placement[job.name], workers_per_node_before=moved.before[job.name]) for job in jobs
        )

    def _speeds(self, case: TrackedIncident, job: JobState) -> dict[str, float]:
        """Culprit → speed. All workers wait for the slowest, so the job's loss of pace is the culprits' loss."""
        workers = workers_of(case.incident, job)
        count = len(job.layout.placements) if job.layout is not None else 0
        now, healthy = job.throughput(self.settings.verify_steps + 1, epoch=job.epoch, after=case.incident.since), job.expected(count)
        if not workers or not math.isfinite(now) or not math.isfinite(healthy) or healthy <= 0 or now >= healthy:
            return {}
        return dict.fromkeys(workers, max(LEAST_SPEED, now / healthy))

    # --- repaired workers -----------------------------------------------------------------------------------------------

    def missing_workers(self, node: str) -> int:
        """Workers of a node with which jobs were started and which no job has."""
        return self._running_cluster().missing(node)

    def workers_repaired(self, node: str) -> list[str]:
        """An operator released a node: its workers can run again. Returns the jobs that were started there."""
        missing = self.missing_workers(node)
        if not missing:
            return []
        jobs = [job.name for job in self._running_cluster().jobs if node in job.demand.declared]
        self._repaired[node] = self._repaired.get(node, 0) + missing
        self._not_before = 0.0
        self.limit.reset()
        self._record_return(node, missing, jobs[0] if jobs else "")
        return jobs

    def _record_return(self, node: str, missing: int, job: str) -> None:
        """Intended until the workers are given to jobs: the next leader goes on (`recall`)."""
        now = self.clock.now()
        target = Target(job=job, epoch=0, basis="", workers_per_node={node: missing})
        plan = Plan(
            id=digest_of(RETURN_WORKERS, node, now), incident="", action=RETURN_WORKERS, targets=(target,), made=now, expires=now + self.settings.repair_s,
            severity=Severity.INFO, own=True, reason=f"{missing} worker(s) can run on {node} again",
        )  # fmt: skip
        self.recorder.save_plan(plan)
        self.recorder.record_plan(plan, "intended")
        self._returned.append(plan)

    def _returned_all(self) -> None:
        for plan in self._returned:
            self.recorder.record_plan(plan, "done")
        self._returned.clear()
        self._repaired.clear()

    def recall_returned(self, returned: Iterable[Plan], restoring: str) -> None:
        """Workers that the leader before had given to no job yet; `restoring`: the plan that gives them back, if it is under way."""
        for plan in returned:
            self._returned.append(plan)
            for node, count in plan.targets[0].workers_per_node.items():
                self._repaired[node] = self._repaired.get(node, 0) + count
        self._restoring = restoring

    def recall_uneven(self, uneven: Iterable[Plan]) -> None:
        """Plans of the leader before that took micro-batches away from stragglers."""
        self._uneven.update({plan.targets[0].job: plan for plan in uneven})

    def advance(self) -> None:
        """Once a tick: give back repaired workers, measure the effect of what was done."""
        self._restore()
        self._measure()

    def incident_closed(self, case: TrackedIncident) -> None:
        """The incident is closed: a straggler that recovered gets its micro-batches back."""
        self.even_out(case.job, case.incident.id)

    def even_out(self, name: str, incident: str) -> None:
        """Even shares again, if those of the job were changed because of this incident."""
        plan = self._uneven.get(name)
        if plan is None or plan.incident != incident:
            return
        target = Target(job=name, epoch=0, basis=self.state.job(name).basis)
        self._schedule("rebalance", (target,), plan, "the straggler recovered: even shares again")
        del self._uneven[name]

    def _restore(self) -> None:
        """Carry out the best allocation, once no job that it changes has an open incident."""
        now = self.clock.now()
        if self._restoring or now < self._not_before:
            return
        surplus = self.settings.mode is Mode.AUTO and any(job.demand.now > job.demand.most for job in self._running() if job.demand is not None)
        if not (self._repaired or surplus):
            self.limit.reset()
            return
        cluster = self._running_cluster()
        moved = plan_moves(cluster, best_worker_counts(cluster))
        if not moved.placement:
            self._returned_all()
            self.limit.reset()
        elif self.limit.refusal(moved.placement, now):
            self._not_before = now + self.settings.replan_s
        elif not any(self.state.incidents_of(job) or self.execution.busy(job) for job in moved.placement):
            self._hand_out(cluster, moved)

    def _hand_out(self, cluster: LiveCluster, moved: WorkerMoves) -> None:
        earlier = next((plan for plan in reversed(self.state.history.plans.values()) if plan.action == "resize" and plan.incident and not plan.undoes), None)
        after = {job.name: job.workers + moved.workers.get(job.name, 0) for job in cluster.jobs}
        full = all(count == job.demand.most for job, count in zip(cluster.jobs, after.values(), strict=True))
        why = "workers returned: " + ("every job has its initial workers again" if full else "allocated again")
        forecast = {"waf_before": cluster.waf({}), "waf": cluster.waf(after)}
        self._restoring = self._schedule("resize", self.targets(moved), earlier, why, forecast)

    def _schedule(self, action: str, targets: tuple[Target, ...], earlier: Plan | None, why: str, forecast: dict[str, float] | None = None) -> str:
        now = self.clock.now()
        undoes = earlier.id if earlier is not None else ""
        plan = Plan(
            id=digest_of(action, undoes, targets, now), incident=earlier.incident if earlier is not None else "", action=action, targets=targets,
            made=now, expires=now + self.settings.expires_s, severity=Severity.INFO, undoes=undoes, reason=why,
        )  # fmt: skip
        self.background.add(plan, forecast)
        return plan.id

    # --- results -------------------------------------------------------------------------------------------------

    def action_ended(self, report: ActionReport) -> None:
        """An action has ended: its duration goes into the model, its effect is measured later."""
        plan, now = report.plan, self.clock.now()
        if plan.id == self._restoring and report.ending not in ("retry", "stopped"):  # those are attempted again
            self._restoring = ""
            if report.ending == "done":
                self._returned_all()
            self._limit(report, now)
        if report.ending != "done":
            return
        if plan.action == "rebalance" and plan.targets[0].speeds:
            self._uneven[plan.targets[0].job] = plan
        if plan.action == "resize":
            self._learn(report)
            case = self.state.incidents.get(plan.incident)
            incident = case.incident if case is not None and not plan.undoes else None
            self._unmeasured.append(PendingMeasurement(plan, incident, now + MEASURE_TIMEOUT_S))

    def _limit(self, report: ActionReport, now: float) -> None:
        news = self.limit.count(report.plan, report.detail or report.ending, now)
        self._not_before = now + self.limit.wait_s()
        case = self.state.incidents.get(report.plan.incident)
        if news and case is not None:
            self.notify(case, news)

    def _learn(self, report: ActionReport) -> None:
        begun = {step.step: step.time for step in report.progress if step.state == "intended"}
        for target in report.plan.targets:
            step = f"resize {target.job}"
            ended = next((each.time for each in report.progress if each.step == step and each.state == "done"), None)
            more = sum(target.workers_per_node.values()) > sum(target.workers_per_node_before.values())
            job = self.state.job(target.job)
            if more and ended is not None and ended > begun[step]:
                job.join_times.append(ended - begun[step])
            if job.demand is not None:  # the coordinator reports the same a moment later
                workers_per_node = {node: count for node, count in {**job.demand.workers_per_node, **target.workers_per_node}.items() if count}
                job.demand = msgspec.structs.replace(job.demand, workers_per_node=workers_per_node)

    def _measure(self) -> None:
        now, steps = self.clock.now(), self.settings.verify_steps
        for pending in list(self._unmeasured):
            cluster = self._running_cluster()
            after = waf_since(cluster, self.state.jobs, {target.job: target.epoch for target in pending.plan.targets}, steps)
            if math.isnan(after) and now < pending.until:
                continue
            self._unmeasured.remove(pending)
            found = {"waf": after}
            if pending.incident is not None:
                found["waf_before"] = waf_before(cluster, self.state.jobs, pending.incident.since, steps)
                found["waf_left"] = waf_left(cluster, self.state.jobs, pending.plan, pending.incident)
            self.recorder.record_measured(pending.plan.id, {name: value for name, value in found.items() if math.isfinite(value)})

    def _running(self) -> list[JobState]:
        return [job for job in self.state.jobs.values() if job.demand is not None and job.layout is not None and not job.over]

    def _running_cluster(self) -> LiveCluster:
        return LiveCluster(jobs=tuple(self._live(job) for job in self._running()), spare=dict(self._repaired), worker_mtbf_s=self.settings.worker_mtbf_s)


def _median_or(seen: Sequence[float], otherwise: float) -> float:
    return median(seen) if seen else otherwise
