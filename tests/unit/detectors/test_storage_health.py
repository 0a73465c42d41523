"""Mounts that hang, become read-only and get slow, as findings that inform."""

from collections.abc import Iterable, Sequence

import numpy as np

from detectors.diagnosis import Diagnosis
from detectors.storage_health import SETTLED_S, StorageHealth
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Entity, Event, Finding, Integers, Kind, Severity, Topology
from fakes.synthetic_events import claims_of, cut_frame, event
from fakes.synthetic_frames import BEGAN, JOB

MOUNT = "node-0/mnt/data"
NOTHING = float("nan")
HEALTHY = {"stat_s": NOTHING, "read_s": NOTHING, "write_s": NOTHING, "free_bytes": 5e9, "free_inodes": 1000.0, "read_only": 0.0, "hung": 0.0}


def mount(name: str = MOUNT) -> Entity:
    return Entity(kind=Kind.MOUNT, name=name)


def changed(name: str, time: float = BEGAN, where: str = MOUNT) -> Event:
    return event(name, mount(where), time, mount="/mnt/data", file_system="nfs4", source="server:/data")


def tick(time: float, names: Sequence[str] = (MOUNT,), moved: Integers | None = None, **values: float | Sequence[float]) -> Frame:
    metrics = {name: np.broadcast_to(np.array(value, np.float32), (len(names),)) for name, value in (HEALTHY | values).items()}
    columns = {Kind.MOUNT: np.arange(len(names)) if moved is None else moved}
    return Frame(job=JOB, number=round(time), generation=1, time=time, tick=True, entities={Kind.MOUNT: tuple(names)}, metrics={Kind.MOUNT: metrics}, moved=columns)


def measured(*seconds: float, metric: str = "read_s", began: float = BEGAN) -> list[Frame]:
    """A measurement every 10 s, and a reading without one in between."""
    frames = []
    for index, value in enumerate(seconds):
        frames += [tick(began + 10 * index, **{metric: value}), tick(began + 10 * index + 5)]
    return frames


def told(claims: Iterable[Claim]) -> list[tuple[str, bool]]:
    return [(claim.kind, claim.active) for claim in claims]


def test_fault_a_mount_that_hangs_is_claimed_until_it_answers() -> None:
    frames = [cut_frame(BEGAN, changed("storage.hung")), tick(BEGAN + 5, hung=1.0), tick(BEGAN + 60, hung=1.0), tick(BEGAN + 65)]
    claims = claims_of(StorageHealth(), frames)
    assert [(claim.kind, claim.active) for claim in (claims[0], claims[-1])] == [("storage.hung", True), ("storage.hung", False)]
    assert (claims[0].entity, claims[0].since) == (mount(), BEGAN)
    assert claims[-1].evidence[-1].text == "over: it answers again"


def test_what_else_is_known_of_a_mount_that_hangs_is_cited_once() -> None:
    seen = {"hung": 1.0, "timeouts_per_s": 0.4, "free_bytes": NOTHING, "free_inodes": NOTHING}
    frames = [cut_frame(BEGAN, changed("storage.hung")), *(tick(BEGAN + 5 * index, **seen) for index in range(1, 10))]
    claims = claims_of(StorageHealth(), frames)
    assert told(claims) == [("storage.hung", True)] * 2
    assert [line.metric for line in claims[-1].evidence] == ["", "timeouts_per_s"]


def test_a_reading_from_before_the_event_ends_no_claim() -> None:
    frames = [cut_frame(BEGAN, changed("storage.hung")), tick(BEGAN + SETTLED_S, free_bytes=NOTHING, free_inodes=NOTHING)]
    assert told(claims_of(StorageHealth(), frames)) == [("storage.hung", True)]


def test_fault_a_mount_that_becomes_read_only_is_claimed_until_it_can_be_written_to() -> None:
    frames = [cut_frame(BEGAN, changed("storage.read_only")), tick(BEGAN + 30, read_only=1.0), tick(BEGAN + 35)]
    claims = claims_of(StorageHealth(), frames)
    assert (claims[0].kind, claims[0].active, claims[-1].active) == ("storage.read_only", True, False)


def test_twin_a_mount_that_was_read_only_from_the_start_and_one_that_is_full_are_no_claim() -> None:
    assert claims_of(StorageHealth(), [tick(BEGAN + index, read_only=1.0, free_bytes=0.0, free_inodes=0.0) for index in range(100)]) == []


