"""Eagle Eye itself: who leads, how far it lags, what it cannot see, what it dropped."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from dashboard.sources import Sources
from eagle_eye.ledger import Lease
from eagle_eye.types import Finding, Notice

LEADER = "leader"
PARTITION = "partition/"
FAILING = "collector.failing"
NOTICES = 100
FINDINGS = 1000
RECENT_S = 120.0
OFFSET = "eagle_eye_node_clock_offset_seconds"
_SKEWED = re.compile(r"the clock of (?P<node>\S+) is more than (?P<seconds>[\d.]+) s (?P<side>ahead|behind)")
"""How the guard telemetry_distrust writes it (remediation/guards/telemetry_distrust.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLine:
    """One partition of the stream."""

    partition: int
    owner: str
    """Process and host, '' if it has no owner now."""
    term: int
    lag_records: float
    """NaN where the server's figures are not known, as with all below."""
    lag_s: float
    last_tick: float
    history_lag_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorLine:
    """A collector that fails on a node: a blind spot."""

    node: str
    reason: str
    since: float
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLine:
    """A node whose clock is off."""

    node: str
    offset_s: float
    """Ahead (positive) or behind of the server's; how far at least, where it is not measured."""
    time: float
    measured: bool = True
    """By the leader, now; else from the verdict of a guard that held a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """One look at Eagle Eye itself."""

    leader: str
    """As text; '' if there is no leader."""
    last_leader: str
    """Process and host of the newest lease, run out or not; '' if there never was a leader."""
    led_until: float
    """When that lease runs out, or ran out; NaN if there never was a leader."""
    term: int
    leads_since: float
    """NaN if there is no leader."""
    partitions: tuple[PartitionLine, ...]
    collectors: tuple[CollectorLine, ...]
    clocks: tuple[ClockLine, ...]
    dropped: Mapping[str, float]
    """What was lost or could not be read, by a name for people → how much; none where the server's figures are not known."""
    notices: tuple[Notice, ...]
    """Newest first."""
    figures: bool
    """Whether the server's own figures could be read: without them lag and dropped numbers are not known."""
    newest: float
    """Time of the newest number of the history; NaN without one in the last minutes."""


def status(sources: Sources, *, token: str = "") -> ServerStatus:
    """`token`: the person's, for the server's figures where they ask for one."""
    return sources.remembered(("status", token), lambda: _status(sources, token))


def _status(sources: Sources, token: str) -> ServerStatus:
    ledger, now = sources.ledger, sources.clock.now()
    figures = sources.figures(token)
    lease = ledger.holder_of(LEADER)
    leads = lease is not None and lease.until > now
    findings = ledger.findings(active_only=True, limit=FINDINGS)
    notices = ledger.notices(limit=NOTICES)
    return ServerStatus(
        leader=str(lease) if leads else "", last_leader=_who(lease) if lease else "", led_until=lease.until if lease else float("nan"), term=lease.term if lease else 0, leads_since=lease.since if lease and leads else float("nan"),
        partitions=tuple(_partitions(ledger.living(PARTITION, now), figures or {})), collectors=tuple(_collectors(findings)),
        clocks=tuple(_measured(figures, now) if figures is not None and _leads(figures) else _told(sources)), dropped=_dropped(figures) if figures is not None else {}, notices=notices,
        figures=figures is not None, newest=_newest(sources, now),
    )  # fmt: skip


Figures = Mapping[str, Mapping[tuple[tuple[str, str], ...], float]]


def _partitions(leases: Iterable[Lease], figures: Figures) -> Iterator[PartitionLine]:
    owners = {int(text): lease for lease in leases if (text := lease.name.removeprefix(PARTITION)).isascii() and text.isdigit() and len(text) < 10}
    told = {int(value) for labels in figures.get("eagle_eye_partition_lag_records", {}) for name, value in labels if name == "partition"}
    for number in sorted({*owners, *told}):
        lease = owners.get(number)

        def figure(name: str, number: int = number) -> float:
            return figures.get(f"eagle_eye_{name}", {}).get((("partition", str(number)),), float("nan"))

        yield PartitionLine(
            partition=number, owner=_who(lease) if lease else "", term=lease.term if lease else 0,
            lag_records=figure("partition_lag_records"), lag_s=figure("partition_lag_seconds"),
            last_tick=figure("partition_last_tick_timestamp_seconds"), history_lag_s=figure("history_lag_seconds"),
        )  # fmt: skip


def _collectors(findings: Iterable[Finding]) -> Iterator[CollectorLine]:
    for finding in findings:
        if finding.kind == FAILING:
            yield CollectorLine(node=finding.entity.name, reason=finding.evidence[0].text if finding.evidence else "", since=finding.since, job=finding.job)


def _who(lease: Lease) -> str:
    return f"process {lease.holder.pid} on {lease.holder.host}"


def _leads(figures: Figures) -> bool:
    """Whether they are the leader's: it alone measures clocks."""
    return any(figures.get("eagle_eye_leader", {}).values())


def _measured(figures: Figures, now: float) -> Iterator[ClockLine]:
    """Farthest first."""
    offsets = figures.get(OFFSET, {})
    for labels in sorted(offsets, key=lambda each: -abs(offsets[each])):
        yield ClockLine(node=dict(labels)["node"], offset_s=offsets[labels], time=now)


def _told(sources: Sources) -> Iterator[ClockLine]:
    """Verdicts of guards on clocks in incidents that are not over, each node once."""
    seen: dict[str, ClockLine] = {}
    ledger = sources.ledger
    for present in ledger.incidents_present():
        for kept in ledger.verdicts(incident=present.id):
            for found in _SKEWED.finditer(kept.verdict.reason):
                offset = float(found["seconds"]) * (1 if found["side"] == "ahead" else -1)
                seen[found["node"]] = ClockLine(node=found["node"], offset_s=offset, time=kept.time, measured=False)
    yield from (seen[node] for node in sorted(seen))


_LOST = {
    "eagle_eye_spool_dropped_records_total": "records of the server that found no room",
    "eagle_eye_node_dropped_records_total": "records of nodes that found no room",
    "eagle_eye_partition_missed_ticks_total": "ticks that were left out, because what came before them was not done",
    "eagle_eye_partition_dead_letters_total": "records that could not be read",
    "eagle_eye_leader_dead_letters_total": "findings, incidents and snapshots that the leader could not use",
    "eagle_eye_history_skipped_blocks_total": "blocks without a schema",
    "eagle_eye_history_failures_total": "writes of the history that failed",
}


def _dropped(figures: Figures) -> dict[str, float]:
    return {words: sum(figures[name].values()) for name, words in _LOST.items() if name in figures}


def _newest(sources: Sources, now: float) -> float:
    if not sources.config.history.enabled:
        return float("nan")
    table = min((name for name in sources.metrics() if not name.startswith("steps")), key=lambda name: not name.startswith("node/"), default="")
    found = sources.ask(table, "SELECT max(epoch(time)) AS newest FROM {rows}", since=now - RECENT_S, until=now + RECENT_S) if table else None
    return float(np.asarray(found["newest"], float)[0]) if found else float("nan")
