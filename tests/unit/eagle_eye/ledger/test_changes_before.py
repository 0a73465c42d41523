"""What is said of changes before an incident."""

from collections.abc import Sequence

import msgspec

from eagle_eye.changes import KEPT_S, ObservedChange
from eagle_eye.ledger import IncidentRecord, JobOwner, Ledger
from eagle_eye.ledger.changes_before import changes_before
from eagle_eye.types import Culprit, Entity, IncidentState, Kind, Layout, NodePlace, RankPlacement
from fakes.sample_values import JOB, an_incident

NOW, HOUR = 1_700_000_000.0, 3600.0
NODES = ("node-a", "node-b", "node-c")


def change(node: str, ago: float, what: str = "nvidia driver", *, gap: float = 600.0, after: str = "550.2") -> ObservedChange:
    return ObservedChange(entity=Entity(kind=Kind.NODE, name=node), job=JOB, what=what, before="535.1", after=after, known=NOW - ago - gap, seen=NOW - ago)


def of_job(run: str, ago: float, name: str = "tenant/gpt") -> ObservedChange:
    return ObservedChange(entity=Entity(kind=Kind.JOB, name=name), job=f"{name}/{run}", what="command", before="--lr 3", after="--lr 6", known=NOW - 2 * ago, seen=NOW - ago)


def runs(ledger: Ledger, nodes: Sequence[str] = NODES) -> None:
    placements = tuple(RankPlacement(worker=f"run1/{node}/0", node=node, rank=rank, local_rank=0, gpu=f"GPU-{node}") for rank, node in enumerate(nodes))
    places = {node: NodePlace(switch="leaf-1" if node != "node-c" else "leaf-2") for node in nodes}
    layout = Layout(job=JOB, epoch=1, time=NOW, coordinator=nodes[0], launchers=dict.fromkeys(nodes, ""), placements=placements, places=places)
    assert ledger.save_job(JOB, layout, "", "", 3)


def accusing(ledger: Ledger, kind: Kind | None = None, name: str = "") -> IncidentRecord:
    culprits = (Culprit(entity=Entity(kind=kind, name=name), confidence=0.9),) if kind is not None else ()
    ledger.save_incident(an_incident(id=f"incident-{name}", culprits=culprits, since=NOW, time=NOW), IncidentState.OPEN)
    record = ledger.incident_record(f"incident-{name}")
    assert record is not None
    return record


def test_the_same_change_on_several_nodes_of_the_job_is_one_sentence_where_nobody_is_accused(ledger: Ledger) -> None:
    runs(ledger)
    ledger.save_changes([*(change(node, 3 * HOUR) for node in NODES), change("node-b", HOUR / 2, "kernel"), change("stranger", HOUR)])
    assert changes_before(ledger, accusing(ledger)) == (
        "node-b: kernel 535.1 → 550.2, 30m before",
        "3 nodes (node-a, node-b, node-c): nvidia driver 535.1 → 550.2, 3h before",
    )


def test_where_somebody_is_accused_only_their_nodes_count(ledger: Ledger) -> None:
    runs(ledger)
    ledger.save_changes([change(node, 3 * HOUR) for node in NODES])
    two = ("2 nodes (node-a, node-b): nvidia driver 535.1 → 550.2, 3h before",)
    one = ("node-b: nvidia driver 535.1 → 550.2, 3h before",)
    for kind, name, said in (
        (Kind.WORKER, "run1/node-b/0", one), (Kind.GPU, "GPU-node-b", one), (Kind.NODE, "node-b", one), (Kind.LINK, "node-b/mlx5_0", one), (Kind.SWITCH, "leaf-1", two),
    ):  # fmt: skip
        assert changes_before(ledger, accusing(ledger, kind, name)) == said, name


def test_a_change_on_exactly_the_accused_nodes_says_so(ledger: Ledger) -> None:
    runs(ledger)
    ledger.save_changes([change("node-a", HOUR / 5, gap=60.0), change("node-b", HOUR / 5, gap=60.0)])
    assert changes_before(ledger, accusing(ledger, Kind.SWITCH, "leaf-1")) == (
        "2 nodes (node-a, node-b): nvidia driver 535.1 → 550.2, 12m before; on exactly the accused nodes, and not on the other of the job",
    )
    assert changes_before(ledger, accusing(ledger, Kind.NODE, "node-a")) == ("node-a: nvidia driver 535.1 → 550.2, 12m before",), "of another node, too"


def test_twin_the_same_on_another_node_or_after_the_incident_began_says_nothing_of_the_accused(ledger: Ledger) -> None:
    runs(ledger)
    from_elsewhere = msgspec.structs.replace(change("node-c", HOUR), before="530.0")
    ledger.save_changes([change("node-a", HOUR), from_elsewhere, change("node-b", -300.0, "kernel")])
    assert changes_before(ledger, accusing(ledger, Kind.NODE, "node-a")) == ("node-a: nvidia driver 535.1 → 550.2, 1h before",)
    assert changes_before(ledger, accusing(ledger, Kind.NODE, "node-b")) == ("node-b: kernel 535.1 → 550.2, seen 5m after it began",)


def test_how_a_run_was_started_is_shown_also_with_later_runs_and_not_of_another_job(ledger: Ledger) -> None:
    ledger.save_changes([of_job("run0", 5 * HOUR), of_job("run2", -60.0), of_job("run1", HOUR, "tenant/bert")])
    assert changes_before(ledger, accusing(ledger)) == ("job, run run0: command --lr 3 → --lr 6, 5h before",)


def test_when_it_was_made_is_as_exact_as_it_is_known(ledger: Ledger) -> None:
    runs(ledger)
    ledger.save_changes([change("node-a", HOUR, gap=2 * 24 * HOUR), change("node-b", -300.0, "kernel")])
    assert changes_before(ledger, accusing(ledger)) == (
        "node-b: kernel 535.1 → 550.2, seen 5m after it began",
        "node-a: nvidia driver 535.1 → 550.2, between 2d and 1h before",
    )


def test_the_nodes_of_a_job_that_is_over_are_those_of_its_owner_or_those_that_told_it(ledger: Ledger) -> None:
    ledger.save_changes([change("node-a", HOUR)])
    record = accusing(ledger)
    assert len(changes_before(ledger, record)) == 1
    ledger.save_job_owner(JOB, JobOwner(nodes=("node-b",)), NOW)
    assert changes_before(ledger, record) == (), "another node had told it"
    ledger.save_job_owner(JOB, JobOwner(nodes=("node-a", "node-b")), NOW)
    assert len(changes_before(ledger, record)) == 1


def test_twin_what_is_older_than_a_week_or_came_after_is_not_shown(ledger: Ledger) -> None:
    runs(ledger)
    ledger.save_changes([change("node-a", KEPT_S + HOUR), change("node-b", -1200.0), change("node-c", -500.0, gap=100.0)])
    assert changes_before(ledger, accusing(ledger)) == ()


def test_of_very_many_the_newest_are_shown_and_the_others_counted(ledger: Ledger) -> None:
    runs(ledger)
    ledger.save_changes([change("node-a", minute * 60.0, f"setting {minute}") for minute in range(1, 31)])
    said = changes_before(ledger, accusing(ledger))
    assert (len(said), said[0], said[-1]) == (21, "node-a: setting 1 535.1 → 550.2, 1m before", "10 more")
