"""T(t, x): what fits, what is best, what was measured, and how honest the answer is about it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye.errors import ConfigError
from eagle_eye.ledger import Throughput
from remediation.planner.performance import gpu_memory
from remediation.planner.performance.calibration import MeasuredIteration, calibrate, predict
from remediation.planner.performance.coefficients import Coefficients
from remediation.planner.performance.hardware import DATA_SHEETS, hardware_of
from remediation.planner.performance.iteration_model import iteration_times
from remediation.planner.performance.measured_throughput import (
    MeasuredThroughput,
    from_ledger,
    measured_iterations,
    read_csv,
)
from remediation.planner.performance.model_shape import ModelShape
from remediation.planner.performance.parallel_layout import ParallelLayout, ParallelLayouts, Recompute
from remediation.planner.performance.throughput_model import ThroughputModel, ThroughputSource, search
from remediation.planner.performance.training_run import TrainingRun

A100 = hardware_of("A100-80GB")
EXPECTED = Coefficients.expected(A100)
GPT_7B = ModelShape(layers=32, hidden=4096, heads=32, sequence=2048)
RUN = TrainingRun(shape=GPT_7B, global_batch=512)
SMALL = st.builds(
    lambda layers, heads, batch, even: TrainingRun(
        shape=ModelShape(layers=layers, hidden=256 * heads, heads=heads, sequence=512), global_batch=batch, even=even, largest_micro_batch=4
    ),
    st.integers(1, 6),
    st.sampled_from([1, 2, 3, 4]),
    st.integers(1, 24),
    st.booleans(),
)


def seconds(layout: ParallelLayout, run: TrainingRun = RUN, known: Coefficients = EXPECTED) -> float:
    return float(iteration_times(run, A100, known, ParallelLayouts.of([layout])).total[0])


def test_parameters_and_flops_are_those_of_the_published_formulas():
    shape = ModelShape(layers=96, hidden=12288, heads=96, sequence=2048)
    assert shape.parameters == pytest.approx(174.6e9, rel=0.005)
    s, h, layers, vocabulary = 2048, 12288, 96, 51200
    megatron = 72 * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
    assert shape.sample_flops == pytest.approx(megatron)


@settings(max_examples=60, deadline=None)
@given(SMALL, st.integers(1, 24), st.sampled_from([4e9, 6e9, 80e9]))
def test_the_search_finds_what_trying_every_layout_finds(run, gpus, room):
    hardware = replace(A100, memory_bytes=room)
    best = math.inf
    for tensor in (1, 2, 4, 8):
        for pipeline in range(1, run.shape.layers + 1):
            for size in (1, 2, 3, 4):
                for again in Recompute:
                    data, rest = divmod(gpus, tensor * pipeline)
                    if rest or run.shape.heads % tensor or data * size > run.global_batch:
                        continue
                    if run.even and (run.shape.layers % pipeline or run.global_batch % (data * size)):
                        continue
                    layouts = ParallelLayouts.of([ParallelLayout(tensor, pipeline, data, size, again)])
                    if gpu_memory.fits(run, hardware, layouts)[0]:
                        best = min(best, float(iteration_times(run, hardware, EXPECTED, layouts).total[0]))
    found = search(run, hardware, EXPECTED, [gpus])
    assert (found[gpus].seconds if gpus in found else math.inf) == pytest.approx(best)


@settings(max_examples=40, deadline=None)
@given(SMALL, st.lists(st.integers(1, 16), min_size=1, max_size=5), st.sampled_from([3.5e9, 5e9, 80e9]))
def test_no_layout_that_does_not_fit_is_proposed(run, counts, room):
    hardware = replace(A100, memory_bytes=room)
    for count, found in search(run, hardware, EXPECTED, counts).items():
        assert found.layout.gpus == count
        assert gpu_memory.stage_bytes(run, ParallelLayouts.of([found.layout]))[0] + gpu_memory.RESERVED_BYTES <= room


def test_a_model_too_large_for_a_count_makes_nothing_there():
    large = TrainingRun(shape=ModelShape(layers=96, hidden=12288, heads=96, sequence=2048), global_batch=1536)
    row = ThroughputModel(A100, {"175b": large}).row("175b", 64)
    assert row[8] == row[16] == row[32] == 0  # 175B parameters at 16 bytes are 2.8 TB
    assert row[48] > 0
    assert 100e12 < row[64] / 64 < 200e12


def test_memory_falls_with_each_kind_of_parallelism_recomputation_and_sharding():
    def room(run: TrainingRun = RUN, **changed: int) -> float:
        layout = replace(ParallelLayout(1, 1, 8, 1), **changed)
        return float(gpu_memory.stage_bytes(run, ParallelLayouts.of([layout]))[0])

    assert room(tensor=2) < room()
    assert room(pipeline=4) < room()
    assert room(recompute=Recompute.FULL) < room(recompute=Recompute.SELECTIVE) < room()
    assert room(run=replace(RUN, sharded_optimizer=True)) < room()
    assert room(micro_batch=2) > room()
    assert room(pipeline=4, interleave=2) > room(pipeline=4)
    # 7B parameters: weights and gradients 4 bytes, Adam 12
    assert room(recompute=Recompute.FULL) == pytest.approx(16 * GPT_7B.parameters, rel=0.1)


def test_each_part_of_an_iteration_reacts_as_physics_says():
    flat, deep = ParallelLayout(1, 1, 8, 2), ParallelLayout(1, 8, 1, 2)
    times = iteration_times(RUN, A100, EXPECTED, ParallelLayouts.of([flat, deep]))
    assert times.bubble[0] == 0 < times.bubble[1]
    assert times.data[1] == 0 < times.data[0]
    # the bubble of 1F1B: (p - 1) / m of the compute, beside what is sent and the head of the last stage
    assert times.bubble[1] / times.compute[1] == pytest.approx(7 / 256, rel=0.1)
    assert seconds(replace(deep, interleave=4)) < seconds(deep)
    assert seconds(replace(flat, recompute=Recompute.FULL)) > 1.25 * seconds(flat)
    across = ParallelLayout(16, 1, 1, 2)
    assert seconds(across) > seconds(ParallelLayout(8, 1, 2, 2))  # tensor parallel over the network costs more than it saves
    slow = replace(EXPECTED, network_bytes_s=EXPECTED.network_bytes_s / 10)
    assert seconds(ParallelLayout(8, 1, 64, 2), known=slow) > seconds(ParallelLayout(8, 1, 64, 2))


def test_more_gpus_are_more_flops_but_less_each():
    row = ThroughputModel(A100, {"gpt": RUN}).row("gpt", 256, granularity=64)
    assert row[64] < row[128] < row[256]
    assert row[64] / 64 > row[256] / 256
    assert row[1] == row[63] == 0  # between the multiples


@settings(max_examples=15, deadline=None)
@given(st.tuples(*[st.floats(-0.5, 0.5) for _ in range(8)]), st.integers(0, 2**32 - 1))
def test_calibration_predicts_a_cluster_of_other_coefficients_from_noisy_measurements(shift, seed):
    truth = Coefficients.of(EXPECTED.values() * np.exp(np.array(shift) * 0.4))
    rng = np.random.default_rng(seed)
    layouts = [ParallelLayout(t, p, 64 // t // p, b, Recompute.FULL) for t in (1, 2, 4, 8) for p in (1, 2, 4) for b in (1, 2, 4)]
    exact = [MeasuredIteration(RUN, one, seconds(one, known=truth)) for one in layouts]
    noisy = [MeasuredIteration(RUN, one.layout, one.seconds * float(np.exp(rng.normal(0, 0.02)))) for one in exact]
    noisy[3] = MeasuredIteration(RUN, noisy[3].layout, noisy[3].seconds * 2)  # one bad run bends nothing
    made = calibrate(A100, noisy)
    error = np.abs(predict(A100, made.coefficients, exact) / [one.seconds for one in exact] - 1)
    assert error.mean() < 0.04


def test_calibration_without_measurements_is_what_the_data_sheet_lets_one_expect():
    assert calibrate(A100, []).coefficients == EXPECTED
    with pytest.raises(ConfigError, match="took 0 s"):
        calibrate(A100, [MeasuredIteration(RUN, ParallelLayout(1, 1, 8, 1), 0)])


def test_a_measured_count_is_answered_with_the_measurement_and_says_so():
    made = ThroughputModel(A100, {"gpt": RUN}, [MeasuredThroughput("gpt", 64, 7e15), MeasuredThroughput("gpt", 64, 9e15), MeasuredThroughput("gpt", 64, 8e15), MeasuredThroughput("gpt", 128, 13e15)])
    at = made.estimate("gpt", 64)
    assert (at.flops, at.source, at.reach) == (8e15, ThroughputSource.MEASURED, 1.0)
    assert at.iteration_s == pytest.approx(512 * GPT_7B.sample_flops / 8e15)
    assert made.estimate("gpt", 96).source is ThroughputSource.INTERPOLATED
    beyond = made.estimate("gpt", 512)
    assert (beyond.source, beyond.reach) == (ThroughputSource.EXTRAPOLATED, 4.0)
    alone = ThroughputModel(A100, {"gpt": RUN})
    assert alone.estimate("gpt", 64).source is ThroughputSource.MODELLED
    assert alone.estimate("gpt", 64).reach == math.inf
    # the ratio of the nearest measured count is kept, and the one between is between
    ratio = {x: made.row("gpt", 512)[x] / alone.row("gpt", 512)[x] for x in (64, 96, 128, 512)}
    assert ratio[512] == pytest.approx(ratio[128])
    assert min(ratio[64], ratio[128]) <= ratio[96] <= max(ratio[64], ratio[128])


def test_a_task_that_was_only_measured_is_interpolated_per_gpu_and_never_below_what_ran():
    made = ThroughputModel(A100, {}, [MeasuredThroughput("x", 8, 8 * 100.0), MeasuredThroughput("x", 32, 32 * 64.0)])
    assert made.estimate("x", 16).flops == pytest.approx(16 * 80.0)
    assert made.estimate("x", 4).flops == 0
    assert made.estimate("x", 128).flops == pytest.approx(128 * 64.0 * 0.64)
    rising = ThroughputModel(A100, {}, [MeasuredThroughput("x", 8, 8 * 64.0), MeasuredThroughput("x", 32, 32 * 100.0)])
    assert rising.estimate("x", 128).flops == pytest.approx(128 * 100.0)  # a rise is not carried on
    with pytest.raises(ConfigError, match=r"nothing is known of task 'y'.*known are x"):
        made.row("y", 8)


def test_measurements_come_from_a_csv_and_errors_name_line_and_column(tmp_path):
    path = tmp_path / "measured.csv"
    path.write_text("task,gpus,flops,samples_s\ngpt,64,8e15,\ngpt,128,,300\n")
    rows = read_csv(path, {"gpt": RUN})
    assert rows == [MeasuredThroughput("gpt", 64, 8e15), MeasuredThroughput("gpt", 128, 300 * GPT_7B.sample_flops)]
    for line, message in (("gpt,-8,1e15,", "gpus is '-8'"), (",8,1e15,", "task is missing"), ("gpt,8,,", "flops, samples_s or tokens_s"), ("x,8,,3", "without its model"), ("gpt,1.5,1,", "whole number")):
        path.write_text(f"task,gpus,flops,samples_s\ngpt,64,8e15,\n{line}\n")
        with pytest.raises(ConfigError, match=f"line 3: .*{message}"):
            read_csv(path, {"gpt": RUN})
    path.write_text("task,gpus,flops,tensor,pipeline,data,micro_batch,recompute\ngpt,8,1e15,1,1,8,2,full\ngpt,16,2e15,,,,,\n")
    (one,) = measured_iterations(read_csv(path, {"gpt": RUN}), {"gpt": RUN})
    assert one.layout == ParallelLayout(1, 1, 8, 2, Recompute.FULL)
    assert one.seconds == pytest.approx(512 * GPT_7B.sample_flops / 1e15)
    for line, message in (("gpt,8,1,2,1,8,2,full", "the layout .* has 16"), ("gpt,8,1,2,,4,2,full", "pipeline is missing"), ("gpt,8,1,2,1,4,2,half", "recompute is 'half'")):
        path.write_text(f"task,gpus,flops,tensor,pipeline,data,micro_batch,recompute\n{line}\n")
        with pytest.raises(ConfigError, match=f"line 2: .*{message}"):
            read_csv(path, {"gpt": RUN})
    with pytest.raises(ConfigError, match="cannot be read"):
        read_csv(tmp_path / "none.csv")


def test_impossible_models_and_gpus_are_refused():
    with pytest.raises(ConfigError, match="layers is -1"):
        ModelShape(layers=-1, hidden=8, heads=1, sequence=8)
    with pytest.raises(ConfigError, match="multiple of the 3 heads"):
        ModelShape(layers=1, hidden=8, heads=3, sequence=8)
    with pytest.raises(ConfigError, match="no GPU is known as 'A1'"):
        hardware_of("A1")
    assert all(name == kind.name for name, kind in DATA_SHEETS.items())


def test_what_the_ledger_says_of_a_job_counts_as_measured() -> None:
    run = TrainingRun(shape=GPT_7B, global_batch=512)
    seen = [
        Throughput(job="team/gpt", workers=8, tokens_per_s=1000.0, time=1.0),
        Throughput(job="team/gpt", workers=16, steps_per_s=0.5, time=1.0),
        Throughput(job="team/other", workers=8, tokens_per_s=1.0, time=1.0),
    ]
    sample = GPT_7B.sample_flops
    found = [(each.task, each.gpus, each.flops) for each in from_ledger(seen, {"gpt": run})]
    assert found == [("gpt", 8, pytest.approx(1000.0 / GPT_7B.sequence * sample)), ("gpt", 16, pytest.approx(256 * sample))]
