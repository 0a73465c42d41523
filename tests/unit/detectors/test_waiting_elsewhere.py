"""Who waits in another place than the others, or seems to wait by its last mark alone."""

from dataclasses import dataclass

import msgspec
import numpy as np
import pytest

from detectors.features.worker_positions import ACTIVITIES
from detectors.stall import Stall
from eagle_eye.activity.hang_verdict import ActivityKind
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Event, Kind
from fakes.synthetic_events import claims_of, cut_frame, event, job, with_events, worker
from fakes.synthetic_frames import BEGAN, Draft, job_frames, layout_of

LAYOUT = layout_of(2, 2)
NOW = BEGAN + 6.0
RARE = "run/node-0/1"
ACCUSED = [("job.stalled", job().name, True), ("worker.stalled", RARE, True)]
PAUSED = [("job.paused", job().name, True)]
APART = ("a.py:1", "b.py:2", "a.py:1", "a.py:1")


def kinds(claims: list[Claim]) -> list[tuple[str, str, bool]]:
    return [(claim.kind, claim.entity.name, claim.active) for claim in claims]


def unmarked(*places: str, activity: str = "awaits peers", age_s: float = 2.0) -> list[Event]:
    """Stall events of workers without a ring: only what was seen of their processes is known; '' = a place that waits for nobody."""
    return [
        event("stall", worker(place.node, place.local_rank), NOW, epoch=1, state="S", age_s=age_s, step="", marks="", phase="",
              activity="awaits peers" if at else activity, place=at or "train.py:99 stuck", doing="stands")
        for place, at in zip(LAYOUT.placements, places, strict=True)
    ]  # fmt: skip


def marked(*activities: str, age_s: float = 2.0, step_marks: tuple[int, ...] = (120,) * 4, places: tuple[str, ...] = APART) -> list[Event]:
    """The same of workers whose last mark is `communication`, as far as their ring tells."""
    return [
        event("stall", worker(place.node, place.local_rank), NOW, epoch=1, state="S", age_s=age_s, step=12, marks=120, step_marks=marks,
              phase="communication", activity=activity, place=at, doing="does something")
        for place, activity, marks, at in zip(LAYOUT.placements, activities, step_marks, places, strict=True)
    ]  # fmt: skip


@dataclass
class Seen:
    """Agents look at the workers again and again; the looks at one of them are old."""

    stale: int = -1
    begin: int = 0
    known: bool = True

    def __call__(self, draft: Draft) -> None:
        draft.steps.clear()
        metrics = draft.metrics[Kind.WORKER]
        metrics["progress_age_s"][:] = draft.tick + 2
        for name in () if self.known else ("step", "marks", "step_marks", "phase"):
            metrics[name][:] = np.nan
        metrics["activity"][:] = ACTIVITIES.index(ActivityKind.AWAITS_PEERS)
        metrics["activity_seen_s"][:] = 0.6
        if self.stale >= 0:
            metrics["activity_seen_s"][self.stale] = draft.tick - self.begin + 1.5


def seconds(events: list[Event], count: int, **looks: int) -> list[Frame]:
    """What was told, in the first of so many ticks."""
    first, *rest = job_frames(2, 2, count, np.random.default_rng(0), faults=[Seen(**looks)])
    return [with_events(first, *events), *rest]


@pytest.mark.parametrize(("places", "activity", "named"), [
    (("a.py:1", "", "a.py:1", "a.py:1"), "hung", True),
    (("a.py:1", "", "a.py:1", "a.py:1"), "working", False),
    (("a.py:1", "", "a.py:1", "a.py:1"), "standing", False),
    (("a.py:1", "a.py:1", "a.py:1", "a.py:1"), "", False),
    (("a.py:1", "b.py:2", "a.py:1", "b.py:2"), "", False),
])  # fmt: skip
def test_a_hang_of_a_script_that_marks_nothing_is_found_from_its_processes(places: tuple[str, ...], activity: str, named: bool) -> None:
    claims = claims_of(Stall(), [cut_frame(NOW, *unmarked(*places, activity=activity), layout=LAYOUT)])
    assert kinds(claims) == (ACCUSED if named else PAUSED)


def test_fault_who_waits_elsewhere_is_named_once_two_more_rounds_of_looks_have_shown_it() -> None:
    detector = Stall()
    frames = seconds(unmarked(*APART), 5)
    told = [kinds(list(detector.update(frame))) for frame in frames]
    assert told[0] == PAUSED
    assert [("worker.stalled", RARE, True) in each for each in told] == [False, False, True, False, False]


