"""Replicas that held the same parameters, of which one does so no more."""

from collections.abc import Iterator

import numpy as np
import pytest

from detectors.diagnosis import Diagnosis
from detectors.replica_digests import GRADIENTS, KIND, OF_GRADIENTS, TOLD, VALUE, ReplicaDigests
from eagle_eye.frames import Frame
from eagle_eye.topology import ON_GPU
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


def frames(digests: Doubles, epoch: int = 1, gradients: Doubles | None = None) -> Iterator[Frame]:
    """A tick for each step with a digest, and one for a step without any behind it."""
    layout = layout_of(2, digests.shape[1] // 2, gpus=True)
    workers = layout.workers
    for row, values in enumerate(digests):
        number = EVERY * (row + 1) - 1
        plain = Step(number=number + 1, epoch=epoch, workers=workers, end=number + 1.0, values={"loss": np.ones(len(values), np.float32)})
        of_gradients = {} if gradients is None else {OF_GRADIENTS: gradients[row].astype(np.float32)}
        step = Step(number=number, epoch=epoch, workers=workers, end=float(number), values={VALUE: values.astype(np.float32), **of_gradients})
        yield Frame(job=JOB, number=number + 1, generation=1, time=float(number), tick=True, steps=(step, plain), layout=layout)


def claims(digests: Doubles, gradients: Doubles | None = None) -> list[Claim]:
    return claims_of(ReplicaDigests(), frames(digests, gradients=gradients))


def of_gradients(claim: Claim) -> tuple[float | None, str]:
    [line] = [line for line in claim.evidence if line.metric == GRADIENTS]
    return line.value, line.text


def odd_from(row: int, places: list[int], workers: int = 4) -> Doubles:
    digests = healthy(workers)
    digests[row:, places] += 1.0
    return digests


def test_fault_gradients_that_differed_too_say_that_they_were_sent_or_read_wrongly() -> None:
    [claim] = claims(odd_from(10, [2]), odd_from(10, [2]))
    assert claim.entity.name == "run/node-1/0"
    value, text = of_gradients(claim)
    assert value == 1.0
    assert "in step 175 its gradients behind the exchange differed" in text


def test_fault_equal_gradients_say_that_the_optimizer_or_memory_changed_the_parameters_and_since_when() -> None:
    for gradients in (healthy(4), odd_from(10, [1]), odd_from(11, [2])):
        [claim] = claims(odd_from(10, [2]), gradients)
        value, text = of_gradients(claim)
        assert value == 0.0, "another worker's, or those of a later step, are not this one's"
        assert "by the optimizer or in memory, in that step or in one from 160 on" in text


def test_of_half_against_half_it_is_told_too_and_nothing_where_one_has_told_none() -> None:
    for gradients, expected in ((healthy(2), 0.0), (odd_from(10, [1], 2), 1.0)):
        [claim] = claims(odd_from(10, [0], 2), gradients)
        assert (claim.entity, of_gradients(claim)[0]) == (job(), expected)
    missing = healthy(4)
    missing[10, 1] = np.nan
    [claim] = claims(odd_from(10, [2]), missing)
    assert [line for line in claim.evidence if line.metric == GRADIENTS] == []


@pytest.mark.parametrize("places", [[2], [0, 1, 2, 3]])
def test_twin_gradients_that_differ_while_the_parameters_behind_them_agree_accuse_nobody(places: list[int]) -> None:
    """Of updates that are averaged later, for one, where the gradient of each is its own from some step on."""
    gradients = healthy(4)
    gradients[10:, places] = drawn((STEPS - 10, len(places)))
    assert claims(healthy(4), gradients) == []


def test_the_gpu_of_the_worker_is_told_so_that_its_history_is_known() -> None:
    [claim] = claims(odd_from(10, [2]))
    [line] = [line for line in claim.evidence if line.metric.startswith(ON_GPU)]
    assert line.metric.removeprefix(ON_GPU) in line.text
    [claim] = claims(odd_from(10, [0], 2))
    assert [line for line in claim.evidence if line.metric.startswith(ON_GPU)] == [], "of the job"


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


def test_fault_is_seen_too_when_another_worker_tells_no_more_digests() -> None:
    for quiet_from in (3, 9, 10, 11):
        digests = odd_from(10, [2], 8)
        digests[quiet_from:, 7] = np.nan
        assert {claim.entity.name for claim in claims(digests)} == {"run/node-0/2"}, quiet_from


def seldom(digests: Doubles, place: int, every: int) -> Doubles:
    """A worker whose interval is so many times the others'."""
    digests[[row for row in range(len(digests)) if (row + 1) % every], place] = np.nan
    return digests


def test_fault_of_a_worker_that_tells_seldom_is_seen_at_its_own_interval_and_delays_no_other_ones() -> None:
    [claim] = claims(seldom(odd_from(11, [2]), 2, every=2))
    assert (claim.entity.name, claim.evidence[0].value) == ("run/node-1/0", 160.0)
    [claim] = claims(seldom(odd_from(10, [0]), 2, every=2))
    assert (claim.entity.name, claim.since) == ("run/node-0/0", 16 * 11 - 1)


def test_twin_a_worker_that_tells_seldom_is_compared_at_the_steps_at_which_both_told() -> None:
    for every in (2, 4):
        assert claims(seldom(healthy(4), 2, every)) == []
        assert claims(seldom(healthy(2), 1, every)) == []


def test_twin_who_averages_now_and_then_is_not_judged_by_the_steps_between_which_it_meets() -> None:
    """From some step on they are equal at every other digest alone; at twice the interval they would have parted for good."""
    digests = healthy(6, shards=3)
    digests[:, :4] = digests[:, :1]
    digests[7::2, :4] = drawn((len(digests[7::2]), 4))
    assert claims(digests) == []
    assert claims(seldom(seldom(digests, 4, 2), 5, 2)) == [], "what other ones are judged by is not theirs"


def test_a_worker_that_loses_one_digest_is_judged_all_the_same() -> None:
    digests = odd_from(10, [2])
    digests[8, 1] = np.nan
    assert {claim.entity.name for claim in claims(digests)} == {"run/node-1/0"}


def test_of_very_many_that_part_at_once_some_are_named_and_told_how_many_there_are() -> None:
    detector, digests = ReplicaDigests(), odd_from(10, list(range(100)), 256)
    found = claims_of(detector, frames(digests))
    assert len(found) == TOLD
    assert any("so it is with 100 of these replicas at once, of which 64 are named" in line.text for line in found[0].evidence)


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
