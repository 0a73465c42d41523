"""`eagle-eye evaluate cluster` and `score`: the same seed is the same cluster, every fault has its twin, nothing but what happens tells them apart, and verdicts are scored without mercy."""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from detectors.diagnosis.causes import CAUSES
from detectors.exits import Exits
from eagle_eye.app.cli import main
from eagle_eye.app.evaluation.drill_corpus.drill_job import BEGAN
from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.synthetic_cluster.cluster_jobs import PlannedRun, jobs_of, planned_runs
from eagle_eye.app.evaluation.synthetic_cluster.cluster_run import ClusterRun, frames_of, run_cluster
from eagle_eye.app.evaluation.synthetic_cluster.cluster_score import JobLabel, JobVerdict, score
from eagle_eye.app.evaluation.synthetic_cluster.fault_kinds import KINDS, kind_of
from eagle_eye.app.evaluation.synthetic_cluster.frame_files import READINGS, STEP_VALUES, FrameFiles
from eagle_eye.app.evaluation.synthetic_cluster.healthy_signals import DIGEST_EVERY, RESOLUTION, make_healthy
from eagle_eye.app.evaluation.synthetic_cluster.recorded_data import RecordedData, measured_noise, recorded_data
from eagle_eye.app.evaluation.synthetic_cluster.scenarios import PAIRS, SCENARIOS
from eagle_eye.errors import ConfigError, DataSetError
from eagle_eye.frames import Frame
from eagle_eye.types import Kind, Severity

STEPS = 100
SEEN_S = 24.0
"""Twice as long as it takes until everything has been read; nothing has happened by then."""
GPUS = 128
"""Of the smallest cluster in which all scenarios fit."""
BEHIND_SWITCHES = ("two jobs: their switch dies", "two jobs: ports at different switches go down")
FROM_THE_START = ("a small set of data in several passes", "parameters differ by design")
"""What these scripts do is so from the first step on."""


def made(seed: int) -> ClusterRun:
    return run_cluster(planned_runs(8, seed, STEPS)[:3], [], None, RecordedData(), lambda run: None)


def runs_of(*scenarios: str) -> list[PlannedRun]:
    """In this order."""
    runs = {run.scenario.name: run for run in planned_runs(GPUS, 7, STEPS)}
    return [runs[name] for name in scenarios]


def frames(run: PlannedRun) -> Iterator[Frame]:
    jobs = jobs_of(run)
    run.scenario.happen(jobs)
    for job in jobs:
        make_healthy(job, RecordedData(), run.seed)
    return frames_of(jobs, run.until)


