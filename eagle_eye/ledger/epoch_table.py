"""Jobs as their coordinators reported them, whose they are, and the epochs that were granted to one half of a job."""

import msgspec
from sqlalchemy import Connection, insert, select

from eagle_eye.types import Demand, Layout, digest_of

from .database import Database, patient, put, to_json
from .records import JobOwner, JobRecord
from .tables import epochs, job_owners, jobs


def may_follow(layout: Layout, last: int, newest: Layout | None) -> bool:
    """Whether a side that knows epoch `last` may get an epoch though the `newest` that is known here may be valid: it has at least half of that one's launchers.

    Else both halves of a job could be granted one, under two numbers.
    """
    if newest is None or newest.epoch <= last:
        return True
    return 2 * sum(node in layout.launchers for node in newest.voters) >= len(newest.voters)


class EpochTable(Database):
    """The last layout of each job, and who was granted which epoch."""

    @patient
    def grant_epoch(self, job: str, epoch: int, layout: Layout, last: int = 0) -> bool:
        """True once for each epoch, and again only for the very same layout: two halves never both get it.

        An epoch that is not above all that were granted or reported valid before is refused, and one that comes after `last` and would leave
        behind those to whom a newer one was granted.
        """
        digest = digest_of(msgspec.structs.replace(layout, time=0.0))
        with self._writing() as connection:
            granted = connection.execute(
                select(epochs.c.digest).where(epochs.c.job == job, epochs.c.epoch == epoch)
            ).scalar()
            if granted is not None:
                return bool(granted == digest)
            newest = _newest(connection, job)
            if newest is not None and (epoch <= newest.epoch or not may_follow(layout, last, newest)):
                return False
            connection.execute(insert(epochs), {"job": job, "epoch": epoch, "digest": digest, "body": to_json(layout)})
            return True

    @patient
    def save_job(
        self, job: str, layout: Layout, address: str, heal: str, budget_left: int, nodes_min: int = 1, demand: Demand | None = None, coordinator: str = "",
    ) -> bool:  # fmt: skip
        """Keep what the coordinator reported after a valid epoch; False, and nothing kept, for an epoch that is over."""
        facts = JobRecord(layout=layout, address=address, heal=heal, budget_left=budget_left, nodes_min=nodes_min, demand=demand, coordinator=coordinator)
        with self._writing() as connection:
            known = connection.execute(select(jobs.c.epoch).where(jobs.c.job == job)).scalar()
            if known is not None and known > layout.epoch:
                return False
            put(connection, jobs, {"job": job}, {"epoch": layout.epoch, "body": to_json(facts)})
            return True

    @patient
    def jobs(self) -> dict[str, JobRecord]:
        """All jobs that were ever reported and not forgotten."""
        with self._reading() as connection:
            rows = connection.execute(select(jobs.c.job, jobs.c.body).order_by(jobs.c.job)).all()
            return {row.job: msgspec.json.decode(row.body, type=JobRecord) for row in rows}

    @patient
    def job_record(self, job: str) -> JobRecord | None:
        """One of them."""
        with self._reading() as connection:
            body = connection.execute(select(jobs.c.body).where(jobs.c.job == job)).scalar()
            return msgspec.json.decode(body, type=JobRecord) if body is not None else None

    @patient
    def forget_job(self, job: str) -> None:
        """The run is over: the next leader need not look for it. Its granted epochs stay."""
        with self._writing() as connection:
            connection.execute(jobs.delete().where(jobs.c.job == job))

    @patient
    def save_job_owner(self, job: str, owner: JobOwner, time: float) -> None:
        """Keep whose a job is. It stays when the job is forgotten."""
        with self._writing() as connection:
            put(connection, job_owners, {"job": job}, {"changed": time, "body": to_json(owner)})

    @patient
    def job_owners(self) -> dict[str, JobOwner]:
        """Job → whose it is, for all that were ever declared, until retention."""
        with self._reading() as connection:
            rows = connection.execute(select(job_owners.c.job, job_owners.c.body)).all()
            return {row.job: msgspec.json.decode(row.body, type=JobOwner) for row in rows}


def _newest(connection: Connection, job: str) -> Layout | None:
    """Of all that were granted or reported valid."""
    granted = connection.execute(select(epochs.c.body).where(epochs.c.job == job).order_by(epochs.c.epoch.desc()).limit(1)).scalar()
    valid = connection.execute(select(jobs.c.body).where(jobs.c.job == job)).scalar()
    found = [msgspec.json.decode(granted, type=Layout)] if granted is not None else []
    found += [msgspec.json.decode(valid, type=JobRecord).layout] if valid is not None else []
    return max(found, key=lambda layout: layout.epoch, default=None)
