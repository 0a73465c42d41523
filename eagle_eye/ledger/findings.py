"""Findings, the last revision of each; and notices about Eagle Eye itself."""

from collections.abc import Iterable, Sequence

import msgspec
from sqlalchemy import insert, select

from eagle_eye.types import Finding, Notice

from .store import Store, put, words
from .tables import findings, notices


class Findings(Store):
    """What detectors claimed, and what the operator should know beside it."""

    def save_findings(self, news: Iterable[Finding]) -> None:
        """Keep the last revision of each; older ones that come late are dropped."""
        with self._writing() as connection:
            for finding in news:
                where = findings.c.id == finding.id
                known = connection.execute(select(findings.c.revision).where(where)).scalar()
                if known is not None and known >= finding.revision:
                    continue
                values = {"job": finding.job, "kind": finding.kind, "active": finding.active, "time": finding.time}
                put(
                    connection,
                    findings,
                    {"id": finding.id},
                    {"revision": finding.revision, "body": words(finding), **values},
                )

    def findings(self, *, active_only: bool = False, job: str = "", limit: int = 1000) -> tuple[Finding, ...]:
        """Newest first."""
        query = select(findings.c.body).order_by(findings.c.time.desc(), findings.c.id).limit(limit)
        if active_only:
            query = query.where(findings.c.active)
        if job:
            query = query.where(findings.c.job == job)
        with self._reading() as connection:
            return tuple(msgspec.json.decode(body, type=Finding) for body in connection.execute(query).scalars())

    def findings_of(self, ids: Sequence[str]) -> tuple[Finding, ...]:
        """Those of these ids that are kept, by their beginning."""
        query = select(findings.c.body).where(findings.c.id.in_(ids))
        with self._reading() as connection:
            kept = [msgspec.json.decode(body, type=Finding) for body in connection.execute(query).scalars()]
        return tuple(sorted(kept, key=lambda finding: (finding.since, finding.id)))

    def save_notice(self, notice: Notice) -> None:
        """Keep a notice."""
        with self._writing() as connection:
            connection.execute(insert(notices).values(name=notice.name, time=notice.time, body=words(notice)))

    def notices(self, *, since: float = 0.0, limit: int = 100) -> tuple[Notice, ...]:
        """Newest first."""
        order = (notices.c.time.desc(), notices.c.number.desc())
        query = select(notices.c.body).where(notices.c.time >= since).order_by(*order).limit(limit)
        with self._reading() as connection:
            return tuple(msgspec.json.decode(body, type=Notice) for body in connection.execute(query).scalars())