@pytest.mark.parametrize("stale", range(4))
def test_twin_old_news_of_one_worker_beside_fresh_news_of_the_others_accuse_nobody(stale: int) -> None:
    """Rank 0 waits at B; the others were seen at A, and load by now."""
    assert kinds(claims_of(Stall(), seconds(unmarked(*APART), 20, stale=stale))) == PAUSED


def test_twin_who_moves_between_two_rounds_is_compared_anew() -> None:
    frames = seconds(unmarked(*APART), 4)
    frames[2] = with_events(frames[2], unmarked(*APART)[0])  # it was in another place meanwhile, and came back
    assert kinds(claims_of(Stall(), frames)) == PAUSED


def test_one_that_never_came_out_of_a_collective_that_the_others_left_is_named_in_time() -> None:
    """The GIL is held while the exchange goes on in the background; the others may be there for a moment only."""
    events = marked(*["awaits peers"] * 4, step_marks=(120, 119, 120, 120))
    assert kinds(claims_of(Stall(), seconds(events, 2))) == PAUSED
    claims = claims_of(Stall(), seconds(events, 3))
    assert kinds(claims)[-1] == ("worker.stalled", RARE, True)
    assert claims[-1].score < 0.9


@pytest.mark.parametrize(("activity", "age_s", "named"), [
    ("working", 590.0, False), ("working", 601.0, True), ("spinning", 590.0, False), ("traced", 590.0, False),
    ("standing", 29.0, False), ("standing", 31.0, True), ("hung", 2.0, True),
])  # fmt: skip
def test_what_a_worker_does_overrides_its_last_mark(activity: str, age_s: float, named: bool) -> None:
    """It evaluates after a mark of `communication`, and makes none for that; the others wait at a barrier. Nobody is elsewhere."""
    claims = claims_of(Stall(), seconds(marked("awaits peers", activity, "awaits peers", "awaits peers", age_s=age_s), 4))
    assert (("worker.stalled", RARE, True) in kinds(claims)) is named


def test_who_waits_for_its_gpu_waits_for_its_peers_if_its_last_mark_says_so() -> None:
    """NCCL's collectives run on the GPU: the innocents wait for it in `tensor.item()`, and one that hangs is elsewhere."""
    claims = claims_of(Stall(), seconds(marked("awaits gpu", "hung", "awaits gpu", "awaits gpu"), 4))
    assert ("worker.stalled", RARE, True) in kinds(claims)


@pytest.mark.parametrize("age_s", [2.0, 590.0])
@pytest.mark.parametrize("places", [APART, ("a.py:1",) * 4])
def test_twin_a_gpu_that_computes_is_waited_for_as_long_as_a_worker_that_does(age_s: float, places: tuple[str, ...]) -> None:
    """One evaluates on its GPU, or all do, after a mark of `communication`."""
    events = marked("awaits gpu", "awaits gpu", "awaits gpu", "awaits gpu", age_s=age_s, places=places)
    assert kinds(claims_of(Stall(), seconds(events, 4))) == PAUSED


def test_twin_those_that_stand_in_their_communication_are_not_accused_while_most_do() -> None:
    """Their library's way to wait is not known to us: it is not they who are elsewhere."""
    frames = [cut_frame(NOW, *marked("standing", "awaits peers", "standing", "standing", age_s=31.0), layout=LAYOUT)]
    assert [kind for kind, _, _ in kinds(claims_of(Stall(), frames))] == ["job.stalled"]


SAME = ("a.py:1",) * 4


@pytest.mark.parametrize(("activities", "places", "step_marks"), [
    (["exchanges"] * 4, SAME, (120,) * 4),
    (["awaits peers", "exchanges", "awaits peers", "awaits peers"], APART, (120,) * 4),
    (["exchanges", "awaits peers", "exchanges", "exchanges"], APART, (120,) * 4),
    (["awaits peers", "exchanges", "exchanges", "exchanges"], SAME, (121, 120, 120, 120)),
])  # fmt: skip
@pytest.mark.parametrize(("age_s", "paused"), [(2.0, True), (590.0, True), (601.0, False)])
def test_twin_nobody_who_waits_is_accused_while_a_collective_goes_on(activities: list[str], places: tuple[str, ...], step_marks: tuple[int, ...], age_s: float, paused: bool) -> None:
    """All in one slow broadcast; a few of them in one, or most; its root is through, and a step ahead."""
    claims = kinds(claims_of(Stall(), seconds(marked(*activities, age_s=age_s, places=places, step_marks=step_marks), 5)))
    assert (claims == PAUSED) is paused
    bare = [msgspec.structs.replace(each, attributes=each.attributes | {"step": "", "marks": "", "phase": ""}) for each in marked(*activities, age_s=age_s, places=places)]
    assert (kinds(claims_of(Stall(), seconds(bare, 5, known=False))) == PAUSED) is paused


