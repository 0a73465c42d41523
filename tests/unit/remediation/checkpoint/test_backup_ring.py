"""Who keeps whose copies: never a node of the same failure domain where that is possible, and the fewest where it is not."""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_eye.types import Layout, NodePlace, RankPlacement
from remediation.checkpoint.backup_ring import BackupRing, NodeDomain


def named(count: int) -> list[str]:
    return [f"n{index:03}" for index in range(count)]


def layout_of(nodes: Sequence[str], places: Mapping[str, NodePlace], hosts: Mapping[str, str] | None = None) -> Layout:
    launchers = {node: f"{(hosts or {}).get(node, node)}:7000" for node in nodes}
    placements = tuple(RankPlacement(worker=f"r/{node}/0", node=node, rank=rank, local_rank=0) for rank, node in enumerate(nodes))
    return Layout(job="t/j/r", epoch=1, time=1.0, coordinator=nodes[0], launchers=launchers, placements=placements, places=dict(places))


def pairs(ring: BackupRing, nodes: Sequence[str], label: Mapping[str, str]) -> int:
    """Nodes that have one label with the one that keeps their copies."""
    return sum(label[node] == label[ring.neighbour_of(node)] for node in nodes)


def fewest(label: Mapping[str, str]) -> int:
    """Of any assignment in which each node keeps those of one other: who is outside of the largest domain takes one each."""
    return max(0, 2 * max(Counter(label.values()).values()) - len(label))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[str], dict[str, NodeDomain]]:
    """Racks of switches of hosts, or switches of racks; nodes come in any order."""
    nodes = named(draw(st.integers(2, 40)))
    hosts = [f"h{draw(st.integers(0, len(nodes)))}" for _ in nodes]
    inner = {host: f"i{draw(st.integers(0, 8))}" for host in sorted(set(hosts))}
    outer = {name: f"o{draw(st.integers(0, 3))}" for name in sorted(set(inner.values()))}
    swapped = draw(st.booleans())
    found = {}
    for node, host in zip(nodes, hosts, strict=True):
        switch, rack = (outer[inner[host]], inner[host]) if swapped else (inner[host], outer[inner[host]])
        found[node] = NodeDomain(rack, switch, host)
    return draw(st.permutations(nodes)), found


@given(clusters())
def test_the_fewest_copies_that_is_possible_lie_in_the_domain_of_their_node(cluster: tuple[list[str], dict[str, NodeDomain]]) -> None:
    nodes, domains = cluster
    ring = BackupRing(nodes, domains)
    assert sorted(map(ring.neighbour_of, nodes)) == sorted(nodes), "each keeps those of exactly one other"
    for node in nodes:
        assert ring.neighbour_of(node) != node
        assert ring.predecessor_of(ring.neighbour_of(node)) == node
        assert ring.search_order(node)[0] == ring.neighbour_of(node)
        assert sorted((node, *ring.search_order(node))) == sorted(nodes)
    for level in NodeDomain._fields:
        label = {node: getattr(domains[node], level) for node in nodes}
        assert pairs(ring, nodes, label) == fewest(label), level


@given(clusters(), st.data())
def test_a_node_that_is_lost_moves_the_copies_of_few_others(cluster: tuple[list[str], dict[str, NodeDomain]], data: st.DataObject) -> None:
    nodes, domains = cluster
    lost = data.draw(st.sampled_from(nodes))
    left = [node for node in nodes if node != lost]
    before, after = BackupRing(nodes, domains), BackupRing(left, domains)
    moved = sum(before.neighbour_of(node) != after.neighbour_of(node) for node in left)
    same_order = [node for node in before._nodes if node != lost] == list(after._nodes)  # the lost node may have been all that put a switch across two racks
    if before.shift == after.shift > 1 and same_order:
        assert moved <= before.shift


