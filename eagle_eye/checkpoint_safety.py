"""The newest checkpoint that is safe, as launchers tell it (`checkpoint.safe`): in memory, on another node, in storage; and what keeps it from being newer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from .event_attributes import float_attribute, integer_attribute
from .types import Event, Kind

CHECKPOINT_SAFE = "checkpoint.safe"
"""Event of each launcher of a job, about the checkpoints of its own workers."""
TIERS = ("memory", "backup", "storage")
TIER_NAMES = {"memory": "in memory", "backup": "on another node", "storage": "in storage"}
LONGEST = 400
"""Characters of a name (types.entity.Name), and of a failure."""
LONGEST_NODE = 255
NAMED = 3
"""Nodes that are named; further ones are counted."""


class SafeStep(msgspec.Struct, frozen=True, kw_only=True):
    """Of one tier."""

    step: int = -1
    """-1: none is safe there."""
    time: float = 0.0
    """When its state was taken, seconds since 1970; 0: not known."""
    failure: str = ""
    """What keeps a newer one from being safe there; '' if nothing is known to."""


class NodeSafety(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher of one node has told last."""

    job: str
    node: str
    time: float
    tiers: dict[str, SafeStep]
    """Those of TIERS that the job has: a job of one node has no other node."""
    kept_by: str = ""
    """Node that keeps the copies of this one."""
    shared: str = ""
    """What would take both of them away, such as 'switch leaf-1'; '' if nothing is known to."""


class JobSafety(msgspec.Struct, frozen=True, kw_only=True):
    """Of a whole job: a restart could go on from these steps."""

    tiers: dict[str, SafeStep] = {}
    """Of memory and of other nodes the newest step that is safe of every node; storage has it of all or not at all."""
    shared: tuple[str, ...] = ()
    """Nodes whose copies lie in their own failure domain, in words."""


def safety_attributes(tiers: Mapping[str, SafeStep], kept_by: str, shared: str) -> dict[str, str]:
    """Of the event."""
    found = {"kept_by": kept_by[:LONGEST], "shared": shared[:LONGEST]}
    for tier, safe in tiers.items():
        found |= {f"{tier}_step": str(safe.step), f"{tier}_time": f"{safe.time:.3f}", f"{tier}_failure": safe.failure[:LONGEST]}
    return found


def safety_told(event: Event) -> NodeSafety | None:
    """What an event tells. None for another event, and where it is not a launcher of the job itself that speaks."""
    told = event.attributes
    names = [event.job, event.node, *(text for name, text in told.items() if name in {"kept_by", "shared"} or name.endswith("_failure"))]
    of_job = event.name == CHECKPOINT_SAFE and event.entity.kind is Kind.JOB and event.entity.name == event.job and 0 < len(event.node) <= LONGEST_NODE
    if not of_job or any(len(name) > LONGEST or "\0" in name for name in names):
        return None
    tiers = {
        tier: SafeStep(step=integer_attribute(event, f"{tier}_step"), time=max(0.0, float_attribute(event, f"{tier}_time")), failure=told.get(f"{tier}_failure", ""))
        for tier in TIERS if f"{tier}_step" in told
    }  # fmt: skip
    return NodeSafety(job=event.job, node=event.node, time=event.time, tiers=tiers, kept_by=told.get("kept_by", ""), shared=told.get("shared", ""))


def job_safety(told: Iterable[NodeSafety], nodes: Sequence[str]) -> JobSafety:
    """Of a job that runs on these nodes. What others have told, which have left it, does not count."""
    known = {each.node: each for each in told if each.node in nodes}
    tiers = {tier: _of_tier(tier, known, nodes) for tier in TIERS if any(tier in each.tiers for each in known.values())}
    shared = [f"{each.node} and {each.kept_by} on {each.shared}" for each in known.values() if each.shared]
    return JobSafety(tiers=tiers, shared=tuple(shared))


def _of_tier(tier: str, known: Mapping[str, NodeSafety], nodes: Sequence[str]) -> SafeStep:
    there = {node: each.tiers[tier] for node, each in known.items() if tier in each.tiers}
    failure = _listed(f"{node}: {safe.failure}" for node, safe in there.items() if safe.failure)
    if tier == "storage":
        newest = max(there.values(), key=lambda safe: safe.step)
        return SafeStep(step=newest.step, time=newest.time, failure=failure)
    silent = [node for node in nodes if node not in there]
    if silent:
        return SafeStep(failure=failure or f"{_listed(silent, ', ')} {'has' if len(silent) == 1 else 'have'} told of none")
    oldest = min(there.values(), key=lambda safe: safe.step)
    return SafeStep(step=oldest.step, time=oldest.time, failure=failure)


def _listed(texts: Iterable[str], between: str = "; ") -> str:
    def shown() -> Iterator[str]:
        yield from each[:NAMED]
        if len(each) > NAMED:
            yield f"and {len(each) - NAMED} more"

    each = list(texts)
    return between.join(shown())
