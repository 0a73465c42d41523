"""Replicas that held the same parameters, of which one does so no more."""

from collections.abc import Iterator

import numpy as np
import pytest

from detectors.diagnosis import Diagnosis
from detectors.replica_digests import KIND, VALUE, ReplicaDigests
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Doubles, Finding, Kind, Severity, Step
from fakes.diagnosis_chain import TOPOLOGY
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import JOB, layout_of

EVERY = 16
STEPS = 20
"""Digests."""


def healthy(workers: int, shards: int = 1) -> Doubles:
    """Digests × workers: every shard's are its own."""
    rng = np.random.default_rng(3)
    return np.repeat(rng.integers(0, 1 << 24, (STEPS, shards)), workers // shards, axis=1).astype(np.float64)


def drawn(shape: tuple[int, ...]) -> Doubles:
    return np.random.default_rng(4).integers(0, 1 << 24, shape).astype(np.float64)


def frames(digests: Doubles, epoch: int = 1) -> Iterator[Frame]:
    """A tick for each step with a digest, and one for a step without any behind it."""
    workers = layout_of(2, digests.shape[1] // 2).workers
    for row, values in enumerate(digests):
        number = EVERY * (row + 1) - 1
        plain = Step(number=number + 1, epoch=epoch, workers=workers, end=number + 1.0, values={"loss": np.ones(len(values), np.float32)})
        step = Step(number=number, epoch=epoch, workers=workers, end=float(number), values={VALUE: values.astype(np.float32)})
        yield Frame(job=JOB, number=number + 1, generation=1, time=float(number), tick=True, steps=(step, plain))


def claims(digests: Doubles) -> list[Claim]:
    return claims_of(ReplicaDigests(), frames(digests))


def test_fault_the_replica_whose_parameters_are_others_is_named_with_the_step_behind_the_last_equal_ones() -> None:
    digests = healthy(4)
    digests[10:, 2] = drawn((STEPS - 10,))
    [claim] = claims(digests)
    assert (claim.kind, claim.entity.name, claim.active) == (KIND, "run/node-1/0", True)
    assert claim.since == 16 * 11 - 1
    assert (claim.evidence[0].metric, claim.evidence[0].value) == ("differs_since_step", 160.0)
    assert "of the 3 others" in claim.evidence[0].text


def test_fault_of_several_shards_each_is_compared_with_its_own_replicas() -> None:
    digests = healthy(8, shards=2)
    digests[10:, [1, 6]] = drawn((STEPS - 10, 2))
    assert {claim.entity.name for claim in claims(digests)} == {"run/node-0/1", "run/node-1/2"}


@pytest.mark.parametrize("odd", [[0], [0, 1]])
def test_half_against_half_names_nobody(odd: list[int]) -> None:
    digests = healthy(2 * len(odd))
    digests[10:, odd] += 1.0
    [claim] = claims(digests)
    assert (claim.entity, claim.kind) == (job(), KIND)
    assert "it is not seen which of them are right" in claim.evidence[0].text


def test_it_is_over_with_the_epoch_and_what_is_loaded_then_is_compared_anew() -> None:
    detector, digests = ReplicaDigests(), healthy(4)
    digests[10:, 2] += 1.0
    claims_of(detector, frames(digests))
    [over] = claims_of(detector, [cut_frame(999.0, event("epoch.started", job(), 999.0, epoch=2))])
    assert not over.active
    assert claims_of(detector, frames(healthy(4), epoch=2)) == []
    assert claims_of(detector, frames(digests)) == [], "steps of an epoch that is over"


def test_twin_shards_of_which_no_two_are_equal() -> None:
    assert claims(drawn((STEPS, 8))) == []


def test_twin_replicas_that_never_were_equal_or_part_from_one_another_all_together() -> None:
    always = healthy(4)
    always[:, 2] = drawn((STEPS,))
    assert claims(always) == []
    local = healthy(4)
    local[5::2] = drawn((len(local[5::2]), 4))  # they meet at every other digest alone
    assert claims(local) == []


def test_twin_one_digest_that_differs_and_is_equal_again() -> None:
    digests = healthy(4)
    digests[10, 2] += 1.0
    assert claims(digests) == []


def test_twin_a_worker_that_tells_a_digest_less_often() -> None:
    digests = healthy(4)
    digests[1::2, 3] = np.nan
    assert claims(digests) == []
    digests[10:, 2] += 1.0
    assert {claim.entity.name for claim in claims(digests)} == {"run/node-1/0"}


def test_the_worker_is_named_and_nothing_is_restarted_for_it() -> None:
    digests = healthy(4)
    digests[10:, 2] += 1.0
    [claim] = claims(digests)
    finding = Finding(
        id="1", revision=1, detector="replica_digests", digest="x", job=JOB, entity=claim.entity, kind=claim.kind, score=claim.score, since=claim.since,
        time=claim.since + 1.0, evidence=claim.evidence, active=True,
    )  # fmt: skip
    [incident] = Diagnosis().diagnose((), [finding], TOPOLOGY)
    assert (incident.cause, incident.severity) == ("silent corruption", Severity.SEV3)
    assert [(each.entity.kind, each.entity.name) for each in incident.culprits] == [(Kind.WORKER, "run/node-1/0")]