def test_fault_and_twin_a_collective_that_went_on_is_waited_for_anew() -> None:
    """A gap between two broadcasts is no stall of all the time before."""
    detector, waits = Stall(), marked(*["awaits peers"] * 4, age_s=100.0, places=SAME)
    told = [kinds(list(detector.update(cut_frame(NOW, *marked(*["exchanges"] * 4, age_s=100.0, places=SAME), layout=LAYOUT))))]
    told += [kinds(list(detector.update(cut_frame(NOW + seconds, *waits, layout=LAYOUT)))) for seconds in (1.0, 29.0, 31.0)]
    assert told[:3] == [PAUSED, [], []]
    assert ("job.stalled", job().name, True) in told[3]


def gathered(number: int, seconds: float, *, pending: bool = True, gpu: str = "") -> list[Event]:
    """All wait in one line; number: of the collective in which they are, 0 where nothing is recorded."""
    more = {"collective": "all_gather", "collective_group": "0 default_pg", "collective_number": str(number), "collective_pending": str(int(pending))} if number else {}
    events = marked(*["awaits peers"] * 4, age_s=100.0 + seconds, places=SAME)
    return [msgspec.structs.replace(each, time=NOW + seconds, attributes=each.attributes | more | {"gpu": gpu}) for each in events]


@pytest.mark.parametrize(("in_layout", "gpu"), [(True, ""), (False, "1")])
@pytest.mark.parametrize(("then", "pending", "stalled"), [
    ((), True, True), ((0, 7), True, True), ((8,), True, False), ((), False, False),
])  # fmt: skip
def test_fault_and_twins_what_a_gpu_exchanges_is_seen_by_its_flight_recorder_alone(in_layout: bool, gpu: str, then: tuple[int, ...], pending: bool, stalled: bool) -> None:
    """A model's state is gathered over NVLink and RDMA, in one line of the script: hundreds of collectives, and not a byte that the kernel counts. A
    recorder that does not answer for once hides no hang, and one whose collectives are all over proves none."""
    detector, layout = Stall(), layout_of(2, 2, gpus=in_layout)
    claims = list(detector.update(cut_frame(NOW, *gathered(7, 0.0, pending=pending, gpu=gpu), layout=layout)))
    for at, number in enumerate(then):
        claims += detector.update(cut_frame(NOW + 20.0 + at, *gathered(number, 20.0 + at, pending=pending, gpu=gpu), layout=layout))
    assert ("job.stalled", job().name, True) not in kinds(claims), "one look is not enough, however long the last mark is ago"
    claims += detector.update(cut_frame(NOW + 31.0, layout=layout))
    assert (("job.stalled", job().name, True) in kinds(claims)) is stalled
    claims += detector.update(cut_frame(NOW + 501.0, layout=layout))
    assert ("job.stalled", job().name, True) in kinds(claims), "the patience is over"


def test_fault_and_twin_where_nothing_is_recorded_a_gpus_workers_are_waited_for_longer() -> None:
    for gpu, stalled in (("1", False), ("", True)):
        claims = kinds(list(Stall().update(cut_frame(NOW, *gathered(0, 0.0, gpu=gpu), layout=LAYOUT))))
        assert (("job.stalled", job().name, True) in claims) is stalled
    assert ("job.stalled", job().name, True) in kinds(list(Stall().update(cut_frame(NOW, *gathered(0, 501.0, gpu="1"), layout=LAYOUT))))


def test_the_collective_that_the_others_have_entered_is_told() -> None:
    events = marked("awaits peers", "hung", "awaits peers", "awaits peers")
    last = [(124, 1), (123, 0), (124, 1), (124, 1)]
    told = [
        msgspec.structs.replace(each, attributes=each.attributes | {"collective": "all_reduce", "collective_group": "0 default_pg", "collective_number": str(number), "collective_pending": str(pending)})
        for each, (number, pending) in zip(events, last, strict=True)
    ]  # fmt: skip
    claims = [claim for claim in claims_of(Stall(), seconds(told, 2)) if claim.kind == "worker.stalled"]
    assert f"3 others have entered all_reduce 124 of group 0 default_pg; worker {RARE} has not: its last is all_reduce 123" in [each.text for each in claims[0].evidence]
    twin = [claim for claim in claims_of(Stall(), seconds(events, 2)) if claim.kind == "worker.stalled"]
    assert not [each for each in twin[0].evidence if each.metric == "collective"], "nothing was recorded"
