"""A node whose Slurm is a program of the test and whose API server listens on loopback: what each job is told, and what a scheduler that fails costs."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from collectors.agent.job_directory import LocalJob
from collectors.scheduler import SchedulerCollector
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event, Kind
from fakes.exporter import http_page
from fakes.kubernetes_api import JSON, FakeKubernetesApi

NOW = 1795590260.0
UID = "0a1b2c3d-0000-1111-2222-0123456789ab"
IN_POD = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-ff.scope\n"
RUNNING = "JobId=7 JobName=gpt\n   JobState=RUNNING Reason=None\n   StartTime=2026-11-25T07:03:43 EndTime=2026-11-26T07:03:43\n"
PREEMPTED = RUNNING.replace("11-26T07:03:43", "11-25T07:04:35") + "   PreemptEligibleTime=2026-11-25T07:03:43 PreemptTime=2026-11-25T07:04:15\n"
IDLE = "NodeName=n1 Arch=x86_64\n   State=IDLE ThreadsPerCore=1\n"
DRAIN = IDLE.replace("IDLE", "IDLE+DRAIN") + "   Reason=fan broken, password=hunter2 [root@2026-11-25T07:03:53]\n"


class Node:
    """The node n1.lab with one job, whose launcher is process 4711."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.clock = folder, FakeClock(now=NOW)
        (folder / "jobs").mkdir()
        (folder / "proc" / "4711").mkdir(parents=True)
        self.process("0::/\n")
        self.scontrol = folder / "scontrol"
        self.options = {"scontrol": "", "node": "n1", "run_dir": folder, "proc": folder / "proc", "clock": self.clock, "service_account": folder / "none"} | options
        self.collector = SchedulerCollector(**self.options)

    def process(self, cgroups: str, **environment: str) -> None:
        folder = self.folder / "proc" / "4711"
        (folder / "cgroup").write_text(cgroups)
        (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in environment.items()))

    def register(self, run: str = "r1", state: str = "running") -> None:
        body = msgspec.json.encode(LocalJob(job=f"t/gpt/{run}", run=run, node="n1", state=state, launcher_pid=4711, launcher_start_time=1))
        (self.folder / "new").write_bytes(body)
        (self.folder / "new").replace(self.folder / "jobs" / f"{run}.json")

    def slurm(self, job: str = RUNNING, node: str = IDLE) -> None:
        """What it prints from now on; each question is one line in `asked`."""
        (self.folder / "job").write_text(job)
        (self.folder / "node").write_text(node)
        self.script(f'echo "$@" $TZ >> {self.folder}/asked\ncat {self.folder}/$2')

    def script(self, text: str) -> None:
        new = self.folder / "new-scontrol"
        new.write_text(f"#!/bin/sh\n{text}\n")
        new.chmod(0o755)
        new.replace(self.scontrol)
        self.collector = SchedulerCollector(**(self.options | {"scontrol": str(self.scontrol), "kubernetes": False})) if not self.collector._slurm.present else self.collector

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()

    def look(self, seconds: float = 1.0) -> list[Event]:
        """As the agent looks, until nothing is awaited any more."""
        self.clock.advance(seconds)
        found, pause = self.collector.collect(), threading.Event()
        for _ in range(10_000):
            if not self.collector.waits:
                return found
            pause.wait(0.001)
            found += self.collector.collect()
        raise AssertionError("no answer")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetesApi]:
    made = FakeKubernetesApi(tmp_path / "account")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(made.port))
    yield made
    made.close()


@pytest.fixture
def pod_node(tmp_path: Path, api: FakeKubernetesApi) -> Node:
    made = Node(tmp_path, service_account=api.folder)
    made.process(IN_POD)
    made.register()
    return made


def told(events: list[Event]) -> list[tuple[str, str, dict[str, str]]]:
    return [(event.name, event.job, dict(event.attributes)) for event in events]


# --- Slurm


