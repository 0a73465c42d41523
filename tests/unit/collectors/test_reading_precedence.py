"""What a collector of ours measures counts before what an exporter says, in batches and in the frames that are made of them."""

import math

import numpy as np

from collectors.agent.batch_builder import BatchBuilder
from collectors.agent.reading_precedence import RECENT_BATCHES
from eagle_eye.frames import Frame, FrameBuilder
from eagle_eye.types import Batch, Kind, Mark, Reading
from eagle_eye.wire import RecordReader, Schemas, encode

JOB = "team/gpt/r1"


def reading(source: str, values: dict[str, dict[str, float]], kind: Kind = Kind.GPU) -> Reading:
    """`values`: entity → name → value."""
    names = tuple(dict.fromkeys(name for row in values.values() for name in row))
    matrix = np.array([[row.get(name, math.nan) for name in names] for row in values.values()], np.float32)
    return Reading(source=source, kind=kind, entities=tuple(values), names=names, matrix=matrix, time=0.0)


NVML = reading("gpu", {"GPU-a": {"power_watts": 700.0, "memory_temperature_celsius": math.nan}})
DCGM = reading("scrape", {
    "GPU-a": {"power_watts": 650.0, "memory_temperature_celsius": 80.0, "sm_active_percent": 90.0},
    "GPU-b": {"power_watts": 300.0, "memory_temperature_celsius": 70.0, "sm_active_percent": 10.0},
})  # fmt: skip


class Path:
    """From the agent's batches to frames."""

    def __init__(self) -> None:
        self.batches = BatchBuilder(lambda _worker: JOB)
        self.frames, self.reader, self.number = FrameBuilder(JOB, Schemas()), RecordReader(), 0

    def frame(self, *readings: Reading) -> Frame:
        for each in readings:
            self.batches.add(each)
        blocks = self.batches.blocks(JOB)
        self.batches.clear()
        for block in blocks:
            self.frames.feed(self.reader.read(encode(self.batches.schemas.get(block.schema_id))))
        batch = Batch(node="n1", incarnation="i", job=JOB, number=self.number, time=float(self.number), blocks=blocks)
        self.frames.feed(self.reader.read(encode(batch)))
        self.number += 1
        return self.frames.tick(Mark(mark="tick", generation=1, number=self.number, time=float(self.number)))


def values(frame: Frame, kind: Kind = Kind.GPU) -> dict[str, dict[str, float]]:
    """Entity → name → value, of those that are there."""
    found: dict[str, dict[str, float]] = {entity: {} for entity in frame.entities[kind]}
    for name, column in frame.metrics[kind].items():
        for entity, value in zip(frame.entities[kind], column.tolist(), strict=True):
            if not math.isnan(value):
                found[entity][name] = value
    return found


def test_nvml_wins_in_whatever_order_the_two_come_and_what_dcgm_alone_knows_stays() -> None:
    for readings in ((NVML, DCGM), (DCGM, NVML)):
        assert values(Path().frame(*readings)) == {
            "GPU-a": {"power_watts": 700.0, "sm_active_percent": 90.0},
            "GPU-b": {"power_watts": 300.0, "memory_temperature_celsius": 70.0, "sm_active_percent": 10.0},
        }


def test_nvml_wins_also_in_a_second_in_which_it_says_nothing() -> None:
    path = Path()
    path.frame(NVML)
    assert values(path.frame(DCGM))["GPU-a"] == {"sm_active_percent": 90.0}


def test_fault_where_nvml_does_not_answer_any_more_the_exporters_numbers_count() -> None:
    path = Path()
    path.frame(NVML)
    for _ in range(RECENT_BATCHES):
        path.frame()
    assert values(path.frame(DCGM))["GPU-a"] == {"power_watts": 650.0, "memory_temperature_celsius": 80.0, "sm_active_percent": 90.0}


def test_an_exporter_that_is_alone_is_told_whole() -> None:
    assert values(Path().frame(DCGM))["GPU-a"] == {"power_watts": 650.0, "memory_temperature_celsius": 80.0, "sm_active_percent": 90.0}


def test_twin_the_same_metric_of_something_else_is_not_taken_away() -> None:
    node = reading("host", {"n1": {"load_1": 2.0}}, Kind.NODE)
    told = reading("scrape", {"n1": {"load_1": 9.0, "cpu_throttles_per_s": 1.0}}, Kind.NODE)
    switch = reading("own", {"n1": {"cpu_throttles_per_s": 0.0}}, Kind.SWITCH)
    assert values(Path().frame(node, switch, told, DCGM), Kind.NODE) == {"n1": {"load_1": 2.0, "cpu_throttles_per_s": 1.0}}


def test_workers_of_several_jobs_are_told_apart() -> None:
    batches = BatchBuilder(lambda worker: f"team/gpt/{worker[:2]}")
    batches.add(reading("training", {"r1/n1/0": {"cpu_percent": 1.0}, "r2/n1/0": {"cpu_percent": 2.0}}, Kind.WORKER))
    batches.add(reading("scrape", {"r1/n1/0": {"cpu_percent": 9.0, "hang_reported": 1.0}, "r2/n1/0": {"cpu_percent": 9.0, "hang_reported": 0.0}}, Kind.WORKER))
    for job in ("team/gpt/r1", "team/gpt/r2"):
        assert [(block.reading.source, block.reading.names) for block in batches.blocks(job)] == [("training", ("cpu_percent",)), ("scrape", ("hang_reported",))]
