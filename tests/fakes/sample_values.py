"""Nouns with every field filled in, for tests that need any one of them."""

from typing import Any

import msgspec

from eagle_eye.types import (
    Culprit,
    Entity,
    Evidence,
    Finding,
    Incident,
    Kind,
    Layout,
    Plan,
    Progress,
    RankPlacement,
    Severity,
    Target,
)

JOB = "tenant/gpt/run1"
WORKER = Entity(kind=Kind.WORKER, name="run1/node-a/0")


def an_incident(revision: int = 1, **changes: Any) -> Incident:
    incident = Incident(
        id="incident-1",
        revision=revision,
        job=JOB,
        cause="worker killed",
        culprits=(Culprit(entity=WORKER, confidence=0.9),),
        severity=Severity.SEV2,
        findings=("finding-1",),
        evidence=(),
        since=100.0,
        time=101.0 + revision,
    )
    return msgspec.structs.replace(incident, **changes)


def a_finding(revision: int = 1, **changes: Any) -> Finding:
    finding = Finding(
        id="finding-1",
        revision=revision,
        detector="exits",
        digest="d",
        job=JOB,
        entity=WORKER,
        kind="worker.exited",
        score=1.0,
        since=100.0,
        time=100.5,
        evidence=(Evidence(text="killed by SIGKILL"),),
        active=True,
    )
    return msgspec.structs.replace(finding, **changes)


def a_plan(plan: str = "plan-1", **changes: Any) -> Plan:
    made = Plan(
        id=plan,
        incident="incident-1",
        action="restart_worker",
        targets=(Target(job=JOB, epoch=1, basis="b"),),
        made=103.0,
        expires=703.0,
        severity=Severity.SEV2,
        reason="the process is dead",
    )
    return msgspec.structs.replace(made, **changes)


def a_step(state: Any, time: float = 104.0, step: str = "restart") -> Progress:
    return Progress(step=step, state=state, time=time, detail="epoch 2")


def a_layout(epoch: int = 2, coordinator: str = "node-a", time: float = 50.0) -> Layout:
    place = RankPlacement(worker="run1/node-a/0", node=coordinator, rank=0, local_rank=0)
    launchers = {coordinator: "127.0.0.1:7001"}
    return Layout(job=JOB, epoch=epoch, time=time, coordinator=coordinator, launchers=launchers, placements=(place,))