def test_a_job_is_told_which_job_of_slurm_it_is_once(node: Node) -> None:
    node.process("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", SLURM_NODEID="0", SLURM_JOB_END_TIME="1795590275")
    node.register()
    node.slurm()
    events = node.look()
    assert told(events) == [("scheduler.job", "t/gpt/r1", {"slurm_job": "7", "slurm_step": "0", "slurm_end": "1795590275"})]
    assert events[0].message == "t/gpt/r1 on n1 is Slurm job 7 step 0"
    assert node.look() == []
    assert sorted(node.asked) == ["show job 7 UTC0", "show node n1 UTC0"]


def test_fault_a_preemption_is_told_with_its_deadline_and_once(node: Node) -> None:
    node.process("0::/slurm/uid_0/job_7/step_0\n")
    node.register()
    node.slurm()
    node.look()
    node.slurm(PREEMPTED)
    (event,) = node.look(15.0)
    assert (event.name, event.entity.kind, event.entity.name, event.job) == ("scheduler.preemption", Kind.JOB, "t/gpt/r1", "t/gpt/r1")
    assert event.attributes == {
        "scheduler": "slurm", "subject": "Slurm job 7", "reason": "preempted", "began": "1795590255", "deadline": "1795590275", "detail": "PreemptTime is set",
    }  # fmt: skip
    assert node.look(15.0) == []
    node.slurm(RUNNING)
    assert [event.name for event in node.look(15.0)] == ["scheduler.preemption_withdrawn"]


def test_a_node_that_is_drained_is_told_without_secrets_to_each_job_and_when_it_is_back(node: Node) -> None:
    node.register()
    node.slurm(node=DRAIN)
    assert told(node.look()) == [("scheduler.node_state", "t/gpt/r1", {"scheduler": "slurm", "states": "drain", "reason": "fan broken, password=[redacted] [root@2026-11-25T07:03:53]"})]
    node.register("r2")
    assert [(name, job) for name, job, _ in told(node.look())] == [("scheduler.node_state", "t/gpt/r2")]
    node.slurm(node=IDLE)
    assert node.look(30.0) == [], "a node is asked about each minute"
    assert {(job, tuple(attributes)) for _, job, attributes in told(node.look(60.0))} == {("t/gpt/r1", ("scheduler",)), ("t/gpt/r2", ("scheduler",))}


def test_the_first_node_of_a_job_alone_asks_about_it_and_nobody_once_it_is_over(node: Node) -> None:
    node.process("0::/slurm/uid_0/job_7/step_0\n", SLURM_NODEID="3")
    node.register()
    node.slurm()
    node.look()
    assert node.asked == ["show node n1 UTC0"]
    node.register(state="stopped")
    node.look(600.0)
    assert node.asked == ["show node n1 UTC0"] * 2


@pytest.mark.parametrize(
    ("script", "why"),
    [("exit 1", "it ended with 1"), ("cat /dev/zero", "it gave more than"), ("echo torn", "no record"), ("printf '\\377\\376'", "no record"), ("true", "no record")],
)
def test_fault_a_slurm_that_gives_nothing_is_named_and_what_was_known_holds(node: Node, script: str, why: str) -> None:
    node.slurm(node=DRAIN)
    node.look()
    node.script(script)
    assert node.look(60.0) == []
    assert why in node.collector.problems[0]
    assert "drain" in node.collector.knows


def test_fault_a_slurm_that_never_answers_holds_nobody(node: Node) -> None:
    node.script("sleep 1000")
    assert node.collector.collect() == []
    node.clock.advance(10.0)
    assert node.collector.collect() == []
    assert node.collector.problems == ("scontrol show node n1: no answer within 10 s",)


def test_twin_without_any_scheduler_nothing_is_told_and_the_check_says_what_is_missing(node: Node) -> None:
    node.register()
    assert node.look() == []
    assert (node.collector.knows, node.collector.problems) == ("", ())
    assert node.collector.unavailable.startswith("no scheduler can be asked here; ")


# --- Kubernetes


