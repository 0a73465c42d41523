"""What an incident says of how sure it is: corrected by counts of drills, rising with the score, and never a reason to act that was none before."""

import pytest

from detectors.diagnosis.confidence import AccusationCounts, accusation_counts, calibrated, confidence_of
from eagle_eye.types import Culprit, Entity, Kind

NODE = Entity(kind=Kind.NODE, name="node-0")
SCORES = (0.0, 0.45, 0.63, 0.9, 1.0)


def test_a_cause_that_was_never_drilled_keeps_its_score() -> None:
    assert [calibrated("a cause of tomorrow", score) for score in SCORES] == list(SCORES)


@pytest.mark.parametrize("counts", [AccusationCounts(0, 0), AccusationCounts(3, 1), AccusationCounts(400, 400), AccusationCounts(50, 0)])
def test_it_rises_with_the_score_and_is_never_certain(counts: AccusationCounts) -> None:
    stated = [confidence_of({"c": counts, "other": AccusationCounts(100, 97)}, "c", score) for score in SCORES]
    assert stated == sorted(stated)
    assert 0.0 < stated[0] < stated[-1] < 1.0


def test_many_drills_weigh_more_than_the_score_and_few_are_as_all() -> None:
    counts = {"bad": AccusationCounts(1000, 600), "good": AccusationCounts(1000, 990), "rare": AccusationCounts(1, 1)}
    assert confidence_of(counts, "bad", 1.0) == pytest.approx(0.6, abs=0.01)
    assert confidence_of(counts, "good", 0.45) == pytest.approx(0.99, abs=0.01)
    assert confidence_of(counts, "rare", 0.8) == pytest.approx((1.0 + 5.0 * 0.8) / 6.0, abs=0.01), "of all 0.795 were right"


def test_the_counts_of_this_release_are_counts() -> None:
    assert accusation_counts(), "no cause was drilled"
    assert all(0 <= each.right <= each.told for each in accusation_counts().values())


def test_what_evicts_rests_on_the_lower_of_both() -> None:
    assert Culprit(entity=NODE, confidence=0.97, score=0.45).proof == 0.45
    assert Culprit(entity=NODE, confidence=0.6, score=1.0).proof == 0.6
    assert Culprit(entity=NODE, confidence=0.9).proof == 0.9, "as one that was written before there was a score"