def typed(*words: str) -> Result:
    result = CliRunner().invoke(main, ["evaluate", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# --- the plan -----------------------------------------------------------------------------------------------------


def test_the_same_seed_is_the_same_cluster_and_another_is_another() -> None:
    assert made(7).digest == made(7).digest
    assert made(7).digest != made(8).digest


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with FrameFiles(tmp_path / name) as files:
            run_cluster(planned_runs(8, 7, STEPS)[:2], [], files, RecordedData(), lambda run: None)
    paths = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(paths) == 2 * 6 + 3 - (not (tmp_path / "a" / "events.jsonl").exists())
    assert all((tmp_path / "a" / path).read_bytes() == (tmp_path / "b" / path).read_bytes() for path in paths)


def test_every_fault_has_a_twin_that_nobody_is_to_blame_for() -> None:
    assert all(pair.fault.fault and not pair.twin.fault for pair in PAIRS)
    assert all(pair.fault.kind == pair.twin.kind and pair.fault.jobs == pair.twin.jobs for pair in PAIRS)
    assert len({each.name for each in SCENARIOS}) == len(SCENARIOS) == 2 * len(PAIRS)
    assert {each.kind for each in SCENARIOS} == set(KINDS)


@pytest.mark.parametrize("gpus", [8, GPUS, 3000])
def test_every_scenario_that_fits_happens_and_every_gpu_has_a_job(gpus: int) -> None:
    runs = planned_runs(gpus, 7, STEPS)
    assert {run.scenario.name for run in runs} == {each.name for pair in PAIRS for each in pair if pair.smallest * each.jobs <= gpus}
    assert sum(run.workers for run in runs) >= gpus
    assert max(run.workers for run in runs) <= gpus
    for run in runs:
        stages = [place.pp for place in jobs_of(run)[0].layout.placements]
        assert np.bincount(stages).min() >= run.scenario.peers
        assert run.scenario.stages <= max(stages) + 1 <= run.scenario.most_stages


def test_all_scenarios_fit_into_a_cluster_of_a_thousand() -> None:
    assert {run.scenario.name for run in planned_runs(1000, 7, STEPS)} == {each.name for each in SCENARIOS}


def test_faults_and_twins_have_the_same_sizes_stages_and_lengths() -> None:
    runs = planned_runs(1000, 7, STEPS)
    shapes = [Counter((run.size, run.stages, run.scenario.jobs, run.until) for run in runs if run.scenario.fault is fault) for fault in (True, False)]
    assert shapes[0] == shapes[1]


def test_the_number_of_a_job_does_not_tell_what_happens_to_it() -> None:
    orders = {tuple(run.scenario.name for run in planned_runs(8, seed, STEPS)) for seed in range(3)}
    assert len(orders) == 3
    for part in (slice(60), slice(0, None, 2)):
        shares = [np.mean([run.scenario.fault for run in planned_runs(1000, seed, STEPS)[part]]) for seed in range(20)]
        assert 0.45 < np.mean(shares) < 0.55


# --- the frames ---------------------------------------------------------------------------------------------------


def test_what_is_seen_before_the_onset_does_not_tell_what_will_happen() -> None:
    """Columns, gaps and the resolution of readings are those of all; no event comes before it but one that gives notice."""
    shapes: dict[str, set[Any]] = {}
    for run in runs_of(*(each.name for each in SCENARIOS if each.name not in FROM_THE_START)):
        shape: set[Any] = set()
        for frame in frames(run):
            if frame.time >= BEGAN + SEEN_S:
                break
            assert all(event.name == "scheduler.preemption" for event in frame.events), run.scenario.name
            shape |= {(str(kind), name, round(frame.time - BEGAN), float(np.isfinite(values).mean())) for kind, metrics in frame.metrics.items() for name, values in metrics.items()}
            shape |= {("step", name, step.number % DIGEST_EVERY, float(np.isfinite(values).mean())) for step in frame.steps for name, values in step.values.items()}
        shapes[run.scenario.name] = shape
    usual = shapes["worker killed"]
    assert {name: shape ^ usual for name, shape in shapes.items() if shape != usual} == {}


@pytest.mark.parametrize("name", ["one GPU is throttled by heat", "power cap on all GPUs", "a GPU draws 25 to 60 % less power", "steps of all vary more", "a GPU draws 5 % more power"])
def test_a_fault_leaves_no_fraction_in_a_reading(name: str) -> None:
    for frame in frames(runs_of(name)[0]):
        for kind, resolutions in RESOLUTION.items():
            for metric, resolution in resolutions.items():
                values = frame.metrics.get(kind, {}).get(metric, np.zeros(0, np.float32))
                read = values[np.isfinite(values)] / resolution
                assert np.allclose(read, np.round(read), atol=1e-3), (kind, metric)


def test_what_happens_shows_in_the_frames() -> None:
    throttled = runs_of("one GPU is throttled by heat")[0]
    (job,) = jobs_of(throttled)
    before, after = ([frame.metrics[Kind.GPU]["sm_clock_mhz"] for frame in frames(throttled) if frame.tick and (frame.time >= throttled.onset) is late] for late in (False, True))
    ratio = np.median(after, axis=0) / np.median(before, axis=0)
    assert int(ratio.argmin()) == job.target.rank
    assert ratio.min() < 0.8 < 0.97 < np.median(ratio)


# --- the files ----------------------------------------------------------------------------------------------------


def test_the_files_hold_what_was_judged_and_the_label_begins_before_the_fault(tmp_path: Path) -> None:
    runs = runs_of("worker 1.3 times as slow", "all 1.2 times as slow", "worker killed", "node lost")
    with FrameFiles(tmp_path / "c") as files:
        run = run_cluster(runs, [], files, RecordedData(), lambda run: None)
    folder = tmp_path / "c"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]
    label = run.labels[0]
    assert json.loads((folder / "labels.jsonl").read_text().splitlines()[0])["onset"] == label.onset
    table = pq.read_table(folder / "steps" / f"{label.job.rsplit('/', 1)[-1]}.parquet").to_pydict()
    workers = runs[0].size
    seconds = np.array(table["forward_s"]).reshape(-1, workers)
    ends = np.array(table["end"])[::workers]
    (slow,) = np.flatnonzero(np.median(seconds[ends > label.onset + 5], axis=0) > 1.2 * np.median(seconds[ends < label.onset], axis=0))
    placed = [json.loads(line) for line in (folder / "workers.jsonl").read_text().splitlines()]
    (place,) = [each for each in placed if each["job"] == label.job and each["rank"] == slow]
    assert label.culprits == (place["node"],)
    assert label.entities == (f"worker {place['worker']}", f"gpu {place['gpu']}")
    killed = [event for event in (json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()) if event["job"] == run.labels[2].job and event["entity"] in run.labels[2].entities[0]]
    assert [event["name"] for event in killed] == ["exit"]
    assert run.labels[2].onset <= killed[0]["time"] <= killed[0]["arrives"]


def test_all_files_of_one_sort_have_the_same_columns(tmp_path: Path) -> None:
    runs = runs_of("NVLink errors, exchanges take longer", "few NVLink errors, nobody waits", "node lost", "node preempted, as was told", *BEHIND_SWITCHES)
    with FrameFiles(tmp_path / "c") as files:
        run_cluster(runs, [], files, RecordedData(), lambda run: None)
    for sort in ("steps", *READINGS):
        schemas = {str(pq.read_schema(path)) for path in (tmp_path / "c" / sort).iterdir()}
        assert len(schemas) == 1, sort
    assert pq.read_table(next((tmp_path / "c" / "steps").iterdir())).column_names[4:] == list(STEP_VALUES)
    gpus = pq.read_table(next((tmp_path / "c" / "gpu").iterdir())).to_pandas()
    assert gpus.notna().all().all()
    assert len(gpus) == gpus["gpu"].nunique() * gpus["time"].nunique()


def test_whoever_interrupts_leaves_nothing_half(tmp_path: Path) -> None:
    def interrupted(_run: PlannedRun) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), FrameFiles(tmp_path / "c") as files:
        run_cluster(planned_runs(8, 7, STEPS)[:2], [], files, RecordedData(), interrupted)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_has_something_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="new or empty"):
        FrameFiles(tmp_path)
    assert typed("cluster", "--gpus", "8", "--no-verdicts").exit_code == 2


