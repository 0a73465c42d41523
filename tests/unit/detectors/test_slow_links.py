"""A slow link is found by the groups whose collectives take longer than those of others; told from who comes late, from more bytes, and from what slows all."""

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import pytest

from detectors import slow_links
from detectors.features.collective_groups import group_classes, place_of
from detectors.slow_links import SlowLinks
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Floats, Integers, Kind, Layout, Step
from fakes.compared_name import ComparedName
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import BEGAN, layout_of

MEAN_S, BANDWIDTH, BYTES = 0.010, 50e9, 2e9
ONSET = 60
Measured = dict[str, Floats]
Shape = Callable[[int, Measured, Layout], None]


def grid(replicas: int, stages: int, tensor: int = 1, ports: bool = False) -> Layout:
    """Tensor ranks share a node."""
    layout = layout_of(replicas * stages, tensor)
    places = tuple(
        msgspec.structs.replace(place, dp=rank // (stages * tensor), pp=rank // tensor % stages, tp=rank % tensor, port=f"{place.node}/mlx5_{rank % tensor}:1" if ports else "")
        for rank, place in enumerate(layout.placements)
    )
    return msgspec.structs.replace(layout, placements=places)


def frames(layout: Layout, *shapes: Shape, seconds: int = 120, roles: Sequence[str] = ("dp", "pp", "p2p"), seed: int = 0, own: Callable[[int, int], Floats] | None = None) -> Iterator[Frame]:
    """Ticks of a second; each fifth has what was measured, as NCCL Inspector's collector gives it."""
    rng, count = np.random.default_rng(seed), len(layout.placements)
    for tick in range(seconds):
        measured: Measured = {}
        for role in roles if tick % 5 == 0 else ():
            noise = np.exp(rng.normal(0.0, 0.05, count))
            measured |= {f"{role}_measured_mean_s": MEAN_S * noise, f"{role}_bus_bytes_per_s": BANDWIDTH / noise, f"{role}_measured_bytes_per_s": np.full(count, BYTES)}
        for shape in shapes if measured else ():
            shape(tick, measured, layout)
        busy = own(tick, count) if own is not None else np.full(count, 0.6)
        values = {"step_s": np.full(count, 1.0), "forward_s": busy, "communication_s": 1.0 - busy}
        time = BEGAN + tick
        step = Step(number=tick, epoch=layout.epoch, workers=layout.workers, end=time, values={name: np.asarray(each, np.float32) for name, each in values.items()})
        yield Frame(
            job=layout.job, number=tick + 1, generation=1, time=time, tick=True, steps=(step,), layout=layout, entities={Kind.WORKER: layout.workers},
            metrics={Kind.WORKER: {name: np.asarray(each, np.float32) for name, each in measured.items()}},
        )  # fmt: skip


def slow_at(worker: int, times: float = 2.0, roles: Sequence[str] = ("dp", "pp", "p2p"), begin: int = ONSET, end: int = 1 << 30) -> Shape:
    """A slow way out of one worker: whatever goes over it takes longer, for all that are in it."""

    def shape(tick: int, measured: Measured, layout: Layout) -> None:
        for role in roles if begin <= tick < end else ():
            for each in group_classes(layout):
                if each.role == role:
                    for members in each.members:
                        if worker in members and f"{role}_measured_mean_s" in measured:
                            lengthen(measured, role, members, times)

    return shape


def lengthen(measured: Measured, role: str, members: Floats, times: float) -> None:
    measured[f"{role}_measured_mean_s"][members] *= times
    measured[f"{role}_bus_bytes_per_s"][members] /= times


def without_bandwidth(tick: int, measured: Measured, layout: Layout) -> None:
    for name in measured:
        if name.endswith("bus_bytes_per_s"):
            measured[name][:] = np.nan


def told(found: list[Claim]) -> list[tuple[str, str, bool]]:
    return [(claim.kind, claim.entity.name, claim.active) for claim in found]


@pytest.mark.parametrize(("ports", "kind", "name"), [(True, Kind.LINK, "node-6/mlx5_0:1"), (False, Kind.NODE, "node-6")])
def test_fault_a_slow_link_is_named_where_the_groups_of_a_replica_and_of_a_stage_cross(ports: bool, kind: Kind, name: str) -> None:
    layout = grid(4, 4, ports=ports)
    found = [(frame.time - BEGAN, claim) for detector in [SlowLinks()] for frame in frames(layout, slow_at(6)) for claim in detector.update(frame)]
    time, claim = found[0]
    assert (claim.kind, claim.entity.kind, claim.entity.name, len(found)) == ("link.slow", kind, name, 1)
    assert time - ONSET <= 35.0
    assert claim.evidence[0].value == pytest.approx(0.02, rel=0.15)


def test_fault_a_node_whose_links_are_all_slow_is_named_as_the_node() -> None:
    layout = grid(4, 4, tensor=2, ports=True)
    found = claims_of(SlowLinks(), frames(layout, slow_at(12), slow_at(13)))
    assert [(claim.kind, claim.entity.kind, claim.entity.name) for claim in found if claim.active][-1] == ("link.slow", Kind.NODE, "node-6")


def test_fault_slow_tensor_groups_are_within_a_node() -> None:
    found = claims_of(SlowLinks(), frames(grid(2, 2, tensor=4), slow_at(5, roles=["tp"]), roles=["tp"]))
    assert told(found) == [("link.slow", "node-1", True)]


def test_where_only_one_pair_is_slow_both_ways_the_pair_is_told_and_no_node() -> None:
    found = claims_of(SlowLinks(), frames(grid(4, 2), slow_at(2, roles=["p2p"]), roles=["p2p"]))
    assert [(claim.kind, claim.entity.kind) for claim in found] == [("link.slow", Kind.JOB)]
    assert "node-2, node-3" in found[0].evidence[-1].text


def test_a_link_between_two_pairs_that_are_slow_is_that_of_the_node_in_both() -> None:
    found = claims_of(SlowLinks(), frames(grid(4, 3), slow_at(4, roles=["p2p"]), roles=["p2p"]))
    assert told(found) == [("link.slow", "node-4", True)]


def test_it_is_over_when_its_groups_are_as_fast_again_and_with_a_new_epoch() -> None:
    layout = grid(4, 4)
    assert told(claims_of(SlowLinks(), frames(layout, slow_at(6, end=100), seconds=160))) == [("link.slow", "node-6", True), ("link.slow", "node-6", False)]
    detector = SlowLinks()
    claims_of(detector, frames(layout, slow_at(6)))
    assert [claim.active for claim in claims_of(detector, [cut_frame(1.0, event("epoch.started", job(), 1.0, epoch=2))])] == [False]


def test_fault_a_slow_link_is_found_by_the_flight_recorders_bandwidth_where_nothing_else_measures() -> None:
    def by_ring(tick: int, measured: Measured, layout: Layout) -> None:
        for role in ("dp", "pp"):
            mean_s, bandwidth, _ = (measured.pop(f"{role}_{name}") for name in ("measured_mean_s", "bus_bytes_per_s", "measured_bytes_per_s"))
            measured |= {f"{role}_ring_bus_bandwidth_bytes_per_s": bandwidth, f"{role}_ring_mean_bytes": np.full(len(mean_s), 4e8)}

    found = claims_of(SlowLinks(), frames(grid(4, 4), slow_at(6), by_ring, roles=["dp", "pp"]))
    assert told(found) == [("link.slow", "node-6", True)]
    assert claims_of(SlowLinks(), frames(grid(4, 4), by_ring, roles=["dp", "pp"])) == []


def congested(seed: int) -> Shape:
    """A switch that is shared: of a third of all groups now these are slow, now those, near the limit."""
    rng = np.random.default_rng(seed)

    def shape(tick: int, measured: Measured, layout: Layout) -> None:
        for role in ("dp", "pp", "p2p") if tick >= ONSET else ():
            for each in group_classes(layout):
                for members in each.members[: max(1, len(each.members) // 3)] if each.role == role else ():
                    lengthen(measured, role, members, 1.35 if rng.random() < 0.9 else 1.0)

    return shape


def test_places_that_come_and_go_near_the_limit_are_told_a_few_times_and_as_one_finding() -> None:
    found = claims_of(SlowLinks(), frames(grid(8, 4), congested(5), seconds=1200, seed=2))
    assert 1 <= len(found) <= 6
    assert {(claim.entity, claim.active) for claim in found} == {(job(), True)}, "more nodes are no reason to take it back"


def test_another_place_is_told_once_it_was_seen_for_long_enough() -> None:
    layout = grid(4, 4)
    shapes = slow_at(6, end=200), slow_at(9, begin=200)
    found = [(frame.time - BEGAN, claim) for detector in [SlowLinks()] for frame in frames(layout, *shapes, seconds=400) for claim in detector.update(frame)]
    assert told([claim for _, claim in found]) == [("link.slow", "node-6", True), ("link.slow", "node-6", False), ("link.slow", "node-9", True)]
    assert found[-1][0] <= 300.0


def read_by_ring(every: int) -> Shape:
    """The flight recorder's bandwidth is told each time, and the ring read so seldom."""
    newest: Measured = {}

    def shape(tick: int, measured: Measured, layout: Layout) -> None:
        for role in ("dp", "pp"):
            mean_s, bandwidth, _ = (measured.pop(f"{role}_{name}") for name in ("measured_mean_s", "bus_bytes_per_s", "measured_bytes_per_s"))
            if tick % every == 0 or f"{role}_ring_mean_bytes" not in newest:
                newest.update({f"{role}_ring_bus_bandwidth_bytes_per_s": bandwidth, f"{role}_ring_mean_bytes": np.full(len(mean_s), 4e8)})
        rounded = np.float64(1.0 + 1e-6 * (tick % 2))  # sums of a second are divided anew each second
        measured |= {name: values * rounded for name, values in newest.items()}

    return shape


def test_twin_one_slow_reading_of_the_ring_that_is_told_again_and_again_is_one_look() -> None:
    for shape in (slow_at(6, end=200, begin=ONSET), lambda tick, measured, layout: lengthen(measured, "dp", np.arange(16), 2.0 if ONSET <= tick < 200 else 1.0)):
        assert claims_of(SlowLinks(), frames(grid(4, 4), shape, read_by_ring(150), roles=["dp", "pp"], seconds=900)) == []


def test_fault_a_link_that_is_slow_in_each_reading_of_the_ring_is_found_after_as_many_of_them() -> None:
    found = [(frame.time - BEGAN, claim) for detector in [SlowLinks()] for frame in frames(grid(4, 4), slow_at(6), read_by_ring(75), roles=["dp", "pp"], seconds=600) for claim in detector.update(frame)]
    assert [(claim.kind, claim.entity.name) for _, claim in found] == [("link.slow", "node-6")]
    assert found[0][0] == 75 * 5


# --- what they have in common


def place_by_search(layout: Layout, slow: Sequence[Integers], usual: Sequence[Integers]) -> tuple[str, frozenset[str]]:
    """By looking at each group for each node: the words of place_of, in the plainest way."""
    nodes = [place.node for place in layout.placements]
    of_group = lambda group: {nodes[index] for index in group.tolist()}  # noqa: E731
    across = [group for group in usual if len(of_group(group)) > 1]
    workers = set.intersection(*(set(group.tolist()) for group in slow)) - {index for group in across for index in group.tolist()}
    if len(slow) > 1 and len(workers) == 1:
        return "one", frozenset((nodes[workers.pop()],))
    common = set.intersection(*map(of_group, slow))
    bad, good = ({node: sum(node in of_group(group) for group in groups) for node in common} for groups in (slow, across))
    suspects = {node for node in common if len(common) == 1 or bad[node] >= 0.75 * (bad[node] + good[node])}
    return ("one", frozenset(suspects)) if len(suspects) == 1 else ("many", frozenset(suspects) or frozenset().union(*map(of_group, slow)))


@pytest.mark.parametrize("seed", range(60))
def test_what_slow_groups_have_in_common_is_what_a_search_of_all_of_them_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = grid(int(rng.integers(2, 5)), int(rng.integers(2, 5)), int(rng.integers(1, 4)))
    classes = [each.members for each in group_classes(layout) if each.role != "world"]
    odd = int(rng.integers(len(layout.placements)))
    is_slow = [(groups == odd).any(axis=1) ^ (rng.random(len(groups)) < 0.1) for groups in classes]
    slow, usual = ([groups[those if wanted else ~those] for groups, those in zip(classes, is_slow, strict=True)] for wanted in (True, False))
    if not any(len(each) for each in slow):
        return
    found = place_of(layout, slow, usual)
    assert ("many" if found.entity is None else "one", found.nodes) == place_by_search(layout, [group for each in slow for group in each], [group for each in usual for group in each])


def test_one_slow_rail_of_many_nodes_is_placed_without_looking_at_each_group_for_each_node() -> None:
    layout = grid(200, 1, 8)
    names = {place.node: ComparedName(place.node) for place in layout.placements}
    layout = msgspec.structs.replace(layout, placements=tuple(msgspec.structs.replace(place, node=names[place.node]) for place in layout.placements))
    rails = next(each.members for each in group_classes(layout) if each.role == "dp")
    ComparedName.comparisons = 0
    assert len(place_of(layout, [rails[:1]], [rails[1:]]).nodes) == 200
    assert ComparedName.comparisons < 10 * len(layout.placements)


def test_the_place_is_worked_out_again_only_when_other_groups_are_slow_or_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(slow_links, "place_of", lambda *given: (asked.append(1), place_of(*given))[1])
    found = claims_of(SlowLinks(), frames(grid(4, 4), slow_at(6), seconds=300))
    assert (len(found), len(asked) <= 2) == (1, True)


# --- innocent twins


def test_twin_a_member_that_comes_late_makes_everybodys_collective_long_and_no_link_slow() -> None:
    def late(tick: int, measured: Measured, layout: Layout) -> None:
        """Who is late waits for nobody: its own collectives take their usual time."""
        if tick >= ONSET and "dp_measured_mean_s" in measured:
            members = next(each for each in group_classes(layout) if each.role == "dp").members[2]
            waiting = members[members != 6]
            lengthen(measured, "dp", waiting, 3.0)

    for shapes in ((late,), (late, without_bandwidth)):
        assert claims_of(SlowLinks(), frames(grid(4, 4), *shapes, roles=["dp"])) == []


def test_twin_of_a_group_of_which_not_all_are_measured_nothing_is_said() -> None:
    def unmeasured(tick: int, measured: Measured, layout: Layout) -> None:
        for values in measured.values():
            values[6] = np.nan

    assert claims_of(SlowLinks(), frames(grid(4, 4), slow_at(6, roles=["dp"]), unmeasured, roles=["dp"])) == []


def test_twin_members_that_come_late_in_turn_wait_for_one_another() -> None:
    def unequal(tick: int, count: int) -> Floats:
        """The workers of stage 2 compute now longer, now shorter."""
        own = np.full(count, 0.4, np.float32)
        own[2::4] += np.roll([0.3, 0.0, 0.1, 0.0], tick).astype(np.float32)
        return own

    stage = slow_at(2, roles=["dp"])
    assert claims_of(SlowLinks(), frames(grid(4, 4), stage, roles=["dp"], own=unequal)) == []
    assert told(claims_of(SlowLinks(), frames(grid(4, 4), stage, roles=["dp"])))[0][0] == "link.slow", "the same without being unequal is a slow link"


def test_twin_larger_messages_take_longer() -> None:
    def larger(tick: int, measured: Measured, layout: Layout) -> None:
        members = next(each for each in group_classes(layout) if each.role == "dp").members[2]
        measured["dp_measured_mean_s"][members] *= 3.0
        measured["dp_measured_bytes_per_s"][members] *= 3.0

    for shapes in ((larger,), (larger, without_bandwidth)):
        assert claims_of(SlowLinks(), frames(grid(4, 4), *shapes, roles=["dp"])) == []


def test_twin_smaller_groups_are_not_compared_with_larger_ones() -> None:
    layout = grid(4, 3)
    places = tuple(place for place in layout.placements if place.dp < 2 or place.pp != 1)  # the middle stage has two replicas, the others four
    found = claims_of(SlowLinks(), frames(msgspec.structs.replace(layout, placements=places), slow_at(1, roles=["dp"], begin=0), roles=["dp"]))
    assert found == []


def test_twin_all_groups_slow_together_are_the_jobs_communication_and_no_link() -> None:
    def all_slow(tick: int, measured: Measured, layout: Layout) -> None:
        if tick >= ONSET:
            lengthen(measured, "dp", np.arange(len(layout.placements)), 2.0)

    found = claims_of(SlowLinks(), frames(grid(4, 4), all_slow, roles=["dp"]))
    assert told(found) == [("communication.slow", job().name, True)]
    assert found[0].evidence[0].value == pytest.approx(0.02, rel=0.15)


def test_one_group_alone_is_compared_with_its_own_past_and_accuses_nobody() -> None:
    found = claims_of(SlowLinks(), frames(layout_of(8, 1), slow_at(3, roles=["dp"], end=100), roles=["dp"], seconds=160))
    assert told(found) == [("communication.slow", job().name, True), ("communication.slow", job().name, False)]


def test_twin_larger_messages_than_before_at_the_same_bandwidth_are_no_slow_communication() -> None:
    def larger(tick: int, measured: Measured, layout: Layout) -> None:
        if tick >= ONSET:
            measured["dp_measured_mean_s"] *= 3.0
            measured["dp_measured_bytes_per_s"] *= 3.0

    assert claims_of(SlowLinks(), frames(layout_of(8, 1), larger, roles=["dp"])) == []


def test_healthy_groups_are_never_slow_in_seven_hours_of_noise() -> None:
    """Five seeded runs of 5,000 s, 16 workers in 4 classes of groups, whose measured times vary by 5 %: no claim."""
    for seed in range(5):
        assert claims_of(SlowLinks(), frames(grid(4, 4), seconds=5000, seed=seed)) == []
