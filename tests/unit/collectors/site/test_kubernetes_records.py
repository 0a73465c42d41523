"""What the API server says of nodes and pods, and what it means."""

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.site.kubernetes_records import (
    KubernetesNode,
    KubernetesPod,
    node_in,
    node_notices,
    node_state_of,
    pod_notice,
    pods_in,
)
from fakes.kubernetes_api import READY

GONE = "2026-11-25T07:04:45Z"
GONE_S = 1795590285.0


def node(*conditions: dict[str, str], taints: list[dict[str, str]] | None = None, unschedulable: bool = False, **metadata: Any) -> KubernetesNode:
    body = {"metadata": {"name": "n1", **metadata}, "spec": {"unschedulable": unschedulable, "taints": taints}, "status": {"conditions": [READY, *conditions]}}
    return node_in(json.dumps(body).encode())


def condition(name: str, status: str = "True", **more: str) -> dict[str, str]:
    return {"type": name, "status": status, **more}


def pod(*conditions: dict[str, str], **metadata: Any) -> KubernetesPod:
    body = {"items": [{"metadata": {"name": "gpt-0", "namespace": "team", "uid": "u", **metadata}, "status": {"conditions": list(conditions)}}]}
    return pods_in(json.dumps(body).encode())[0]


@pytest.mark.parametrize(
    ("name", "reason", "message"),
    [
        ("KernelDeadlock", "DockerHung", "task docker:7 blocked for more than 120 seconds."),  # node-problem-detector
        ("ReadonlyFilesystem", "FilesystemIsReadOnly", "Remounting filesystem read-only"),
        ("GpuXidError", "GpuXidErrorIsNotHealthy", "ErrorCode:79 GPU:0 Recommended Action=RESTART_BM;"),  # NVSentinel
        ("SysLogsXIDError", "SysLogsXIDErrorIsNotHealthy", "ErrorCode:79"),
        ("FrequentKubeletRestart", "FrequentKubeletRestart", "restarted"),
    ],
)
def test_fault_a_condition_that_is_true_is_told_with_its_words(name: str, reason: str, message: str) -> None:
    state = node_state_of(node(condition(name, reason=reason, message=message)))
    assert (state.states, state.reason) == ((name,), f"{reason}: {message}")


def test_fault_a_good_condition_that_is_false_is_told_with_its_words() -> None:
    """As EKS's node monitoring agent sets them."""
    state = node_state_of(node(condition("AcceleratedHardwareReady", "False", reason="NvidiaXID79Error", message="GPU fell off the bus")))
    assert (state.states, state.reason) == (("AcceleratedHardwareReady",), "NvidiaXID79Error: GPU fell off the bus")
    twins = (condition("AcceleratedHardwareReady"), condition("StorageReady", "Unknown"), condition("InstallerReady", "False"))
    assert node_state_of(node(*twins)).states == ()


def test_twin_conditions_that_are_false_unknown_good_or_of_nobody_are_not() -> None:
    ordinary = (condition("KernelDeadlock", "False"), condition("GpuMemWatch", "Unknown"), condition("GPUReady"), condition("EtcdIsVoter"))
    assert node_state_of(node(*ordinary, taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])).states == ()
    assert node_state_of(node(condition("EtcdIsVoter")), ("Etcd*",)).states == ("EtcdIsVoter",)


def test_a_cordon_and_a_node_that_is_not_ready_are_told_with_who_did_it_and_why() -> None:
    labels = {"k8saas.nvidia.com/cordon-by": "NVSentinel", "k8saas.nvidia.com/cordon-reason": "GPU-fatal-error-ruleset"}
    taint = {"key": "nvidia.com/gpu-xid-error", "value": "true", "effect": "NoSchedule"}
    state = node_state_of(node(unschedulable=True, labels=labels, taints=[taint]))
    assert state.states == ("unschedulable", "nvidia.com/gpu-xid-error")
    assert state.reason.startswith("unschedulable: cordoned by NVSentinel: GPU-fatal-error-ruleset")
    assert "k8saas" not in state.reason, "of one alone it need not be told whose it is"
    body = {"metadata": {"name": "n1"}, "status": {"conditions": [{**READY, "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting"}]}}
    assert node_state_of(node_in(json.dumps(body).encode()))[1:] == (("not_ready",), "NodeStatusUnknown: Kubelet stopped posting")


