"""Who is accused by what several workers show; what places tell of a fault on several nodes, and of a link."""

from collections.abc import Iterator

import msgspec
import pytest

from detectors.diagnosis import Diagnosis
from detectors.runtime.evaluator import Evaluator
from eagle_eye.frames import Frame
from eagle_eye.topology import merged, with_layout
from eagle_eye.types import Claim, Entity, Event, Evidence, Finding, Incident, Kind, Mark, NodePlace, Topology
from fakes.synthetic_events import worker
from fakes.synthetic_frames import BEGAN, JOB, layout_of

LAYOUT, FOUR_NODES = layout_of(2, 2), layout_of(4, 2)
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


def test_what_is_the_fault_is_the_first_line_of_evidence_though_its_victim_cried_before_it_was_seen() -> None:
    told = (("worker.exception", A, BEGAN, "connection refused or reset"), ("worker.exited", B, BEGAN + 0.02, "killed"))
    findings = [
        msgspec.structs.replace(raised(who, 0.0), kind=kind, since=since, evidence=(Evidence(text=status, event=who.name, status=status),))
        for kind, who, since, status in told
    ]
    (incident,) = Diagnosis().diagnose((), findings, Topology())
    assert (incident.cause, [line.text for line in incident.evidence]) == ("worker killed", ["killed", "connection refused or reset"])


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


# --- places


def placed(switches: str, racks: str = "") -> Topology:
    """A letter for each node: its switch, and its rack; - is not known."""
    racks = racks or "-" * len(switches)
    places = {f"node-{number}": NodePlace(switch=switch.strip("-"), rack=rack.strip("-")) for number, (switch, rack) in enumerate(zip(switches, racks, strict=True))}
    placements = tuple(msgspec.structs.replace(place, gpu=f"GPU-{place.rank}", port=f"{place.node}/mlx5_{place.local_rank}:1") for place in FOUR_NODES.placements)
    return with_layout(Topology(), msgspec.structs.replace(FOUR_NODES, places=places, placements=placements))


def finding(kind: str, entity: Entity) -> Finding:
    return Finding(
        id=f"{kind}-{entity.name}", revision=1, detector="d", digest="d", job=JOB, entity=entity, kind=kind, score=0.9, since=BEGAN, time=BEGAN,
        evidence=(Evidence(text=f"{entity.name}: {kind}", event="e"),), active=True,
    )  # fmt: skip


def told(findings: list[Finding], where: Topology) -> list[str]:
    """The lines that no finding holds."""
    (incident,) = Diagnosis().diagnose((), findings, where)
    own = {line.text for each in findings for line in each.evidence}
    return [line.text for line in incident.evidence if line.text not in own]


def lost(*numbers: int) -> list[Finding]:
    return [finding("node.lost", Entity(kind=Kind.NODE, name=f"node-{number}")) for number in numbers]


def down(*names: str) -> list[Finding]:
    return [finding("link.down", Entity(kind=Kind.LINK, name=name)) for name in names]


@pytest.mark.parametrize(
    ("switches", "racks", "line"),
    [
        ("aabb", "", "all 2 nodes are at switch a, where no other nodes of the job are"),
        ("aaab", "", "all 2 nodes are at switch a, where 1 other node of the job is"),
        ("abcd", "rrss", "all 2 nodes are at rack r, where no other nodes of the job are"),
        ("----", "rrss", "all 2 nodes are at rack r, where no other nodes of the job are"),
        ("aabb", "rrrr", "all 2 nodes are at switch a, where no other nodes of the job are"),
    ],
)
def test_fault_nodes_that_share_a_place_which_others_do_not(switches: str, racks: str, line: str) -> None:
    assert told(lost(0, 1), placed(switches, racks)) == [line]


@pytest.mark.parametrize(("switches", "racks"), [("aaaa", ""), ("abab", "rsrs"), ("a-bb", ""), ("aa--", ""), ("----", "")])
def test_twin_nodes_of_several_places_or_of_the_same_one_as_all_others_tell_nothing(switches: str, racks: str) -> None:
    assert told(lost(0, 1), placed(switches, racks)) == []


def test_twin_one_node_is_no_coincidence() -> None:
    assert told(lost(0), placed("aabb")) == []


def test_fault_a_link_that_is_down_is_told_with_the_workers_that_send_through_it() -> None:
    assert told(down("node-1/mlx5_0:1"), placed("aabb")) == ["worker run/node-1/0 sends through node-1/mlx5_0:1, the port next to its GPU"]
    assert told(down("node-0/mlx5_0:1", "node-1/mlx5_0:1"), placed("aabb"))[0] == "all 2 nodes are at switch a, where no other nodes of the job are"


def test_twin_a_link_that_no_gpu_is_next_to_is_nobodys() -> None:
    assert told(down("node-1/eth0"), placed("aabb")) == []


def test_twin_where_nothing_is_known_of_places_nothing_is_told() -> None:
    assert told(lost(0, 1), with_layout(Topology(), FOUR_NODES)) == []
    assert told(down("node-1/mlx5_0:1"), Topology()) == []


# --- places that agents tell while the job runs


class LosesNodes:
    """Claims the nodes that an event of the test names."""

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == "lose":
                yield Claim(entity=event.entity, kind="node.lost", score=0.9, since=frame.time, evidence=(Evidence(text=f"{event.entity.name} is lost", event=event.id),))


class Stream:
    """Records and ticks for an evaluator."""

    def __init__(self) -> None:
        self.evaluator, self.number = Evaluator([("loses", LosesNodes())], Diagnosis(), notify=lambda _name, text: pytest.fail(text)), 0
        self.evaluator.take(FOUR_NODES)

    def say(self, name: str, node: str, **attributes: str) -> None:
        self.number += 1
        entity = Entity(kind=Kind.NODE, name=node)
        self.evaluator.take(Event(name=name, job=JOB, entity=entity, time=BEGAN, node=node, incarnation="b", number=self.number, attributes=attributes))

    def tick(self) -> list[Incident]:
        self.number += 1
        evaluation = self.evaluator.take(Mark(mark="tick", generation=1, number=self.number, time=BEGAN + self.number))
        assert evaluation is not None
        return evaluation.incidents


def test_a_diagnosis_knows_what_an_agent_has_said_a_tick_before() -> None:
    stream = Stream()
    stream.say("lose", "node-3")
    assert len(stream.tick()) == 1, "with places that nobody knows"
    for node, switch in (("node-0", "leaf-1"), ("node-1", "leaf-1"), ("node-2", "leaf-2")):
        stream.say("node.place", node, switch=switch)
    stream.tick()
    for _ in range(20):
        stream.tick()
    for node in ("node-0", "node-1"):
        stream.say("lose", node)
    (incident,) = stream.tick()
    assert incident.evidence[0].text == "all 2 nodes are at switch leaf-1, where no other nodes of the job are"
