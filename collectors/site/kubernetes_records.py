"""What the API server of Kubernetes says of a node and of pods, as far as it is read, and what it means.

Conditions are those of Kubernetes, of node-problem-detector and of NVSentinel, which sets one with the name of its check to True for a fatal fault;
taints are those by which autoscalers, clouds and NVSentinel announce what they do.
"""

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase

import msgspec

from .scheduler_facts import NodeState, PreemptionNotice, bounded

KUBERNETES = "kubernetes"
FAULT_CONDITIONS = (
    "KernelDeadlock", "ReadonlyFilesystem", "CorruptDockerOverlay2", "Frequent*Restart", "FrequentUnregisterNetDevice", "FilesystemCorruptionProblem",
    "ContainerRuntimeProblem", "ContainerRuntimeUnhealthy", "KubeletProblem", "KubeletUnhealthy", "XfsShutdown", "CperHardwareErrorFatal", "NTPProblem",
    "Gpu*", "GPU*", "NVLink*", "SysLogs*", "SyslogError", "NVSwitch*", "DCGMError", "CSPMaintenance", "MemoryPressure", "DiskPressure", "PIDPressure",
    "NetworkUnavailable",
)  # fmt: skip
"""Types of conditions whose status True is a fault: node-problem-detector's (its config/ and AKS's), NVSentinel's (docs/INTEGRATIONS.md), the kubelet's. `*` stands for anything."""
FAULT_TAINTS = ("nvidia.com/*-error", "*.health/*", "node.cloudprovider.kubernetes.io/shutdown", "node.kubernetes.io/out-of-service")
"""Keys of taints that tell of a fault: NVSentinel's as its documentation shows them, and those of Kubernetes that no condition repeats."""
GOOD_ENDINGS = ("Ready", "Healthy", "Available")
"""A condition that is so named is good when it is True, whatever it begins with."""
GOOD_CONDITIONS = ("AcceleratedHardwareReady", "ContainerRuntimeReady", "KernelReady", "NetworkingReady", "StorageReady", "GPUReady", "GPUHealthy", "GpuHealthy")
"""Types of conditions whose status False is a fault: those of EKS's node monitoring agent, and of GPUs. Another one's False may mean that nothing was set up."""
END_TAINTS = {
    "ToBeDeletedByClusterAutoscaler": "scale_down",
    "karpenter.sh/disrupted": "scale_down",
    "karpenter.sh/disruption": "scale_down",
    "aws-node-termination-handler/spot-itn": "spot_interruption",
    "aws-node-termination-handler/scheduled-maintenance": "maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination": "scale_down",
    "cloud.google.com/impending-node-termination": "node_termination",
}
"""Key of a taint that announces the end of the node → the reason."""
END_CONDITIONS = {"PreemptScheduled": "spot_interruption", "TerminateScheduled": "node_termination", "RebootScheduled": "maintenance", "RedeployScheduled": "maintenance"}
"""Type of a condition of AKS's node-problem-detector, True when Azure has announced it → the reason."""
VM_EVENT = "VMEventScheduled"
"""AKS's condition for all of these; which one, and when, is in its message: `Preempt Scheduled : Tue, 14 May 2024 12:57:00 GMT`."""
_VM_EVENT = re.compile(r"(Preempt|Terminate|Reboot|Redeploy) Scheduled\s*:\s*(.{10,40})")
POD_REASONS = {
    "PreemptionByScheduler": "preempted", "EvictionByEvictionAPI": "evicted", "DeletionByTaintManager": "evicted", "TerminationByKubelet": "evicted",
}  # fmt: skip
"""Reason of a pod's condition DisruptionTarget → ours. DeletionByPodGC is none: it clears away what a node that is gone has left."""
DISRUPTION = "DisruptionTarget"


class _Record(msgspec.Struct, frozen=True, rename="camel"):
    pass


class Taint(_Record, frozen=True, rename="camel"):
    """Of a node."""

    key: str
    value: str = ""
    effect: str = ""
    time_added: datetime | None = None


class Condition(_Record, frozen=True, rename="camel"):
    """Of a node or a pod."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Metadata(_Record, frozen=True, rename="camel"):
    """Of an object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    deletion_timestamp: datetime | None = None
    """Of a pod: the end of its grace period."""
    deletion_grace_period_seconds: int | None = None


class NodeSpec(_Record, frozen=True, rename="camel"):
    """What is wanted of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class Status(_Record, frozen=True, rename="camel"):
    """What is so."""

    conditions: tuple[Condition, ...] | None = None


class KubernetesNode(_Record, frozen=True, rename="camel"):
    """A node."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: Status = Status()


class KubernetesPod(_Record, frozen=True, rename="camel"):
    """A pod."""

    metadata: Metadata
    status: Status = Status()


class _PodList(_Record, frozen=True, rename="camel"):
    items: tuple[KubernetesPod, ...] | None = None


CORDON_BY, CORDON_REASON = "/cordon-by", "/cordon-reason"
CORDONS_TOLD = 4

_node_decoder, _pods_decoder = msgspec.json.Decoder(KubernetesNode), msgspec.json.Decoder(_PodList)


def node_in(body: bytes) -> KubernetesNode:
    """Raises ValueError."""
    return _node_decoder.decode(body)


def pods_in(body: bytes) -> tuple[KubernetesPod, ...]:
    """Raises ValueError."""
    return _pods_decoder.decode(body).items or ()


