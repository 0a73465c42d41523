"""Plans, the approval links to them, and what became of them: every step is written before and after it runs."""

import hashlib
import secrets
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Select, Table, insert, select, update

from eagle_eye.errors import LedgerError
from eagle_eye.types import Approval, IncidentNote, Outcome, Plan, Progress, Verdict

from .database import Database, patient, put, to_json
from .records import ApprovalLink, VerdictRecord
from .suppression_table import insert_note
from .tables import approval_links, approvals, outcomes, plans, progress, verdicts

Kept = TypeVar("Kept")


class PlanTable(Database):
    """Plans, their progress, outcomes, the guards' verdicts and operators' approvals."""

    @patient
    def save_plan(self, plan: Plan) -> None:
        """Keep a plan; the same id again replaces it."""
        with self._writing() as connection:
            _keep(connection, plan)

    @patient
    def plan(self, plan: str) -> Plan | None:
        """The plan of that id."""
        return next(iter(self._plans(select(plans.c.body).where(plans.c.id == plan))), None)

    @patient
    def plans(self, *, incident: str = "", limit: int = 100) -> tuple[Plan, ...]:
        """Newest first."""
        query = select(plans.c.body).order_by(plans.c.made.desc(), plans.c.id).limit(limit)
        return self._plans(query.where(plans.c.incident == incident) if incident else query)

    @patient
    def record_intent(self, plan: Plan, step: Progress) -> None:
        """Write down that a step is about to be done; call before it runs."""
        if step.state != "intended":
            raise LedgerError(f"step {step.step!r} of plan {plan.id} is {step.state}: only an intended one is written before")
        with self._writing() as connection:
            _keep(connection, plan)
            _write(connection, plan.id, step)

    @patient
    def record_result(self, plan: Plan, step: Progress) -> None:
        """Write down that a step is done or has failed. LedgerError if it was not written before it ran."""
        with self._writing() as connection:
            last = connection.execute(_last_state(plan.id, step.step)).scalar()
            if last != "intended":
                raise LedgerError(f"step {step.step!r} of plan {plan.id} was not written down before it ran")
            _write(connection, plan.id, step)

    @patient
    def progress(self, plan: str) -> tuple[Progress, ...]:
        """What was done of a plan, oldest first."""
        query = select(progress.c.body).where(progress.c.plan == plan).order_by(progress.c.number)
        with self._reading() as connection:
            return _decoded(connection, query, Progress)

    @patient
    def begun(self) -> tuple[tuple[Plan, Outcome], ...]:
        """Plans whose outcome is still `intended`, oldest first, however many came after them: the next leader goes on with each."""
        columns = select(plans.c.body, outcomes.c.body).join_from(outcomes, plans, plans.c.id == outcomes.c.plan)
        with self._reading() as connection:
            rows = connection.execute(columns.where(outcomes.c.state == "intended").order_by(outcomes.c.time)).all()
            return tuple((msgspec.json.decode(plan, type=Plan), msgspec.json.decode(outcome, type=Outcome)) for plan, outcome in rows)

    @patient
    def save_outcome(self, outcome: Outcome) -> None:
        """Keep what became of a plan; a later outcome replaces the earlier one."""
        values = {"incident": outcome.incident, "state": outcome.state, "time": outcome.time, "body": to_json(outcome)}
        with self._writing() as connection:
            put(connection, outcomes, {"plan": outcome.plan}, values)

    @patient
    def outcome(self, plan: str) -> Outcome | None:
        """What became of a plan."""
        with self._reading() as connection:
            return next(iter(_decoded(connection, select(outcomes.c.body).where(outcomes.c.plan == plan), Outcome)), None)

    @patient
    def outcomes(self, *, incident: str = "", since: float = 0.0, limit: int = 100) -> tuple[Outcome, ...]:
        """Newest first."""
        query = select(outcomes.c.body).where(outcomes.c.time >= since).order_by(outcomes.c.time.desc()).limit(limit)
        with self._reading() as connection:
            return _decoded(connection, query.where(outcomes.c.incident == incident) if incident else query, Outcome)

    @patient
    def save_approval(self, approval: Approval, *, note: IncidentNote | None = None, link: str = "") -> bool:
        """Keep an operator's approval or refusal, what they noted, and that `link` (its token) is used by it: all of it, or nothing.

        False, and nothing is kept, if the link was used before, has expired, or is unknown."""
        values = {"digest": approval.digest, "time": approval.time, "expires": approval.expires}
        with self._writing() as connection:
            if link and not _use(connection, link, approval):
                return False
            connection.execute(insert(approvals), {**values, "body": to_json(approval)})
            if note is not None:
                insert_note(connection, note)
            return True

    @patient
    def approvals(self, *, digest: str = "", now: float | None = None) -> tuple[Approval, ...]:
        """Newest first; with `now` only those that have not expired. The newest decision on a digest is what counts."""
        query = select(approvals.c.body).order_by(approvals.c.time.desc(), approvals.c.number.desc())
        if digest:
            query = query.where(approvals.c.digest == digest)
        if now is not None:
            query = query.where(approvals.c.expires > now)
        with self._reading() as connection:
            return _decoded(connection, query, Approval)

    @patient
    def save_verdict(self, plan: Plan, verdict: Verdict, time: float) -> None:
        """Keep a guard's verdict on a plan."""
        values = {"plan": plan.id, "incident": plan.incident, "time": time, "body": to_json(verdict)}
        with self._writing() as connection:
            connection.execute(insert(verdicts), values)

    @patient
    def verdicts(self, *, incident: str = "", plan: str = "") -> tuple[VerdictRecord, ...]:
        """Guards' verdicts on a plan, or on all plans of an incident; oldest first."""
        query = select(verdicts).order_by(verdicts.c.number)
        if incident:
            query = query.where(verdicts.c.incident == incident)
        if plan:
            query = query.where(verdicts.c.plan == plan)
        with self._reading() as connection:
            return tuple(
                VerdictRecord(
                    plan=row.plan,
                    incident=row.incident,
                    verdict=msgspec.json.decode(row.body, type=Verdict),
                    time=row.time,
                )
                for row in connection.execute(query)
            )

    def _plans(self, query: Select[Any]) -> tuple[Plan, ...]:
        with self._reading() as connection:
            return _decoded(connection, query, Plan)


