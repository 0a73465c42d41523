"""A worker that differs from itself while others do not; programs that are not deterministic accuse nobody."""

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from detectors.diagnosis import Diagnosis
from detectors.features.gpu_of_worker import GpuOfWorker
from detectors.replica_digests import KIND as REPLICA
from detectors.step_replays import KIND, REMEMBERED, TOLD, VALUE, StepReplays
from eagle_eye.frames import Frame
from eagle_eye.topology import ON_GPU
from eagle_eye.types import Claim, Entity, Evidence, Finding, Kind, RankPlacement, Severity, Step
from fakes.diagnosis_chain import TOPOLOGY
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import JOB, layout_of

NAN = np.nan
EVERY = 512
Rows = list[list[float]]


def frames(rows: Rows, epoch: int = 1) -> Iterator[Frame]:
    layout = layout_of(2, len(rows[0]) // 2, gpus=True)
    for row, values in enumerate(rows):
        number = EVERY * (row + 1)
        step = Step(number=number, epoch=epoch, workers=layout.workers, end=float(number), values={VALUE: np.array(values, np.float32)})
        plain = Step(number=number + 1, epoch=epoch, workers=layout.workers, end=number + 1.0, values={"loss": np.ones(len(values), np.float32)})
        yield Frame(job=JOB, number=row + 1, generation=1, time=float(number), tick=True, steps=(step, plain), layout=layout)


def claims(rows: Rows) -> list[Claim]:
    return claims_of(StepReplays(), frames(rows))


def test_fault_of_two_replicas_the_one_that_differs_from_itself_twice_is_named_with_its_gpu() -> None:
    [claim] = claims([[0, 0], [0, 1], [NAN, 2], [0, 2]])
    assert (claim.kind, claim.entity.name, claim.active) == (KIND, "run/node-1/0", True)
    assert (claim.evidence[0].metric, claim.evidence[0].value) == ("differs_in_step", EVERY * 3 - 1.0)
    assert claim.evidence[1].metric.startswith(ON_GPU)


def test_fault_also_where_the_others_run_theirs_again_less_often() -> None:
    assert [claim.entity.name for claim in claims([[0, 0, 0, NAN], [NAN, 1, NAN, NAN], [NAN, 2, NAN, NAN]])] == ["run/node-0/1"]


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([[0, 0], [1, 1], [2, 2]], id="all of them: the program"),
        pytest.param([[0, 0, 0, 0], [1, 1, 0, 0], [2, 2, 0, 0]], id="half of them"),
        pytest.param([[0, 0], [0, 1], [0, 0], [0, 1]], id="once alone, and again later"),
        pytest.param([[NAN, 0], [NAN, 1], [NAN, 2]], id="nobody else runs one again"),
        pytest.param([[NAN, NAN]] * 3, id="none"),
    ],
)
def test_twin_nobody_is_named(rows: Rows) -> None:
    assert claims(rows) == []


def test_twin_it_is_taken_back_when_another_differs_from_itself_too() -> None:
    named, over = claims([[0, 0], [1, 0], [2, 0], [0, 1], [2, 2]])
    assert (named.active, over.active, over.entity) == (True, False, named.entity)
    assert "not deterministic any more" in over.evidence[-1].text


def once(*places: int) -> Rows:
    """Each of these differs from itself once, one after the other."""
    return [[float(place == each) for place in range(4)] for each in places]


def test_fault_is_still_seen_after_each_worker_has_differed_once_over_months() -> None:
    quiet: Rows = [[0.0] * 4] * (REMEMBERED + 1)
    rows = [row for place in range(4) for row in (*once(place), *quiet)]
    assert [claim.entity.name for claim in claims([*rows, [0, 0, 1, 0], [0, 0, 2, 0]])] == ["run/node-1/0"]


def test_twin_differences_that_come_soon_after_one_another_are_the_programs() -> None:
    apart: Rows = [[0.0] * 4] * (REMEMBERED // 2)
    assert claims([*once(0), *apart, *once(1), [0, 0, 1, 0], [0, 0, 2, 0]]) == []


def test_of_very_many_at_once_some_are_named() -> None:
    many, others = [1.0] * 100, [0.0] * 400
    assert len(claims([[0.0] * 500, many + others, [2.0] * 100 + others, [2.0] * 100 + others])) == TOLD


def test_the_layout_is_searched_once_however_many_workers_are_told_of() -> None:
    class Counted(tuple[RankPlacement, ...]):
        walks = 0

        def __iter__(self) -> Iterator[RankPlacement]:
            Counted.walks += 1
            return super().__iter__()

    layout = layout_of(2, 4, gpus=True)
    layout, gpus = msgspec.structs.replace(layout, placements=Counted(layout.placements)), GpuOfWorker()
    Counted.walks = 0
    lines = [line for place in range(8) for line in gpus.evidence(f"run/node-{place // 4}/{place % 4}", layout)]
    assert (len(lines), Counted.walks) == (8, 1)
    assert list(gpus.evidence("run/node-0/0", None)) == []
    assert len(list(gpus.evidence("run/node-0/0", layout_of(2, 4, gpus=True)))) == 1, "another layout"


def test_it_is_over_with_the_epoch() -> None:
    detector = StepReplays()
    claims_of(detector, frames([[0, 1], [0, 2]]))
    [over] = claims_of(detector, [cut_frame(9999.0, event("epoch.started", job(), 9999.0, epoch=2))])
    assert not over.active
    assert claims_of(detector, frames([[0, 0], [0, 2]])) == [], "steps of an epoch that is over"
    assert claims_of(detector, frames([[NAN, NAN], [NAN, 2]], epoch=2)) == [], "what others had shown is of the epoch before"


def test_two_replicas_that_differ_and_one_that_differs_from_itself_are_one_incident_which_names_it() -> None:
    [claim] = claims([[0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 2, 0]])

    def finding(name: str, kind: str, entity: Entity, since: float, evidence: tuple[Evidence, ...]) -> Finding:
        return Finding(id=name, revision=1, detector="x", digest="x", job=JOB, entity=entity, kind=kind, score=0.9, since=since, time=2000.0, evidence=evidence, active=True)

    apart = finding("1", REPLICA, job(), 700.0, (Evidence(text="they are no more the same"),))
    itself = finding("2", KIND, claim.entity, claim.since, claim.evidence)
    [incident] = Diagnosis().diagnose((), [apart, itself], TOPOLOGY)
    assert (incident.cause, incident.severity) == ("silent corruption", Severity.SEV3)
    assert [(each.entity.kind, each.entity.name) for each in incident.culprits] == [(Kind.WORKER, "run/node-1/0")]
