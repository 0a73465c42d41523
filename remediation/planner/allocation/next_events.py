"""Next events of a cluster (a worker lost or joined, a task finished or launched), and the allocation problem after them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from eagle_eye.errors import ConfigError

from .tasks import AllocationProblem, Task, TaskCluster


class NextEventKind(StrEnum):
    """What makes a new allocation necessary (Unicron: a failed node, a joined node, a task finished, a task launched)."""

    LOST = "lost"
    JOINED = "joined"
    FINISHED = "finished"
    LAUNCHED = "launched"


@dataclass(frozen=True, slots=True)
class NextEvent:
    """One thing that happened. Workers are lost and join by one unit of the granularity."""

    kind: NextEventKind
    task: str = ""
    """Whose worker was lost ('': one that no task held), or which task finished or was launched."""


def next_events(cluster: TaskCluster) -> list[NextEvent]:
    """Every single event that may happen next."""
    lost = []
    if cluster.workers >= cluster.granularity:
        lost = [*(NextEvent(NextEventKind.LOST, task.name) for task in cluster.tasks if task.current), NextEvent(NextEventKind.LOST)]
    finished = [NextEvent(NextEventKind.FINISHED, task.name) for task in cluster.tasks]
    launched = [NextEvent(NextEventKind.LAUNCHED, task.name) for task in cluster.queue]
    return [*lost, NextEvent(NextEventKind.JOINED), *finished, *launched]


def problem_after(cluster: TaskCluster, events: Sequence[NextEvent]) -> AllocationProblem:
    """The allocation problem after all events; without events: of the present cluster.

    Raises ConfigError for a task that is not there, or for more workers lost than there were.
    """
    tasks, failed, pool = cluster.tasks, set[str](), cluster
    for event in events:
        if event.kind is NextEventKind.FINISHED:
            gone = _named(event, tasks, "tasks")
            tasks = tuple(task for task in tasks if task is not gone)
            failed.discard(gone.name)
        elif event.kind is NextEventKind.LAUNCHED:
            tasks = (*tasks, _named(event, cluster.queue, "queue"))
        elif event.kind is NextEventKind.LOST:
            if event.task:
                failed.add(_named(event, tasks, "tasks").name)
            pool = _with_one_lost(pool)
        else:
            pool = _with_one_joined(pool)
    return AllocationProblem(
        tasks=tasks, usable=pool.usable, gpu_mtbf_s=cluster.gpu_mtbf_s, granularity=cluster.granularity, failed=frozenset(failed)
    )


def _named(event: NextEvent, tasks: Sequence[Task], where: str) -> Task:
    found = next((task for task in tasks if task.name == event.task), None)
    if found is None:
        names = ", ".join(task.name for task in tasks) or "none"
        raise ConfigError(f"event {event.kind}: no task is called {event.task!r}; under {where} there are: {names}")
    return found


def _with_one_lost(pool: TaskCluster) -> TaskCluster:
    if pool.workers < pool.granularity:
        raise ConfigError(f"event lost: {pool.granularity} workers are lost, but only {pool.workers} are left")
    spares = max(0, pool.spares - pool.granularity)
    return replace(pool, tasks=(), queue=(), workers=pool.workers - pool.granularity, spares=spares)


def _with_one_joined(pool: TaskCluster) -> TaskCluster:
    to_pool = max(0, min(pool.granularity, pool.spare_pool - pool.spares))
    return replace(pool, tasks=(), queue=(), workers=pool.workers + pool.granularity, spares=pool.spares + to_pool)