def _keep(connection: Connection, plan: Plan) -> None:
    values = {"incident": plan.incident, "digest": plan.digest, "made": plan.made, "body": to_json(plan)}
    put(connection, plans, {"id": plan.id}, values)


def _write(connection: Connection, plan: str, step: Progress) -> None:
    table: Table = progress
    connection.execute(insert(table), {"plan": plan, "step": step.step, "state": step.state, "time": step.time, "body": to_json(step)})


def _last_state(plan: str, step: str) -> Select[Any]:
    mine = (progress.c.plan == plan, progress.c.step == step)
    return select(progress.c.state).where(*mine).order_by(progress.c.number.desc()).limit(1)


def _decoded(connection: Connection, query: Select[Any], noun: type[Kept]) -> tuple[Kept, ...]:
    return tuple(msgspec.json.decode(body, type=noun) for body in connection.execute(query).scalars())


class ApprovalLinkTable(Database):
    """Approval links: each approves or refuses one plan, once. Only a hash of each link's token is kept."""

    @patient
    def create_approval_link(self, plan: Plan, now: float) -> str:
        """A new link for a plan, valid until the plan expires; returns its token, of which only a hash is kept."""
        token = secrets.token_urlsafe(32)
        job = plan.targets[0].job if plan.targets else ""
        values = {
            "plan": plan.id, "incident": plan.incident, "job": job, "digest": plan.digest, "made": now, "expires": plan.expires
        }  # fmt: skip
        with self._writing() as connection:
            connection.execute(insert(approval_links), {"hash": _hash(token), **values})
        return token

    def approval_link(self, token: str) -> ApprovalLink | None:
        """The link of a token; None for an unknown one."""
        with self._reading() as connection:
            row = connection.execute(select(approval_links).where(approval_links.c.hash == _hash(token))).one_or_none()
            if row is None:
                return None
            return ApprovalLink(
                plan=row.plan, incident=row.incident, job=row.job, digest=row.digest, made=row.made, expires=row.expires,
                used=row.used, person=row.person or "", approved=bool(row.approved),
            )  # fmt: skip


def _use(connection: Connection, token: str, approval: Approval) -> bool:
    """Within the transaction of the decision: a link that is used without one would decide nothing, and never could."""
    mine = (approval_links.c.hash == _hash(token), approval_links.c.used.is_(None), approval_links.c.expires > approval.time)
    answer = update(approval_links).where(*mine).values(used=approval.time, person=approval.person, approved=approval.approved)
    return connection.execute(answer).rowcount > 0


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
