"""Who is accused by what several workers show."""

import msgspec

from detectors.diagnosis import Diagnosis
from eagle_eye.topology import merged, with_layout
from eagle_eye.types import Entity, Evidence, Finding, Incident, Topology
from fakes.synthetic_events import worker
from fakes.synthetic_frames import BEGAN, JOB, layout_of

LAYOUT = layout_of(2, 2)
A, B = worker("node-0", 0), worker("node-0", 1)


def raised(who: Entity, after_s: float) -> Finding:
    text = f"worker {who.name} raised ValueError: no tokens"
    return Finding(
        id=who.name, revision=1, detector="exceptions", digest="d", job=JOB, entity=who, kind="worker.exception", score=1.0, since=BEGAN + after_s,
        time=BEGAN + 1, evidence=(Evidence(text=text, event=who.name, status="other software error"),), active=True,
    )  # fmt: skip


def diagnosed(topology: Topology) -> Incident:
    """All workers of a node have raised the same; those of the other nodes may be about to."""
    (incident,) = Diagnosis().diagnose((), [raised(A, 0.0), raised(B, 0.01)], topology)
    return incident


def test_a_mistake_of_the_script_does_not_accuse_a_node_whose_workers_make_it_first() -> None:
    """Where no layout is known yet nobody can say that it is half of the job."""
    assert [culprit.entity for culprit in diagnosed(Topology()).culprits] == [A, B]


def test_workers_of_another_job_whose_run_has_the_same_name_are_no_workers_of_this_one() -> None:
    others = tuple(
        msgspec.structs.replace(place, worker=place.worker.replace("node", "other"), node=place.node.replace("node", "other")) for place in LAYOUT.placements
    )
    beside = msgspec.structs.replace(LAYOUT, job=f"{JOB.rpartition('/')[0]}-2/{JOB.rpartition('/')[2]}", placements=others)
    topology = merged([with_layout(Topology(), LAYOUT), with_layout(Topology(), beside)])
    assert diagnosed(topology).culprits == (), "half of the job"
