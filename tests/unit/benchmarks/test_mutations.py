"""What the mutated records are made from: the events of today."""

from benchmarks.faults.mutations.sample_job import EVENTS
from eagle_eye.types.job_snapshot import SNAPSHOT_EVENTS


def test_each_event_that_a_snapshot_carries_is_made():
    assert set(EVENTS) >= SNAPSHOT_EVENTS
