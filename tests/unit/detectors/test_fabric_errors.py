"""Links that go down, slow down and count errors, as findings that inform."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pytest

from detectors.diagnosis import Diagnosis
from detectors.fabric_errors import SETTLED_S, FabricErrors
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Entity, Event, Finding, Kind, Severity, Topology
from fakes.synthetic_events import claims_of, cut_frame, event
from fakes.synthetic_frames import BEGAN, JOB

LINK = "node-0/mlx5_0:1"
HEALTHY = {"port_active": 1.0, "link_rate_bytes_per_s": 5e10, "rail": 0.0, "symbol_errors_per_s": 0.0, "receive_errors_per_s": 0.0, "recoveries_per_s": 0.0, "discards_per_s": 0.0}


def link(name: str = LINK) -> Entity:
    return Entity(kind=Kind.LINK, name=name)


def changed(name: str, time: float = BEGAN, where: str = LINK, **more: object) -> Event:
    told = {"device": "mlx5_0", "port": "1", "rail": "0", "rate_gbit_per_s": "", "former_rate_gbit_per_s": "400", "missed": "0"}
    return event(name, link(where), time, **(told | more))


def tick(time: float, names: Sequence[str] = (LINK,), **values: float) -> Frame:
    """Every link with the same numbers; NaN where `values` says so."""
    metrics = {name: np.full(len(names), value, np.float32) for name, value in (HEALTHY | values).items()}
    moved = {Kind.LINK: np.arange(len(names))}
    return Frame(job=JOB, number=round(time), generation=1, time=time, tick=True, entities={Kind.LINK: tuple(names)}, metrics={Kind.LINK: metrics}, moved=moved)


def readings(*errors: float, every: float = 5.0, metric: str = "symbol_errors_per_s") -> list[Frame]:
    """A reading every 5 s, and ticks without one in between."""
    frames = []
    for index, value in enumerate(errors):
        frames += [tick(BEGAN + index * every, **{metric: value}), tick(BEGAN + index * every + 1, **dict.fromkeys(HEALTHY, np.nan))]
    return frames


def told(claims: Iterable[Claim]) -> list[tuple[str, bool]]:
    return [(claim.kind, claim.active) for claim in claims]


def test_fault_a_link_that_goes_down_is_claimed_until_it_is_up() -> None:
    frames = [cut_frame(BEGAN, changed("link.down")), cut_frame(BEGAN + 30, changed("link.up", BEGAN + 30))]
    began, ended = claims_of(FabricErrors(), frames)
    assert (began.kind, began.entity, began.active, began.since) == ("link.down", link(), True, BEGAN)
    assert began.evidence[0].threshold == 400.0
    assert (ended.kind, ended.active) == ("link.down", False)


def test_twin_links_that_are_inactive_and_that_nobody_tells_of_are_no_claim() -> None:
    assert claims_of(FabricErrors(), [tick(BEGAN + index, port_active=0.0, link_rate_bytes_per_s=np.nan) for index in range(100)]) == []


def test_a_link_whose_return_nobody_told_is_over_once_its_port_is_read_as_active() -> None:
    down = cut_frame(BEGAN, changed("link.down"))
    early = claims_of(FabricErrors(), [down, tick(BEGAN + 1), tick(BEGAN + SETTLED_S)])
    assert told(early) == [("link.down", True)], "a reading from before the event says nothing"
    late = claims_of(FabricErrors(), [down, tick(BEGAN + SETTLED_S + 1, port_active=0.0), tick(BEGAN + SETTLED_S + 2)])
    assert told(late) == [("link.down", True), ("link.down", False)]


def test_fault_a_lower_rate_is_claimed_until_the_former_one_is_back() -> None:
    detector = FabricErrors()
    slower = changed("link.degraded", rate_gbit_per_s="200")
    slowest = changed("link.degraded", BEGAN + 5, rate_gbit_per_s="100")
    frames = [cut_frame(BEGAN, slower), cut_frame(BEGAN + 5, slowest), tick(BEGAN + 60, link_rate_bytes_per_s=2.5e10), tick(BEGAN + 61)]
    claims = claims_of(detector, frames)
    assert told(claims) == [("link.degraded", True), ("link.degraded", True), ("link.degraded", False)]
    assert [claim.evidence[0].value for claim in claims[:2]] == [200.0, 100.0]


def test_fault_a_link_that_counts_errors_all_the_time_is_claimed_until_it_is_quiet() -> None:
    claims = claims_of(FabricErrors(), readings(0, 5, 5, 5, 5, *[0] * 20))
    assert told(claims) == [("link.errors", True), ("link.errors", False)]
    assert claims[0].entity == link()
    assert "(rail 0)" in claims[0].evidence[0].text
    assert "5 symbol errors" in claims[0].evidence[0].text
    assert (claims[0].evidence[0].value, claims[0].evidence[0].threshold) == (5.0, 1.0)


def test_errors_of_several_kinds_count_together() -> None:
    frames = [tick(BEGAN + 5 * index, symbol_errors_per_s=0.5, recoveries_per_s=0.3, receive_errors_per_s=0.3) for index in range(3)]
    assert told(claims_of(FabricErrors(), frames)) == [("link.errors", True)]


def test_twin_a_burst_a_few_errors_an_hour_and_congestion_are_no_claim() -> None:
    assert claims_of(FabricErrors(), readings(0, 900, 900, 0, 900, 900, 0)) == []
    assert claims_of(FabricErrors(), readings(*[0.5] * 200)) == []
    assert claims_of(FabricErrors(), readings(*[1e6] * 50, metric="discards_per_s")) == []
    assert claims_of(FabricErrors(), [tick(BEGAN + 5 * index, send_waits_per_s=1e9, pauses_per_s=1e5, congestion_marks_per_s=1e5) for index in range(50)]) == []


def test_a_link_that_is_read_no_more_is_let_go_of() -> None:
    frames = [cut_frame(BEGAN, changed("link.down")), tick(BEGAN + 3000, names=()), tick(BEGAN + 3700, names=())]
    assert told(claims_of(FabricErrors(), frames)) == [("link.down", True), ("link.down", False)]


def test_links_of_a_whole_cluster_are_told_apart() -> None:
    names = [f"node-{index // 8}/mlx5_{index % 8}:1" for index in range(80_000)]
    values = np.zeros(len(names), np.float32)
    values[[17, 63_000]] = 50.0
    frames = [tick(BEGAN + 5 * index, names) for index in range(3)]
    for frame in frames:
        frame.metrics[Kind.LINK]["symbol_errors_per_s"][:] = values
    assert [claim.entity.name for claim in claims_of(FabricErrors(), frames)] == [names[17], names[63_000]]


def test_a_flood_of_events_is_bounded() -> None:
    events = [changed("link.down", where=f"n{number}/mlx5_0:1") for number in range(10_000)]
    assert len(claims_of(FabricErrors(), [cut_frame(BEGAN, *events)])) < 9000


def test_an_event_with_other_words_than_ours_is_judged_all_the_same() -> None:
    for attributes in ({"rate_gbit_per_s": "fast", "former_rate_gbit_per_s": "nan"}, {"former_rate_gbit_per_s": "-1"}):
        assert told(claims_of(FabricErrors(), [cut_frame(BEGAN, changed("link.degraded", **attributes)), tick(BEGAN + 60)])) == [("link.degraded", True)]
    at_a_node = event("link.down", Entity(kind=Kind.NODE, name="node-0"), BEGAN)
    assert claims_of(FabricErrors(), [cut_frame(BEGAN, at_a_node)]) == []


def test_the_incidents_inform_and_accuse_nobody() -> None:
    frames: Mapping[str, list[Frame]] = {
        "link down": [cut_frame(BEGAN, changed("link.down"))],
        "link degraded": [cut_frame(BEGAN, changed("link.degraded", rate_gbit_per_s="200"))],
        "link errors": readings(5, 5, 5),
    }
    for cause, seen in frames.items():
        (claim,) = claims_of(FabricErrors(), seen)
        finding = Finding(
            id="f", revision=1, detector="fabric_errors", digest="d", job=JOB, entity=claim.entity, kind=claim.kind, score=claim.score,
            since=claim.since, time=BEGAN, evidence=claim.evidence, active=True,
        )  # fmt: skip
        (incident,) = Diagnosis().diagnose((), [finding], Topology())
        assert (incident.cause, incident.severity, incident.culprits) == (cause, Severity.INFO, ())


def test_links_of_a_node_that_is_lost_are_part_of_that_incident() -> None:
    (claim,) = claims_of(FabricErrors(), [cut_frame(BEGAN, changed("link.down"))])
    shared = {"revision": 1, "digest": "d", "job": JOB, "score": 0.9, "since": BEGAN, "time": BEGAN, "evidence": claim.evidence, "active": True}
    lost = Finding(id="a", detector="liveness", entity=Entity(kind=Kind.NODE, name="node-0"), kind="node.lost", **shared)
    down = Finding(id="b", detector="fabric_errors", entity=claim.entity, kind=claim.kind, **shared)
    (incident,) = Diagnosis().diagnose((), [lost, down], Topology(nodes={"node-0": ""}))
    assert (incident.cause, set(incident.findings)) == ("node lost", {"a", "b"})


# --- beside other nodes

USUAL, HALF = 5e10, 2.5e10
"""400 and 200 Gbit/s."""
NAMES = tuple(f"node-{node}/mlx5_{port}:1" for node in range(5) for port in range(2))


def rates(number: int, slow: Mapping[str, float], names: Sequence[str] = NAMES, **more: float) -> Frame:
    frame = tick(BEGAN + 5 * number, names, **more)
    frame.metrics[Kind.LINK]["link_rate_bytes_per_s"][:] = [slow.get(name, USUAL) for name in names]
    return frame


def compared(slow: Mapping[str, float], count: int = 4, **more: float) -> list[Claim]:
    return claims_of(FabricErrors(), [rates(number, slow, **more) for number in range(count)])


def test_fault_a_port_that_has_come_up_slow_is_told_beside_the_same_port_of_other_nodes() -> None:
    (claim,) = compared({"node-2/mlx5_1:1": HALF})
    assert (claim.kind, claim.entity, claim.active) == ("link.degraded", link("node-2/mlx5_1:1"), True)
    assert (claim.evidence[0].value, claim.evidence[0].threshold) == pytest.approx((200.0, 400.0))


def test_it_is_over_once_it_runs_as_the_others_do() -> None:
    frames = [rates(number, {"node-2/mlx5_1:1": HALF} if number < 4 else {}) for number in range(8)]
    assert told(claims_of(FabricErrors(), frames)) == [("link.degraded", True), ("link.degraded", False)]


def test_twin_a_node_of_another_kind_a_port_of_another_rate_and_a_moment_are_no_slow_links() -> None:
    other_machine = {"node-2/mlx5_0:1": HALF, "node-2/mlx5_1:1": HALF}
    of_storage = {f"node-{node}/mlx5_1:1": HALF for node in range(5)}
    two_kinds = {f"node-{node}/mlx5_1:1": HALF for node in range(3)}
    for slow in (other_machine, of_storage, two_kinds):
        assert compared(slow) == []
    assert compared({"node-2/mlx5_1:1": HALF}, count=2) == []
    assert compared({"node-2/mlx5_1:1": HALF}, port_active=0.0) == []


def test_twin_of_three_nodes_nobody_knows_which_is_right() -> None:
    few = [name for name in NAMES if name < "node-3"]
    assert claims_of(FabricErrors(), [rates(number, {"node-2/mlx5_1:1": HALF}, few) for number in range(4)]) == []
