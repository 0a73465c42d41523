"""Where a fault is, where that is no worker, GPU or node: a mount, a file, a line of code, another job on the host; a line of evidence, and nobody is accused for it."""

import msgspec
import pytest

from detectors.diagnosis import Diagnosis
from detectors.exceptions import Exceptions
from eagle_eye.topology import merged, with_layout
from eagle_eye.types import Claim, Entity, Evidence, Finding, Incident, Kind, Layout, Topology
from fakes.synthetic_events import claims_of, cut_frame, event, node, worker
from fakes.synthetic_frames import BEGAN, JOB, layout_of

LAYOUT = layout_of(4, 2)
TOPOLOGY = with_layout(Topology(), LAYOUT)
SHARD = "/mnt/data/shard-0003.bin"


def mount(name: str, point: str = "/mnt/data") -> Entity:
    return Entity(kind=Kind.MOUNT, name=f"{name}{point}")


def finding(kind: str, entity: Entity, *, since: float = BEGAN) -> Finding:
    line = Evidence(text=f"{entity}: {kind}", event=f"{kind}-{entity.name}")
    return Finding(
        id=f"{kind}-{entity.name}", revision=1, detector="d", digest="d", job=JOB, entity=entity, kind=kind, score=0.9, since=since, time=since, evidence=(line,), active=True,
    )  # fmt: skip


def told(claim: Claim) -> Finding:
    return msgspec.structs.replace(finding(claim.kind, claim.entity, since=claim.since), evidence=claim.evidence, score=claim.score)


def raised(who: Entity, message: str = "bad value", frame: str = "train.py:87 in compute_loss", **more: object) -> Finding:
    """As the detector of exceptions writes it."""
    happened = event("exception", who, BEGAN, type="ValueError", message=message, epoch=1, step=12, frame=frame, **more)
    (claim,) = claims_of(Exceptions(), [cut_frame(BEGAN, happened)])
    return told(claim)


def refused(who: Entity, path: str = SHARD) -> Finding:
    return raised(who, "Input/output error", errno="EIO", path=path, free_bytes=7)


def diagnosed(*findings: Finding, topology: Topology = TOPOLOGY) -> Incident:
    return min(Diagnosis().diagnose((), list(findings), topology), key=lambda incident: incident.cause != "storage error")


def places(incident: Incident) -> list[str]:
    return [line.text.removeprefix("where: ") for line in incident.evidence if line.text.startswith("where: ")]


# --- a mount


def test_a_mount_that_hangs_on_several_nodes_is_named_and_no_node() -> None:
    incident = diagnosed(*(finding("storage.hung", mount(f"node-{number}")) for number in (0, 2)))
    assert places(incident) == ["mount /mnt/data, which hangs on 2 nodes (node-0, node-2): its server or what lies between, rather than these nodes"]
    assert incident.culprits == ()


def test_twin_one_on_one_node_and_two_mounts_on_two_nodes_have_nothing_in_common() -> None:
    assert places(diagnosed(finding("storage.hung", mount("node-0")))) == []
    assert places(diagnosed(finding("storage.slow", mount("node-0")), finding("storage.slow", mount("node-1", "/scratch")))) == []


def test_a_file_that_was_refused_is_on_the_mount_that_hangs_and_it_is_one_incident() -> None:
    broken = finding("storage.hung", mount("node-0"), since=BEGAN - 20.0)
    (incident,) = Diagnosis().diagnose((), [broken, refused(worker("node-0", 0))], TOPOLOGY)
    assert (incident.cause, incident.culprits) == ("storage error", ())
    assert places(incident) == [f"mount /mnt/data on node-0, which hangs and holds {SHARD}"]


@pytest.mark.parametrize("point", ["/mnt/dat", "/scratch"])
def test_twin_another_mount_does_not_hold_it(point: str) -> None:
    broken = finding("storage.hung", mount("node-0", point), since=BEGAN - 20.0)
    assert places(diagnosed(broken, refused(worker("node-0", 0)))) == []


# --- a file, a line of code


def test_a_file_that_several_workers_were_refused_is_named() -> None:
    assert f"the file {SHARD}, which 2 workers on 2 nodes were refused" in places(diagnosed(refused(worker("node-0", 0)), refused(worker("node-1", 0))))
    different = diagnosed(refused(worker("node-0", 0)), refused(worker("node-1", 0), "/mnt/data/shard-0004.bin"))
    assert not [text for text in places(different) if "file" in text]


def test_the_line_of_code_that_all_raise_at_is_named_where_no_machine_is() -> None:
    everyone = [worker(f"node-{number}", slot) for number in range(4) for slot in range(2)]
    incident = diagnosed(*(raised(who) for who in everyone))
    assert (places(incident), incident.culprits) == (["train.py:87 in compute_loss, in 8 workers on 4 nodes"], ())


def test_twin_workers_that_raise_at_several_lines_have_none_in_common() -> None:
    assert places(diagnosed(raised(worker("node-0", 0)), raised(worker("node-0", 1), frame="data.py:3 in read"))) == []
    alone = diagnosed(raised(worker("node-0", 0)))
    assert places(alone) == []
    assert "at train.py:87 in compute_loss" in [line.text for line in alone.evidence], "its own line says it"


# --- another job


def beside(job: str, run: str, where: str) -> Layout:
    places = tuple(msgspec.structs.replace(place, worker=f"{run}/{where}/{place.local_rank}", node=where) for place in LAYOUT.placements[:2])
    return msgspec.structs.replace(LAYOUT, job=job, placements=places)


def test_jobs_that_share_a_contended_host_are_named_those_of_other_tenants_are_counted() -> None:
    jobs = (beside("team/eval/run2", "run2", "node-1"), beside("others/bert/run3", "run3", "node-1"), beside("team/far/run4", "run4", "node-3"))
    topology = merged([TOPOLOGY, *(with_layout(Topology(), layout) for layout in jobs)])
    contended = finding("host.contended", node("node-1"))
    assert places(diagnosed(contended, topology=topology)) == ["other jobs have workers on node-1, or had a while ago: team/eval/run2, 1 of other tenants"]
    assert places(diagnosed(contended)) == [], "nobody else is there"
    assert places(diagnosed(finding("worker.slow", worker("node-1", 0)), topology=topology)) == [], "nothing says that the host is shared"
