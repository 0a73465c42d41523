"""Approval links: each approves or refuses one plan, once. Only a hash of each link's token is kept."""

import hashlib
import secrets

from sqlalchemy import insert, select, update

from eagle_eye.types import Plan

from .database import Database, patient
from .records import ApprovalLink
from .tables import invitations


class ApprovalLinkTable(Database):
    """Made when a plan waits for a person, used once."""

    @patient
    def create_approval_link(self, plan: Plan, now: float) -> str:
        """A new link for a plan, valid until the plan expires; returns its token, of which only a hash is kept."""
        token = secrets.token_urlsafe(32)
        job = plan.targets[0].job if plan.targets else ""
        values = {
            "plan": plan.id, "incident": plan.incident, "job": job, "digest": plan.digest, "made": now, "expires": plan.expires
        }  # fmt: skip
        with self._writing() as connection:
            connection.execute(insert(invitations).values(hash=_hash(token), **values))
        return token

    def approval_link(self, token: str) -> ApprovalLink | None:
        """The link of a token; None for an unknown one."""
        with self._reading() as connection:
            row = connection.execute(select(invitations).where(invitations.c.hash == _hash(token))).one_or_none()
            if row is None:
                return None
            return ApprovalLink(
                plan=row.plan, incident=row.incident, job=row.job, digest=row.digest, made=row.made, expires=row.expires,
                used=row.used, person=row.person or "", approved=bool(row.approved),
            )  # fmt: skip

    @patient
    def use_approval_link(self, token: str, person: str, approved: bool, now: float) -> bool:
        """Record the decision; False if the link was used before, has expired, or is unknown."""
        mine = (invitations.c.hash == _hash(token), invitations.c.used.is_(None), invitations.c.expires > now)
        with self._writing() as connection:
            answer = update(invitations).where(*mine).values(used=now, person=person, approved=approved)
            return connection.execute(answer).rowcount > 0


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