# --- verdicts and their score -------------------------------------------------------------------------------------


def test_a_killed_worker_is_found_and_jobs_that_are_ended_accuse_nobody() -> None:
    run = run_cluster(runs_of("worker killed", "all workers are ended at once, with their job"), [("exits", Exits())], None, RecordedData(), lambda run: None)
    killed, ended = run.labels
    found = [verdict for verdict in run.verdicts if verdict.job == killed.job and set(verdict.entities) & set(killed.entities)]
    assert found[0].culprits == killed.culprits
    assert found[0].kind == "death"
    assert 0.0 < found[0].time - killed.onset <= 6.0
    assert ended.culprits == ()
    assert not any(verdict.culprits for verdict in run.verdicts if verdict.job == ended.job)


def test_every_cause_of_ours_that_asks_for_a_repair_has_a_kind() -> None:
    assert {cause.word for cause in CAUSES if cause.severity is not Severity.INFO and not kind_of(cause.word)} == set()
    assert {kind_of(cause.word) for cause in CAUSES} <= {*KINDS, ""}
    assert kind_of("rule fired", ("rule.gpu_nvlink_crc",)) == "nvlink"
    assert kind_of("network error", (), frozenset({"switch"})) == "switch"


def label(name: str, *, fault: bool, culprits: tuple[str, ...] = (), informs: bool = False, entities: tuple[str, ...] = (), shared: str = "") -> JobLabel:
    return JobLabel(job=name, scenario=name, fault=fault, onset=100.0, end=3700.0, hours=1.0, culprits=culprits, informs=informs, entities=entities, kind="gpu", shared=shared)


def rows(labels: list[JobLabel], *verdicts: JobVerdict) -> list[tuple[str, bool | None]]:
    found: list[Figure] = score(labels, verdicts)
    return [(each.figure, each.met) for each in found[:4]]


def details(labels: list[JobLabel], *verdicts: JobVerdict) -> dict[str, str]:
    return {each.what: each.figure for each in score(labels, verdicts)}


SICK, WELL, ALL = label("sick", fault=True, culprits=("n1",), entities=("gpu g1",)), label("well", fault=False), label("all", fault=True)
NOTED = label("noted", fault=True, culprits=("n1",), informs=True, entities=("gpu g1",))


KIND_RIGHT = "kind of the fault is right in the newest verdict that finds it"
PART_NAMED = "part at fault is named, and no other in the same verdict"


def test_what_is_right_is_right() -> None:
    found = rows([SICK, WELL, ALL], JobVerdict(job="sick", time=104.0, culprits=("n1",)), JobVerdict(job="all", time=110.0), JobVerdict(job="well", time=5.0))
    assert found == [("2 of 2 (100.0%)", True), ("2 of 2 (100.0%)", True), ("median 7.0 s, at most 10.0 s", None), ("0 (0 per run-hour)", True)]