@given(st.integers(1, 12), st.data())
def test_two_nodes_in_three_may_have_no_label_and_the_others_are_kept_apart_all_the_same(count: int, data: st.DataObject) -> None:
    nodes = named(3 * count)
    domains = {node: NodeDomain(switch=data.draw(st.sampled_from(("a", "b")))) for node in nodes[:count]}
    ring = BackupRing(nodes, domains)
    assert not any(ring.shared(node) for node in nodes), "at most a third is behind one switch"


def test_nodes_of_any_layout_are_kept_by_the_next_one_where_nothing_is_known() -> None:
    nodes = ["n3", "n0", "n2", "n1"]
    ring = BackupRing.of(layout_of(nodes, {}))
    assert [ring.neighbour_of(node) for node in nodes] == ["n0", "n2", "n1", "n3"]
    assert ring.search_order("n2") == ("n1", "n3", "n0")


@pytest.mark.parametrize("places", [{"n1": NodePlace(switch="a")}, {node: NodePlace(switch=node, rack="r") for node in named(4)}, {node: NodePlace(switch="a") for node in named(4)}])
def test_labels_that_tell_nothing_apart_or_nothing_together_change_nothing(places: dict[str, NodePlace]) -> None:
    nodes = named(4)
    ring = BackupRing.of(layout_of(nodes, places))
    assert [ring.neighbour_of(node) for node in nodes] == [*nodes[1:], nodes[0]]


def test_the_two_nodes_of_one_switch_are_kept_at_the_other() -> None:
    nodes = named(4)
    ring = BackupRing.of(layout_of(nodes, {node: NodePlace(switch="a" if index < 2 else "b") for index, node in enumerate(nodes)}))
    assert {node: ring.neighbour_of(node) for node in nodes} == dict(zip(nodes, [nodes[2], nodes[3], nodes[0], nodes[1]], strict=True))


def test_launchers_on_one_machine_count_as_one_node() -> None:
    nodes = named(6)
    hosts = dict(zip(nodes, ("h0", "h0", "h1", "h1", "h2", "h2"), strict=True))
    ring = BackupRing.of(layout_of(nodes, {}, hosts))
    assert pairs(ring, nodes, hosts) == 0
    assert pairs(BackupRing(nodes, {}), nodes, hosts) == 3, "in the order of the layout"


def test_what_both_copies_share_is_named() -> None:
    nodes = named(3)
    places = {node: NodePlace(switch="leaf-1", rack=f"r{index}") for index, node in enumerate(nodes)}
    assert BackupRing.of(layout_of(nodes, places)).shared(nodes[0]) == "switch leaf-1"
    apart = {node: NodePlace(switch=f"leaf-{index}") for index, node in enumerate(nodes)}
    assert not BackupRing.of(layout_of(nodes, apart)).shared(nodes[0])
    assert BackupRing.of(layout_of(nodes, apart, dict.fromkeys(nodes, "127.0.0.1"))).shared(nodes[0]) == "host 127.0.0.1"


def test_every_launcher_finds_the_same_from_the_layout_that_it_was_sent() -> None:
    nodes = named(12)
    layout = layout_of(nodes, {node: NodePlace(switch=f"leaf-{index % 3}", rack=f"r{index % 3 // 2}") for index, node in enumerate(nodes)})
    sent = msgspec.convert(msgspec.to_builtins(layout), Layout)
    ours, theirs = BackupRing.of(layout), BackupRing.of(sent)
    assert [ours.search_order(node) for node in nodes] == [theirs.search_order(node) for node in nodes]


def test_a_node_alone_or_left_out_has_no_neighbour() -> None:
    alone, two = BackupRing(["a"], {}), BackupRing(["a", "b"], {})
    assert (alone.neighbour_of("a"), alone.predecessor_of("a"), two.neighbour_of("x"), two.predecessor_of("x")) == ("", "", "", "")
    assert alone.search_order("a") == ()
    assert two.search_order("x") == ("a", "b")
