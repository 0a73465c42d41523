"""docs/wire.md names every field, event and finding that other programs will meet."""

import re
from pathlib import Path

import pytest

from eagle_eye import wire
from eagle_eye.stream import DEAD_LETTERS, FINDINGS, INCIDENTS, JOB_SNAPSHOTS, OBSERVATIONS, OUTCOMES
from eagle_eye.types import (
    Baseline,
    ConfigChange,
    Event,
    Evidence,
    Finding,
    Incident,
    JobSnapshot,
    Layout,
    Mark,
    NodePlace,
    Noun,
    RankPlacement,
    SchemaRecord,
    SnapshotStep,
)

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "wire.md").read_text()
CLAIMED = re.compile(r'kind="([a-z_]+\.[a-z_]+)"')


@pytest.mark.parametrize(
    "noun", [Event, Layout, NodePlace, RankPlacement, SchemaRecord, Baseline, ConfigChange, Mark, Finding, Evidence, Incident, JobSnapshot, SnapshotStep]
)
def test_every_field_of_a_record_is_named(noun: type[Noun]) -> None:
    for name in noun.__struct_fields__:
        assert name == "schema" or f"`{name}`" in TEXT, f"{noun.__name__}.{name}"


def test_the_header_of_a_batch_stands_there_in_its_order() -> None:
    assert f"[{', '.join(wire.BatchHeader.__struct_fields__)}]" in TEXT
    assert f"[{', '.join(wire.BlockShape.__struct_fields__)}]" in TEXT


def test_topics_and_kinds_of_records_are_named() -> None:
    for topic in (OBSERVATIONS, FINDINGS, INCIDENTS, OUTCOMES, JOB_SNAPSHOTS, DEAD_LETTERS):
        assert f"`{topic}`" in TEXT
    for code, noun in wire.OTHERS.items():
        assert f"{code} {noun.__name__}" in TEXT


def test_every_kind_of_finding_that_a_detector_claims_is_explained() -> None:
    claimed = {kind for path in (ROOT / "detectors").glob("*.py") for kind in CLAIMED.findall(path.read_text())}
    assert len(claimed) > 5
    assert [kind for kind in sorted(claimed) if f"`{kind}`" not in TEXT] == []
