"""Findings, the last revision of each; and notices about Eagle Eye itself."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
from sqlalchemy import delete, insert, select

from eagle_eye.types import Finding, Notice

from .database import Database, patient, to_json
from .tables import findings, notices


class FindingTable(Database):
    """What detectors claimed, and what the operator should know beside it."""

    def save_findings(self, news: Iterable[Finding]) -> None:
        """Keep the last revision of each; older ones that come late are dropped."""
        last: dict[str, Finding] = {}
        for finding in news:
            known = last.get(finding.id)
            if known is None or known.revision < finding.revision:
                last[finding.id] = finding
        self._save_newest(last)

    @patient
    def _save_newest(self, last: dict[str, Finding]) -> None:
        with self._writing() as connection:
            for ids in _portions(list(last)):
                kept = connection.execute(select(findings.c.id, findings.c.revision).where(findings.c.id.in_(ids)))
                known_revisions: dict[str, int] = {row.id: row.revision for row in kept}
                rows = [_row(last[key]) for key in ids if last[key].revision > known_revisions.get(key, -1)]
                if rows:
                    connection.execute(delete(findings).where(findings.c.id.in_([row["id"] for row in rows])))
                    connection.execute(insert(findings), rows)

    @patient
    def findings(self, *, active_only: bool = False, job: str = "", limit: int = 1000) -> tuple[Finding, ...]:
        """Newest first."""
        query = select(findings.c.body).order_by(findings.c.time.desc(), findings.c.id).limit(limit)
        if active_only:
            query = query.where(findings.c.active)
        if job:
            query = query.where(findings.c.job == job)
        with self._reading() as connection:
            return tuple(msgspec.json.decode(body, type=Finding) for body in connection.execute(query).scalars())

    @patient
    def findings_of(self, ids: Sequence[str]) -> tuple[Finding, ...]:
        """Those of these ids that are kept, by their beginning."""
        kept: list[Finding] = []
        with self._reading() as connection:
            for portion in _portions(ids):
                bodies = connection.execute(select(findings.c.body).where(findings.c.id.in_(portion))).scalars()
                kept += [msgspec.json.decode(body, type=Finding) for body in bodies]
        return tuple(sorted(kept, key=lambda finding: (finding.since, finding.id)))

    @patient
    def save_notice(self, notice: Notice) -> None:
        """Keep a notice."""
        with self._writing() as connection:
            connection.execute(insert(notices), {"name": notice.name, "time": notice.time, "body": to_json(notice)})

    @patient
    def notices(self, *, since: float = 0.0, name: str = "", limit: int = 100) -> tuple[Notice, ...]:
        """Newest first. `name`: only those of that name."""
        order = (notices.c.time.desc(), notices.c.number.desc())
        query = select(notices.c.body).where(notices.c.time >= since).order_by(*order).limit(limit)
        if name:
            query = query.where(notices.c.name == name)
        with self._reading() as connection:
            return tuple(msgspec.json.decode(body, type=Notice) for body in connection.execute(query).scalars())


def _portions(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    """Databases bound the number of parameters of one statement."""
    for start in range(0, len(ids), 500):
        yield ids[start : start + 500]


def _row(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "revision": finding.revision,
        "job": finding.job,
        "kind": finding.kind,
        "active": finding.active,
        "time": finding.time,
        "body": to_json(finding),
    }