def test_a_false_cordon_hides_no_real_one_and_lends_it_no_reason() -> None:
    real = {"k8saas.nvidia.com/cordon-by": "NVSentinel", "k8saas.nvidia.com/cordon-reason": "GPU-fatal-error-ruleset"}
    false = {"a.example/cordon-by": "nobody", "b.example/cordon-reason": "all is well"}
    reason = node_state_of(node(unschedulable=True, labels=false | real)).reason
    assert reason == "cordoned by nobody: (a.example), cordoned by NVSentinel: GPU-fatal-error-ruleset (k8saas.nvidia.com)"
    assert node_state_of(node(unschedulable=True, labels={"b.example/cordon-reason": "all is well"})).reason == ""
    many = {f"{number}.example/cordon-by": "nobody" for number in range(9)}
    assert node_state_of(node(unschedulable=True, labels=many)).reason.endswith("and 5 more")


@pytest.mark.parametrize(
    ("taint", "reason", "began"),
    [
        ({"key": "ToBeDeletedByClusterAutoscaler", "value": "1795590255", "effect": "NoSchedule"}, "scale_down", 1795590255.0),
        ({"key": "aws-node-termination-handler/spot-itn", "value": "event-1", "effect": "NoSchedule"}, "spot_interruption", math.nan),
        ({"key": "cloud.google.com/impending-node-termination", "effect": "NoExecute", "timeAdded": GONE}, "node_termination", GONE_S),
        ({"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}, "scale_down", math.nan),
    ],
)
def test_taints_announce_the_end_of_a_node(taint: dict[str, str], reason: str, began: float) -> None:
    (notice,) = node_notices(node(taints=[taint]))
    assert (notice.subject, notice.reason, math.isnan(notice.deadline)) == ("node n1", reason, True)
    assert notice.began == began or (math.isnan(notice.began) and math.isnan(began))


def test_azure_tells_which_event_and_when_in_a_message() -> None:
    told = condition("VMEventScheduled", reason="VMEventScheduled", message="Preempt Scheduled : Wed, 25 Nov 2026 07:04:45 GMT", lastTransitionTime="2026-11-25T07:04:15Z")
    (notice,) = node_notices(node(told))
    assert (notice.reason, notice.began, notice.deadline) == ("spot_interruption", GONE_S - 30.0, GONE_S)
    frozen = condition("VMEventScheduled", message="Freeze Scheduled : Wed, 25 Nov 2026 07:04:45 GMT")
    assert node_notices(node(frozen, condition("PreemptScheduled", "False"))) == []
    assert math.isnan(node_notices(node(condition("VMEventScheduled", message="Reboot Scheduled : some day or another")))[0].deadline)


def test_a_pod_that_is_deleted_has_its_grace_period_and_says_why() -> None:
    deleted = pod(deletionTimestamp=GONE, deletionGracePeriodSeconds=30)
    assert pod_notice(deleted)[:5] == ("kubernetes", "pod team/gpt-0", "deleted", GONE_S - 30.0, GONE_S)  # type: ignore[index]
    told = condition("DisruptionTarget", reason="PreemptionByScheduler", message="default-scheduler: preempting", lastTransitionTime="2026-11-25T07:04:15Z")
    assert pod_notice(pod(told, deletionTimestamp=GONE, deletionGracePeriodSeconds=30)).reason == "preempted"  # type: ignore[union-attr]
    early = pod_notice(pod(told))
    assert early is not None
    assert (early.began, math.isnan(early.deadline)) == (GONE_S - 30.0, True)


def test_twin_a_pod_that_goes_on_or_is_cleared_away_after_its_node_is_gone_was_not_preempted() -> None:
    assert pod_notice(pod()) is None
    assert pod_notice(pod(condition("DisruptionTarget", "False", reason="EvictionByEvictionAPI"))) is None
    assert pod_notice(pod(condition("DisruptionTarget", reason="DeletionByPodGC"), deletionTimestamp=GONE)) is None


@settings(max_examples=60, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
    st.sampled_from(["metadata", "spec", "status", "items", "name", "taints", "conditions", "key", "type", "deletionTimestamp", "labels"]), inner, max_size=4), max_leaves=12))  # fmt: skip
def test_whatever_the_answer_holds_it_is_read_or_refused(told: Any) -> None:
    body = json.dumps(told).encode()
    for read in (lambda: [node_state_of(node_in(body)), node_notices(node_in(body))], lambda: [pod_notice(each) for each in pods_in(body)]):
        with contextlib.suppress(ValueError):
            read()