def test_fault_a_pod_that_is_deleted_is_told_with_its_deadline(pod_node: Node, api: FakeKubernetesApi) -> None:
    api.pods = [{"metadata": {"name": "gpt-0", "namespace": "team", "uid": UID}, "status": {}}]
    assert told(pod_node.look()) == [("scheduler.job", "t/gpt/r1", {"pod_uid": UID})]
    assert api.asked == ["/api/v1/nodes/n1?resourceVersion=0", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1&resourceVersion=0"]
    told_by = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
    api.pods[0]["metadata"] |= {"deletionTimestamp": "2026-11-25T07:04:45Z", "deletionGracePeriodSeconds": 30}
    api.pods[0]["status"] = {"conditions": [told_by]}
    (event,) = pod_node.look(5.0)
    assert (event.name, event.entity.kind, event.entity.name) == ("scheduler.preemption", Kind.NODE, "n1")
    assert {name: event.attributes[name] for name in ("subject", "reason", "began", "deadline")} == {
        "subject": "pod team/gpt-0", "reason": "evicted", "began": "1795590255", "deadline": "1795590285",
    }  # fmt: skip
    api.pods = []
    assert pod_node.look(5.0) == [], "it is gone as it was told: nothing is withdrawn"


def test_a_taint_and_a_condition_are_told_and_withdrawn(pod_node: Node, api: FakeKubernetesApi) -> None:
    pod_node.look()
    api.node["spec"] = {"unschedulable": True, "taints": [{"key": "ToBeDeletedByClusterAutoscaler", "value": "1795590255", "effect": "NoSchedule"}]}
    api.condition("KernelDeadlock", "True", reason="DockerHung", message="blocked")
    events = pod_node.look(5.0)
    assert [(event.name, event.attributes.get("states", "")) for event in events] == [("scheduler.node_state", "unschedulable,KernelDeadlock"), ("scheduler.preemption", "")]
    api.node["spec"] = {}
    assert [event.name for event in pod_node.look(5.0)] == ["scheduler.node_state", "scheduler.preemption_withdrawn"]


def test_between_two_questions_nobody_is_asked_and_without_jobs_no_pods(tmp_path: Path, api: FakeKubernetesApi) -> None:
    node = Node(tmp_path, service_account=api.folder)
    node.look()
    node.look()
    assert api.asked == ["/api/v1/nodes/n1?resourceVersion=0"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http_page("{}", "403 Forbidden", JSON), "HTTP status 403; let its service account get nodes and list pods"),
        (http_page(json.dumps({"metadata": {"name": "n1"}, "spec": {"taints": "none"}}), headers=JSON), "Expected `array | null`, got `str`"),
        (http_page('{"metadata": {', headers=JSON), "truncated"),
        (http_page("[" * 100_000, headers=JSON), "the API server: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "more than 8 MiB"),
        (b"SSH-2.0\r\n", "no HTTP"),
    ],
    ids=["403", "wrong type", "torn", "deep", "huge", "another protocol"],
)
def test_fault_an_api_server_that_gives_nothing_is_told_once_and_asked_less_often(pod_node: Node, api: FakeKubernetesApi, answer: bytes, why: str) -> None:
    pod_node.look()
    api.instead = answer
    assert pod_node.look(5.0) == []
    (event,) = pod_node.look(5.0)
    assert (event.name, event.attributes["collector"]) == ("collector.failing", "scheduler kubernetes")
    assert why in event.attributes["reason"]
    asked = len(api.asked)
    assert pod_node.look(5.0) == []
    assert len(api.asked) == asked
    assert "kubernetes: takes work" in pod_node.collector.knows
    api.instead = None
    assert [event.name for event in pod_node.look(60.0)] == ["collector.recovered"]


def test_fault_an_api_server_that_never_answers_is_left_at_its_deadline(pod_node: Node, api: FakeKubernetesApi) -> None:
    def slow(connection: Any) -> None:
        for _ in range(100):
            pod_node.clock.advance(0.9)
            connection.sendall(b"H")

    api.instead = slow
    pod_node.look()
    assert pod_node.collector.problems == ("the API server: no whole page within 2 s",)


def test_fault_a_token_that_is_missing_or_no_file_is_named(pod_node: Node, api: FakeKubernetesApi) -> None:
    (api.folder / "ca.crt").unlink()
    pod_node.look()
    assert "No such file" in pod_node.collector.problems[0]
    (api.folder / "token").unlink()
    (api.folder / "token").mkdir()
    pod_node.look(60.0)
    assert "no regular file" in pod_node.collector.problems[0] or "Is a directory" in pod_node.collector.problems[0]
