"""Worker placement: on which nodes jobs give and take workers, once an allocation says how many each gets. Greedy and deterministic."""

from collections.abc import Mapping
from dataclasses import dataclass

from .live_cluster import LiveCluster, LiveJob


@dataclass(frozen=True, slots=True)
class WorkerMoves:
    """Workers of each job and node afterwards: only jobs and nodes that change, donors before recipients."""

    placement: dict[str, dict[str, int]]
    """Job → node → workers from now on."""
    before: dict[str, dict[str, int]]
    """The same as they are."""
    donors: tuple[str, ...]
    recipients: tuple[str, ...]

    @property
    def workers(self) -> dict[str, int]:
        """Job → how many more (or less) it has afterwards."""
        return {job: sum(placement.values()) - sum(self.before[job].values()) for job, placement in self.placement.items()}


def plan_moves(cluster: LiveCluster, wanted: Mapping[str, int]) -> WorkerMoves:
    """From the placement of now to `wanted` (job → workers), as far as nodes allow it.

    A worker changes jobs on its own node, where both jobs have a launcher. A job that takes gets back the nodes with
    which it was started first; one that gives, gives the workers that it was not started with first.
    """
    placement, free = cluster.placement, dict(cluster.spare)
    jobs = {job.name: job for job in cluster.jobs}
    surplus = {name: max(0, job.workers - wanted.get(name, job.workers)) for name, job in jobs.items()}
    short = {name: max(0, wanted.get(name, job.workers) - job.workers) for name, job in jobs.items()}
    _give_back(jobs, placement, free, surplus)
    for name in sorted(short, key=lambda each: (-jobs[each].demand.weight, each)):
        while short[name] and _take_one(jobs[name], jobs, placement, free, surplus):
            short[name] -= 1
    return _changes(cluster, placement)


def _give_back(jobs: Mapping[str, LiveJob], placement: dict[str, dict[str, int]], free: dict[str, int], surplus: dict[str, int]) -> None:
    """What a job was not started with and need not keep becomes free."""
    for name, job in jobs.items():
        for node, count in sorted(placement[name].items()):
            gives = min(surplus[name], max(0, count - job.demand.declared.get(node, 0)))
            if gives:
                placement[name][node] -= gives
                surplus[name] -= gives
                free[node] = free.get(node, 0) + gives


def _take_one(job: LiveJob, jobs: Mapping[str, LiveJob], placement: dict[str, dict[str, int]], free: dict[str, int], surplus: dict[str, int]) -> bool:
    """One more worker for a job; False if there is none on any of its nodes."""
    own = placement[job.name]
    reachable = sorted(job.demand.declared, key=lambda node: (own.get(node, 0) - job.demand.declared[node], node))
    for node in reachable:
        if free.get(node, 0):
            free[node] -= 1
            own[node] = own.get(node, 0) + 1
            return True
    for node in reachable:
        donor = next((other for other in sorted(jobs, key=lambda each: (-surplus[each], each)) if surplus[other] and placement[other].get(node, 0)), None)
        if donor is not None:
            surplus[donor] -= 1
            placement[donor][node] -= 1
            own[node] = own.get(node, 0) + 1
            return True
    return False


def _changes(cluster: LiveCluster, placement: Mapping[str, Mapping[str, int]]) -> WorkerMoves:
    before = cluster.placement
    changed = {name: {node: count for node, count in sorted(now.items()) if count != before[name].get(node, 0)} for name, now in placement.items()}
    change = {name: sum(nodes.values()) - sum(before[name].get(node, 0) for node in nodes) for name, nodes in changed.items() if nodes}
    order = sorted(change, key=lambda name: (change[name], name))
    return WorkerMoves(
        placement={name: changed[name] for name in order},
        before={name: {node: before[name].get(node, 0) for node in changed[name]} for name in order},
        donors=tuple(name for name in order if change[name] < 0),
        recipients=tuple(name for name in order if change[name] > 0),
    )