@pytest.mark.parametrize(
    "verdict",
    [
        JobVerdict(job="sick", time=104.0, culprits=("n1", "n2")),  # one too many
        JobVerdict(job="all", time=104.0, culprits=("n1",)),  # where nobody is at fault
        JobVerdict(job="well", time=104.0, culprits=("n1",)),
        JobVerdict(job="sick", time=99.0, culprits=("n1",)),  # before anything has happened
    ],
)
def test_a_healthy_node_that_is_accused_is_a_false_alarm(verdict: JobVerdict) -> None:
    assert rows([SICK, WELL, ALL], verdict)[3] == ("1 (0.333 per run-hour)", False)


def test_a_healthy_node_beside_the_culprit_makes_the_culprits_wrong() -> None:
    assert rows([SICK], JobVerdict(job="sick", time=104.0, culprits=("n1", "n2")))[:2] == [("1 of 1 (100.0%)", True), ("0 of 1 (0.0%)", False)]


@pytest.mark.parametrize("verdict", [JobVerdict(job="sick", time=104.0), JobVerdict(job="sick", time=104.0, culprits=("n2",)), JobVerdict(job="sick", time=99.0, culprits=("n1",))])
def test_who_does_not_name_the_culprit_in_time_has_not_found_it(verdict: JobVerdict) -> None:
    assert rows([SICK], verdict)[:2] == [("0 of 1 (0.0%)", False), ("0 of 1 (0.0%)", False)]


def test_who_only_tells_of_a_part_has_found_it_and_is_right_where_that_is_enough() -> None:
    assert rows([SICK], JobVerdict(job="sick", time=104.0, entities=("gpu g1",)))[:2] == [("1 of 1 (100.0%)", True), ("0 of 1 (0.0%)", False)]
    assert rows([NOTED], JobVerdict(job="noted", time=104.0, entities=("gpu g1",)))[:2] == [("1 of 1 (100.0%)", True), ("1 of 1 (100.0%)", True)]
    assert rows([NOTED], JobVerdict(job="noted", time=104.0, culprits=("n1",)))[1] == ("1 of 1 (100.0%)", True)
    assert rows([NOTED], JobVerdict(job="noted", time=104.0, culprits=("n1", "n2")))[1] == ("0 of 1 (0.0%)", False)


def test_kind_part_and_twins_that_are_told_are_counted_beside() -> None:
    found = details([SICK, WELL], JobVerdict(job="sick", time=104.0, culprits=("n1",), kind="link", entities=("gpu g2",)), JobVerdict(job="well", time=104.0))
    assert found[KIND_RIGHT] == "0 of 1 (0.0%)"
    assert found[PART_NAMED] == "0 of 1 (0.0%)"
    assert found["other parts that verdicts are about, for each job"] == "0.50"
    assert found["twins of which something is told, accused or not"] == "1 of 1 (100.0%)"
    assert KIND_RIGHT not in details([SICK], JobVerdict(job="sick", time=104.0, culprits=("n1",)))


def test_who_names_every_part_or_every_kind_is_not_right() -> None:
    all_parts = JobVerdict(job="sick", time=104.0, entities=("gpu g1", "gpu g2"))
    assert rows([SICK], all_parts)[0] == ("0 of 1 (0.0%)", False)
    assert details([SICK], all_parts)[PART_NAMED] == "0 of 1 (0.0%)"
    kinds = [JobVerdict(job="sick", time=104.0 + number, culprits=("n1",), kind=kind) for number, kind in enumerate(("gpu", "link"))]
    assert details([SICK], *kinds)[KIND_RIGHT] == "0 of 1 (0.0%)"


def test_one_fault_of_two_jobs_has_to_be_told_as_one() -> None:
    both = [label("a", fault=True, shared="run1"), label("b", fault=True, shared="run1")]
    what = "faults of two jobs that are told as one"
    assert details(both, JobVerdict(job="a", time=104.0, incident="i"), JobVerdict(job="b", time=105.0, incident="i"))[what] == "1 of 1 (100.0%)"
    assert details(both, JobVerdict(job="a", time=104.0, incident="i"), JobVerdict(job="b", time=105.0, incident="j"))[what] == "0 of 1 (0.0%)"
    assert details(both, JobVerdict(job="a", time=104.0), JobVerdict(job="b", time=105.0))[what] == "0 of 1 (0.0%)"


