"""Claims → findings: ids, revisions, withdrawals. The same claims at the same marks give the same findings."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from eagle_eye.types import Claim, Entity, Evidence, Finding, Kind, Mark, digest_of

OPEN_MOST = 10_000
"""Findings of one job that are open at the same time: more tell nobody anything, and names of entities come over a wire."""
DOUBTED = "over: all of the last ten minutes do not show it"
_Key = tuple[str, Kind, str, str]
"""detector, kind of entity, its name, kind of finding"""


class OpenFindings:
    """The open findings of one job, each with its newest revision."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._open: dict[_Key, Finding] = {}
        self._inherited: set[_Key] = set()
        """Those that no detector of this owner has claimed."""
        self._doubted: set[_Key] = set()

    @property
    def open(self) -> tuple[Finding, ...]:
        """The newest revision of each finding that was not withdrawn, in the order of their opening."""
        return tuple(self._open.values())

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._open)

    def take(self, detector: str, digest: str, claim: Claim, mark: Mark) -> Finding | None:
        """The finding that a claim opens, revises or withdraws; None if it changes nothing.

        Raises ValueError for a claim without evidence.
        """
        if not claim.evidence:
            raise ValueError(f"a claim of {claim.kind} about {claim.entity} without evidence")
        key = (detector, claim.entity.kind, claim.entity.name, claim.kind)
        self._inherited.discard(key)
        before = self._open.get(key)
        if before is None:
            return self._opened(key, digest, claim, mark)
        same = (before.score, before.since, before.evidence) == (claim.score, claim.since, claim.evidence)
        if claim.active and same and before.digest == digest:
            return None
        finding = _revision(before, digest, claim, mark)
        if claim.active:
            self._open[key] = finding
        else:
            del self._open[key]
        return finding

    def withdraw_all(self, why: str, mark: Mark) -> tuple[Finding, ...]:
        """Withdraw all open findings, for example because the job is gone; `why` becomes their last line of evidence."""
        return self._over(list(self._open), Evidence(text=why), mark)

    def restore(self, findings: Iterable[Finding]) -> None:
        """Restore the open findings of an earlier owner. Those that no detector of this one has claimed are inherited: none will withdraw them."""
        claimed = self._open.keys()
        self._open = {
            (finding.detector, finding.entity.kind, finding.entity.name, finding.kind): finding for finding in findings
        }
        self._inherited = self._open.keys() - claimed

    def doubt(self, others: "OpenFindings") -> None:
        """Inherited findings that another owner's detectors have claimed, which have seen less than those of this one."""
        self._doubted = self._inherited & (others._open.keys() - others._inherited)

    @property
    def inherited(self) -> bool:
        """Some findings are known to no detector of this owner."""
        return bool(self._inherited)

    def withdraw_inherited(self, why: Evidence, mark: Mark) -> tuple[Finding, ...]:
        """Withdraw those of a worker that no detector of this owner has claimed. `why`: their last line."""
        return self._over([key for key in self._open if key in self._inherited and key[1] is Kind.WORKER], why, mark)

    def withdraw_doubted(self, mark: Mark) -> tuple[Finding, ...]:
        """Withdraw what was found by those that had seen less."""
        doubted, self._doubted = self._doubted & self._inherited, set()
        return self._over([key for key in self._open if key in doubted], Evidence(text=DOUBTED), mark)

    def _over(self, keys: list[_Key], why: Evidence, mark: Mark) -> tuple[Finding, ...]:
        self._inherited.difference_update(keys)
        return tuple(_ended(self._open.pop(key), why, mark) for key in keys)

    def _opened(self, key: _Key, digest: str, claim: Claim, mark: Mark) -> Finding | None:
        if not claim.active or len(self._open) >= OPEN_MOST:
            return None
        finding = Finding(
            id=finding_id(self._job, key[0], claim.entity, claim.kind, mark.number),
            revision=1,
            detector=key[0],
            digest=digest,
            job=self._job,
            entity=claim.entity,
            kind=claim.kind,
            score=claim.score,
            since=claim.since,
            time=mark.time,
            evidence=claim.evidence,
            active=True,
        )
        self._open[key] = finding
        return finding


def finding_id(job: str, detector: str, entity: Entity, kind: str, mark: int) -> str:
    """Id of a finding, the same for every reader of the same stream; `mark`: number of the mark that opened it."""
    return digest_of(job, detector, entity.kind, entity.name, kind, mark)


def detector_digest(name: str, detector: Any) -> str:
    """Digest of a detector's name and configuration."""
    if not is_dataclass(detector):
        return digest_of(name)
    options = {
        each.name: repr(getattr(detector, each.name))
        for each in fields(detector)
        if each.init and not each.name.startswith("_")
    }
    return digest_of(name, options)


def _ended(finding: Finding, why: Evidence, mark: Mark) -> Finding:
    return msgspec.structs.replace(finding, revision=finding.revision + 1, time=mark.time, active=False, evidence=(*finding.evidence, why))


def _revision(before: Finding, digest: str, claim: Claim, mark: Mark) -> Finding:
    return msgspec.structs.replace(
        before,
        revision=before.revision + 1,
        digest=digest,
        score=claim.score,
        since=claim.since,
        time=mark.time,
        evidence=claim.evidence,
        active=claim.active,
    )