def test_fault_a_mount_that_gets_slow_is_claimed_until_it_is_as_fast_as_usual() -> None:
    claims = claims_of(StorageHealth(), measured(*[0.01] * 20, 2.0, 3.0, 4.0, 5.0, 0.01))
    assert told(claims) == [("storage.slow", True), ("storage.slow", False)]
    assert claims[0].since == BEGAN + 10 * 22
    proof = claims[0].evidence[0]
    assert (proof.metric, proof.value, proof.threshold) == ("read_s", 4.0, 1.0)
    assert "3 times in a row" in proof.text
    assert claims[-1].evidence[-1].text == "over: it answers as fast as it is used to"


def test_stat_and_write_are_judged_like_reads() -> None:
    for metric in ("stat_s", "write_s"):
        assert told(claims_of(StorageHealth(), measured(*[0.1] * 20, *[9.0] * 3, metric=metric))) == [("storage.slow", True)]


def test_twin_a_disk_that_is_always_slow_is_none() -> None:
    assert claims_of(StorageHealth(), measured(*[4.0, 5.0, 7.0] * 50)) == []


def test_twin_a_busy_moment_and_a_fast_disk_that_is_far_slower_and_still_fast_are_none() -> None:
    assert claims_of(StorageHealth(), measured(*[0.01] * 20, 9.0, 9.0, 0.01, 9.0, 9.0, 0.01)) == []
    assert claims_of(StorageHealth(), measured(*[0.001] * 20, *[0.9] * 50)) == []
    assert claims_of(StorageHealth(), measured(*[0.5] * 20, *[8.0] * 50)) == [], "16 times what it is used to"


def test_twin_what_a_mount_is_used_to_has_to_be_known_first() -> None:
    assert claims_of(StorageHealth(), measured(0.01, 0.01, *[5.0] * 4)) == []


def test_a_mount_that_stays_slow_does_not_become_used_to_it() -> None:
    assert told(claims_of(StorageHealth(), measured(*[0.01] * 20, *[5.0] * 500))) == [("storage.slow", True)]


def test_noise_leaves_what_it_is_used_to_near_the_median() -> None:
    noise = np.random.default_rng(3).lognormal(np.log(0.05), 1.0, 500)
    assert claims_of(StorageHealth(), measured(*noise)) == []
    assert told(claims_of(StorageHealth(), measured(*noise, *[9.0] * 3))) == [("storage.slow", True)]


def test_it_follows_mounts_that_move_to_other_columns() -> None:
    one, two = "node-0/a", "node-1/b"
    detector = StorageHealth()
    before = [tick(BEGAN + 10 * index, (one, two), read_s=[0.01, 5.0]) for index in range(20)]
    turned = tick(BEGAN + 200, (two, one), np.array([1, 0]), read_s=[5.0, 9.0])
    after = [tick(BEGAN + 210 + 10 * index, (two, one), read_s=[5.0, 9.0]) for index in range(3)]
    claims = claims_of(detector, [*before, turned, *after])
    assert [(claim.entity.name, claim.since) for claim in claims] == [(one, BEGAN + 220)]
    joined = tick(BEGAN + 250, (two, one, "node-2/c"), np.array([0, 1, -1]), read_s=[5.0, 9.0, 9.0])
    assert claims_of(detector, [joined]) == []


def test_a_mount_that_is_read_no_more_is_let_go_of() -> None:
    frames = [cut_frame(BEGAN, changed("storage.hung")), tick(BEGAN + 500, names=()), tick(BEGAN + 700, names=())]
    assert told(claims_of(StorageHealth(), frames)) == [("storage.hung", True), ("storage.hung", False)]


def test_a_flood_of_events_is_bounded() -> None:
    events = [changed("storage.hung", where=f"n{number}/mnt") for number in range(10_000)]
    assert len(claims_of(StorageHealth(), [cut_frame(BEGAN, *events)])) < 9000


def test_the_incidents_inform_and_accuse_nobody() -> None:
    seen = {
        "storage hung": [cut_frame(BEGAN, changed("storage.hung"))],
        "storage read-only": [cut_frame(BEGAN, changed("storage.read_only"))],
        "storage slow": measured(*[0.01] * 20, *[5.0] * 3),
    }
    for cause, frames in seen.items():
        (claim,) = claims_of(StorageHealth(), frames)
        finding = Finding(
            id="f", revision=1, detector="storage_health", digest="d", job=JOB, entity=claim.entity, kind=claim.kind, score=claim.score,
            since=claim.since, time=BEGAN, evidence=claim.evidence, active=True,
        )  # fmt: skip
        (incident,) = Diagnosis().diagnose((), [finding], Topology())
        assert (incident.cause, incident.severity, incident.culprits) == (cause, Severity.INFO, ())
