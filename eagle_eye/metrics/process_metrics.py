"""Metrics of this process itself, as its role hands them over at each scrape."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

CLOCKS_SHOWN = 50
"""Nodes at most: when more clocks are off, it is the server's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetrics:
    """How far this process has read one partition."""

    partition: int
    lag_records: int
    """Records that were written and not read yet."""
    lag_s: float
    """How long ago the newest record that was read had been written; 0 if all were read."""
    last_tick: float
    """Time of the newest tick that was judged; NaN before the first."""
    records: int
    frames: int
    marks: int
    findings: int
    incidents: int
    dead_letters: int
    missed_ticks: int = 0
    """Left out, because what came before them was not done."""
    stretch: int = 1
    """Times less often than usual detectors that judge minutes are asked."""
    fetchers: int = 0
    """Processes that read its records for this one."""
    fetched: int = 0
    """Records that they have read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessMetrics:
    """One look at this process."""

    role: str
    leads: bool = False
    leads_since: float = 0.0
    """Only of a process that leads: seconds since 1970."""
    term: int = 0
    """Of the leader that this process knows of, itself or another; 0: none."""
    stream_away: bool = False
    ledger_away: bool = False
    partitions: tuple[PartitionMetrics, ...] = ()
    sessions: Mapping[str, int] = field(default_factory=dict)
    """Role of the peer (agent, launcher) → open sessions."""
    spooled: int = 0
    """Records that wait for the stream to come back."""
    spool_age_s: float = 0.0
    dropped: int = 0
    """Records of this process that found no room."""
    waiting_plans: int = 0
    """Plans that wait for an operator's approval."""
    bad_records: int = 0
    """Findings, incidents and snapshots that the leader could not use."""
    clocks: Mapping[str, float] = field(default_factory=dict)
    """Node → seconds that its clock is ahead, of those that are off."""


def families_of(values: ProcessMetrics) -> Iterator[Metric]:
    """All families of the process."""
    yield _leader(values)
    yield GaugeMetricFamily("eagle_eye_leader_term", "Term of the leader that this process knows of.", value=values.term)
    yield GaugeMetricFamily("eagle_eye_stream_unavailable", "1 while the stream does not answer: nothing is judged.", value=values.stream_away)
    yield GaugeMetricFamily("eagle_eye_ledger_unavailable", "1 while the ledger does not answer.", value=values.ledger_away)
    yield GaugeMetricFamily("eagle_eye_spool_records", "Records of this process that wait for the stream.", value=values.spooled)
    yield GaugeMetricFamily("eagle_eye_spool_oldest_age_seconds", "Age of the oldest of them.", value=values.spool_age_s)
    yield CounterMetricFamily("eagle_eye_spool_dropped_records", "Records of this process that found no room.", value=values.dropped)
    if values.leads:
        yield from _leading(values)
    for name, text, value, counts in _OF_A_PARTITION:
        family = (CounterMetricFamily if counts else GaugeMetricFamily)(name, text, labels=["partition"])
        for partition in values.partitions:
            number = value(partition)
            if math.isfinite(number):
                family.add_metric([str(partition.partition)], number)
        yield family


def _leader(values: ProcessMetrics) -> Metric:
    family = GaugeMetricFamily("eagle_eye_leader", "1 on the process that leads, 0 on a standby.", labels=["role"])
    if values.role != "detect":
        family.add_metric([values.role], float(values.leads))
    return family


def _leading(values: ProcessMetrics) -> Iterator[Metric]:
    sessions = GaugeMetricFamily("eagle_eye_sessions", "Open sessions on the control channel.", labels=["peer"])
    for peer in sorted({"agent", "launcher", *values.sessions}):
        sessions.add_metric([peer], values.sessions.get(peer, 0))
    yield sessions
    yield GaugeMetricFamily("eagle_eye_plans_awaiting_approval", "Plans that wait for an operator's approval.", value=values.waiting_plans)
    yield CounterMetricFamily("eagle_eye_leader_dead_letters", "Findings, incidents and snapshots that the leader could not use.", value=values.bad_records)
    clocks = GaugeMetricFamily("eagle_eye_node_clock_offset_seconds", "Of nodes whose clocks are off, the farthest: seconds ahead, negative: behind.", labels=["node"])
    for node in sorted(values.clocks, key=lambda node: -abs(values.clocks[node]))[:CLOCKS_SHOWN]:
        clocks.add_metric([node], values.clocks[node])
    yield clocks


_OF_A_PARTITION: tuple[tuple[str, str, Callable[[PartitionMetrics], float], bool], ...] = (
    ("eagle_eye_partition_lag_records", "Records that were written to the partition and not read yet.", lambda each: each.lag_records, False),
    ("eagle_eye_partition_lag_seconds", "How far reading is behind writing; 0 if all was read.", lambda each: each.lag_s, False),
    ("eagle_eye_partition_last_tick_timestamp_seconds", "Time of the newest tick that was judged.", lambda each: each.last_tick, False),
    ("eagle_eye_partition_records", "Records read.", lambda each: each.records, True),
    ("eagle_eye_partition_frames", "Frames judged.", lambda each: each.frames, True),
    ("eagle_eye_partition_marks", "Marks appended.", lambda each: each.marks, True),
    ("eagle_eye_partition_missed_ticks", "Ticks that were left out, because what came before them was not done.", lambda each: each.missed_ticks, True),
    ("eagle_eye_partition_stretch", "Times less often than usual detectors that judge minutes are asked.", lambda each: each.stretch, False),
    ("eagle_eye_partition_findings", "Revisions of findings.", lambda each: each.findings, True),
    ("eagle_eye_partition_incidents", "Revisions of incidents.", lambda each: each.incidents, True),
    ("eagle_eye_partition_dead_letters", "Records that could not be read.", lambda each: each.dead_letters, True),
    ("eagle_eye_partition_fetchers", "Processes that read records of the partition for the one that judges them.", lambda each: each.fetchers, False),
    ("eagle_eye_partition_fetched_records", "Records that they have read.", lambda each: each.fetched, True),
)