@pytest.mark.parametrize("always", ["nothing", "nobody", "all nodes", "the first node"])
def test_a_detector_that_always_says_the_same_gets_a_bad_score(always: str) -> None:
    labels, verdicts = [], []
    for run in planned_runs(1000, 7, STEPS):
        jobs = jobs_of(run)
        fault = run.scenario.fault
        node = jobs[0].target.node
        labels.append(label(jobs[0].name, fault=fault, culprits=(node,) if fault and run.scenario.sick and run.scenario.at(jobs) else ()))
        accused = {"all nodes": jobs[0].layout.nodes, "the first node": jobs[0].layout.nodes[:1]}.get(always, ())
        verdicts += [JobVerdict(job=jobs[0].name, time=200.0, culprits=accused)] if always != "nothing" else []
    found = [figure.met for figure in score(labels, verdicts)]
    assert found[1] is False
    assert found[0] is False or found[3] is False
    if accused:
        assert found[3] is False


def test_verdicts_of_others_are_scored_from_files(tmp_path: Path) -> None:
    labels, verdicts = tmp_path / "labels.jsonl", tmp_path / "verdicts.jsonl"
    labels.write_text('{"job":"j","scenario":"s","fault":true,"onset":1.0,"end":9.0,"hours":0.1,"culprits":["n"]}\n')
    verdicts.write_text('{"job":"j","time":2.0,"culprits":["n"]}\n')
    assert typed("score", str(labels), str(verdicts)).exit_code == 0
    verdicts.write_text('{"job":"j","time":2.0,"culprits":["n"]}\n{"job":"j"}\n')
    torn = typed("score", str(labels), str(verdicts))
    assert torn.exit_code == 1
    assert "verdicts.jsonl, line 2" in torn.output
    verdicts.write_text('{"job":"other","time":2.0}\n')
    assert "no such job" in typed("score", str(labels), str(verdicts)).output
    labels.write_text("")
    assert "it has no label" in typed("score", str(labels), str(verdicts)).output


# --- real data ----------------------------------------------------------------------------------------------------


def test_noise_of_real_jobs_needs_one_without_a_slow_worker(tmp_path: Path) -> None:
    folder = tmp_path / "straggler_ops"
    folder.mkdir()
    (folder / "labels.json").write_text('[{"trace": "X", "label": "individual_worker_slowdown"}]')
    step, replica = (each.ravel() for each in np.meshgrid(np.arange(20), np.arange(4), indexing="ij"))
    seconds = np.exp(np.random.default_rng(1).normal(0.0, 0.03, 80)) * (1.0 + replica)  # one is always slower: that is no noise
    zeros = np.zeros(80, np.int8)
    np.savez(folder / "trace_X.npz", optype_names=np.array(["forward-compute"]), optype=zeros, step=step, dp_rank=replica, stage=zeros, duration=seconds)
    with pytest.raises(DataSetError, match="without a slow worker"):
        measured_noise(tmp_path)
    (folder / "labels.json").write_text('[{"trace": "X", "label": "long stage"}]')
    noise = measured_noise(tmp_path)
    assert 0.02 < noise.std() < 0.05


def test_powers_and_temperatures_of_real_machines_show_in_the_frames(tmp_path: Path) -> None:
    with pytest.raises(DataSetError, match="it has none of"):
        recorded_data(tmp_path)
    (tmp_path / "mlperf_power").mkdir()
    watts = np.full((8, 700), 5000.0) * np.linspace(0.9, 1.1, 8)[:, None]
    watts[:, 300:320] = 2000.0  # an evaluation of all
    np.savez(tmp_path / "mlperf_power" / "8node.npz", ac_watt=watts.astype(np.float32))
    (tmp_path / "acme_dist").mkdir()
    with gzip.open(tmp_path / "acme_dist" / "seren_cdf.csv.gz", "wt") as file:
        file.write("metric,x,cdf_pct\n" + "".join(f"{metric},{degrees},{share}\n" for metric in ("gpu_temp_c", "gpu_mem_temp_c") for degrees, share in ((30, 20), (71, 80), (73, 90))))
    recorded = recorded_data(tmp_path)
    assert recorded.noise is None
    assert recorded.power is not None
    assert recorded.power.shape == (8, 680)
    run = runs_of("node lost")[0]
    jobs = jobs_of(run)
    make_healthy(jobs[0], recorded, run.seed)
    frame = next(frames_of(jobs, run.until))
    assert 69 <= float(np.median(frame.metrics[Kind.GPU]["temperature_celsius"])) <= 75
    assert 0.85 < float((frame.metrics[Kind.NODE]["power_watts"] / 6000.0).min()) < 1.15