# --- what it means


def node_state_of(node: KubernetesNode, conditions: Sequence[str] = FAULT_CONDITIONS, taints: Sequence[str] = FAULT_TAINTS) -> NodeState:
    """`conditions`, `taints`: patterns of those that are faults."""
    found: dict[str, str] = {}
    if node.spec.unschedulable:
        found["unschedulable"] = _cordoned_by(node.metadata.labels or {})
    for condition in node.status.conditions or ():
        if condition.type == "Ready":
            if condition.status != "True":
                found["not_ready"] = f"{condition.reason}: {condition.message}"
        elif condition.type in GOOD_CONDITIONS:
            if condition.status == "False":
                found[condition.type] = f"{condition.reason}: {condition.message}"
        elif condition.status == "True" and _matches(condition.type, conditions) and not condition.type.endswith(GOOD_ENDINGS):
            found[condition.type] = f"{condition.reason}: {condition.message}"
    for taint in node.spec.taints or ():
        if _matches(taint.key, taints):
            found[taint.key] = taint.value
    reasons = [f"{state}: {reason}" if len(found) > 1 else reason for state, reason in found.items() if reason.strip(": ")]
    return NodeState(KUBERNETES, tuple(bounded(state) for state in found), bounded("; ".join(reasons)))


def _cordoned_by(labels: dict[str, str]) -> str:
    """NVSentinel's fault-quarantine writes labels …/cordon-by and …/cordon-reason; the prefix is configurable there.

    Whoever may label a node can write such labels under a prefix of their own: each is told with its prefix and its own reason, and hides none.
    """
    prefixes = sorted(key.removesuffix(CORDON_BY) for key, by in labels.items() if key.endswith(CORDON_BY) and by)
    told = [f"cordoned by {labels[prefix + CORDON_BY]}: {labels.get(prefix + CORDON_REASON, '')}" for prefix in prefixes]
    if len(told) < 2:
        return "".join(told)
    more = [f"and {len(told) - CORDONS_TOLD} more"] if len(told) > CORDONS_TOLD else []
    return ", ".join([*(f"{text} ({prefix})" for prefix, text in zip(prefixes[:CORDONS_TOLD], told, strict=False)), *more])


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def node_notices(node: KubernetesNode) -> list[PreemptionNotice]:
    """That the node itself is about to end."""
    subject = f"node {node.metadata.name}"
    found = [
        PreemptionNotice(KUBERNETES, subject, END_TAINTS[taint.key], _tainted_at(taint), detail=bounded(f"taint {taint.key}"))
        for taint in node.spec.taints or () if taint.key in END_TAINTS and (taint.key != "karpenter.sh/disruption" or taint.value == "disrupting")
    ]  # fmt: skip
    for condition in node.status.conditions or ():
        if condition.status == "True" and (reason := _announced(condition)):
            detail = bounded(f"condition {condition.type}: {condition.message}")
            found.append(PreemptionNotice(KUBERNETES, subject, reason, _seconds(condition.last_transition_time), _deadline_in(condition.message), detail))
    if node.metadata.deletion_timestamp is not None:
        found.append(PreemptionNotice(KUBERNETES, subject, "deleted", _seconds(node.metadata.deletion_timestamp), detail="deletionTimestamp of the node"))
    return list({(each.subject, each.reason): each for each in reversed(found)}.values())[::-1]


def _tainted_at(taint: Taint) -> float:
    """The cluster autoscaler writes the time as the value; `timeAdded` is set for NoExecute alone."""
    if taint.time_added is None and re.fullmatch(r"[0-9]{9,11}", taint.value) and taint.key == "ToBeDeletedByClusterAutoscaler":
        return float(taint.value)
    return _seconds(taint.time_added)


def _announced(condition: Condition) -> str:
    if condition.type in END_CONDITIONS:
        return END_CONDITIONS[condition.type]
    found = _VM_EVENT.search(condition.message) if condition.type == VM_EVENT else None
    return END_CONDITIONS[f"{found[1]}Scheduled"] if found else ""


def _deadline_in(message: str) -> float:
    found = _VM_EVENT.search(message)
    try:
        return _seconds(parsedate_to_datetime(found[2])) if found else math.nan
    except ValueError:
        return math.nan


def pod_notice(pod: KubernetesPod) -> PreemptionNotice | None:
    """That a pod is about to end, or was ended; None if it goes on, or has just been cleared away."""
    told = next((each for each in pod.status.conditions or () if each.type == DISRUPTION and each.status == "True"), None)
    reason = POD_REASONS.get(told.reason, "" if told.reason == "DeletionByPodGC" else "evicted") if told else "deleted"
    deadline = _seconds(pod.metadata.deletion_timestamp)
    if not reason or (told is None and math.isnan(deadline)):
        return None
    began = deadline - (pod.metadata.deletion_grace_period_seconds or 0)
    detail = f"{DISRUPTION}: {told.reason}: {told.message}" if told else "deletionTimestamp"
    subject = bounded(f"pod {pod.metadata.namespace}/{pod.metadata.name}")
    return PreemptionNotice(KUBERNETES, subject, reason, began if math.isfinite(began) else _seconds(told.last_transition_time if told else None), deadline, bounded(detail))


def _seconds(time: datetime | None) -> float:
    """Since 1970; NaN for none. A time without a zone is UTC."""
    return math.nan if time is None else (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
