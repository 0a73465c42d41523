"""Responses to next events: the workers of each running job after each single event that may happen next.

Unicron's look-up table (section 5): the planner's EventTable answers the loss of a worker of each job and the return of
one; the loss of a whole node is solved apart. What it costs is paid before anything happens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from remediation.planner.allocation.allocation import solve
from remediation.planner.allocation.event_table import EventTable
from remediation.planner.allocation.next_events import NextEvent, NextEventKind, problem_after

from .live_cluster import LiveCluster
from .worker_placement import WorkerMoves, plan_moves

EventName = Literal["worker lost", "node lost", "worker returned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventResponse:
    """The workers of each job after one event, and the moves that lead there."""

    event: EventName
    of: str
    """Job whose worker is lost; '' for a node or a worker that returns."""
    node: str
    workers: dict[str, int]
    """Job → workers after it."""
    moves: WorkerMoves
    """From the placement that the event leaves to `workers`."""
    waf_before: float
    """Of the cluster before the event."""
    waf_as_left: float
    """After it, if no worker changes jobs."""
    waf: float
    """After it, with the response."""


def event_responses(cluster: LiveCluster) -> tuple[EventResponse, ...]:
    """Every next single event of the running jobs; () without a job."""
    if not cluster.jobs:
        return ()
    return tuple(_responses(cluster))


def best_worker_counts(cluster: LiveCluster) -> dict[str, int]:
    """Job → workers, for the workers there are now: for events that are not in the table."""
    return cluster.counts(solve(problem_after(cluster.planned, [])))


def _responses(cluster: LiveCluster) -> Iterator[EventResponse]:
    event_table = EventTable(cluster.planned)
    for job in cluster.jobs:
        plan = event_table.allocation_after([NextEvent(NextEventKind.LOST, job.name)])
        for node, count in sorted(job.demand.workers_per_node.items()):
            if plan is not None and count:
                yield _response(cluster, cluster.without(job.name, node), "worker lost", job.name, node, cluster.counts(plan))
    back = event_table.allocation_after([NextEvent(NextEventKind.JOINED)])
    for node in cluster.nodes:
        if any(job.demand.workers_per_node.get(node, 0) for job in cluster.jobs):
            left = cluster.without_node(node)
            yield _response(cluster, left, "node lost", "", node, best_worker_counts(left))
        if cluster.missing(node) and back is not None:
            yield _response(cluster, cluster.returned(node), "worker returned", "", node, cluster.counts(back))


def _response(cluster: LiveCluster, left: LiveCluster, event: EventName, of: str, node: str, counts: Mapping[str, int]) -> EventResponse:
    moved = plan_moves(left, counts)
    workers = {job.name: job.workers + moved.workers.get(job.name, 0) for job in left.jobs}
    return EventResponse(
        event=event, of=of, node=node, workers=workers, moves=moved,
        waf_before=cluster.waf({}), waf_as_left=left.waf({}), waf=left.waf(workers),
    )  # fmt: skip
