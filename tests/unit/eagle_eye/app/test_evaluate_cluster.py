"""`eagle-eye evaluate cluster` and `score`: the same seed is the same cluster, every fault and twin is in it, and verdicts are scored without mercy."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from detectors.exits import Exits
from eagle_eye.app.cli import main
from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.synthetic_cluster.cluster_jobs import planned_jobs
from eagle_eye.app.evaluation.synthetic_cluster.cluster_run import ClusterRun, measured_noise, run_cluster
from eagle_eye.app.evaluation.synthetic_cluster.cluster_score import JobLabel, JobVerdict, score
from eagle_eye.app.evaluation.synthetic_cluster.frame_files import FrameFiles
from eagle_eye.app.evaluation.synthetic_cluster.scenarios import SCENARIOS, PlannedJob
from eagle_eye.errors import ConfigError, DataSetError

STEPS = 100


def made(seed: int) -> ClusterRun:
    return run_cluster(list(planned_jobs(8, seed, STEPS))[:3], [], None, None, lambda job: None)


def jobs_of(*scenarios: str) -> list[PlannedJob]:
    """In this order."""
    jobs = {job.scenario.name: job for job in planned_jobs(8, 7, STEPS)}
    return [jobs[name] for name in scenarios]


def typed(*words: str) -> Result:
    result = CliRunner().invoke(main, ["evaluate", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_the_same_seed_is_the_same_cluster_and_another_is_another() -> None:
    assert made(7).digest == made(7).digest
    assert made(7).digest != made(8).digest


@pytest.mark.parametrize("gpus", [8, 64, 3000])
def test_every_scenario_that_fits_happens_and_every_gpu_has_a_job(gpus: int) -> None:
    jobs = list(planned_jobs(gpus, 7, STEPS))
    assert {job.scenario.name for job in jobs} == {each.name for each in SCENARIOS if each.smallest <= gpus}
    assert sum(len(job.layout.placements) for job in jobs) >= gpus
    assert max(len(job.layout.placements) for job in jobs) <= gpus
    for job in jobs:
        stages = [place.pp for place in job.layout.placements]
        assert np.bincount(stages).min() >= job.scenario.peers
        assert max(stages) + 1 >= job.scenario.stages


def test_the_number_of_a_job_does_not_tell_what_happens_to_it() -> None:
    orders = {tuple(job.scenario.name for job in planned_jobs(8, seed, STEPS)) for seed in range(3)}
    assert len(orders) == 3


def test_the_files_hold_what_was_judged_and_the_label_begins_before_the_fault(tmp_path: Path) -> None:
    jobs = jobs_of("worker 1.3 times as slow", "all 1.2 times as slow", "worker killed")
    with FrameFiles(tmp_path / "c") as files:
        run = run_cluster(jobs, [], files, None, lambda job: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]
    label = run.labels[0]
    assert json.loads((tmp_path / "c" / "labels.jsonl").read_text().splitlines()[0])["onset"] == label.onset
    table = pq.read_table(tmp_path / "c" / "steps" / f"{label.job.rsplit('/', 1)[-1]}.parquet").to_pydict()
    assert len(table["step"]) == STEPS * 8
    seconds = np.array(table["forward_s"]).reshape(STEPS, 8)
    (slow,) = np.flatnonzero(np.median(seconds[60:], axis=0) > 1.2 * np.median(seconds[:30], axis=0))
    onset = int(np.searchsorted(np.array(table["end"])[::8], label.onset, side="right"))
    assert seconds[onset, slow] > 1.15 * np.median(seconds[onset]) > seconds[onset - 1, slow]
    workers = [json.loads(line) for line in (tmp_path / "c" / "workers.jsonl").read_text().splitlines()]
    assert [each["node"] for each in workers if each["job"] == label.job and each["rank"] == slow] == list(label.culprits)
    events = [json.loads(line) for line in (tmp_path / "c" / "events.jsonl").read_text().splitlines()]
    assert [(each["job"], each["name"], each["time"] >= run.labels[2].onset) for each in events] == [(run.labels[2].job, "exit", True)]


def test_whoever_interrupts_leaves_nothing_half(tmp_path: Path) -> None:
    def interrupted(_job: PlannedJob) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), FrameFiles(tmp_path / "c") as files:
        run_cluster(list(planned_jobs(8, 7, STEPS))[:2], [], files, None, interrupted)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_has_something_is_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(ConfigError, match="new or empty"):
        FrameFiles(tmp_path)
    assert typed("cluster", "--gpus", "8", "--no-verdicts").exit_code == 2


def test_a_killed_worker_is_found_and_one_that_ends_well_accuses_nobody() -> None:
    run = run_cluster(jobs_of("worker killed", "all workers end"), [("exits", Exits())], None, None, lambda job: None)
    killed, ended = run.labels
    assert [(each.job, each.culprits, each.cause) for each in run.verdicts] == [(killed.job, killed.culprits, "worker killed")]
    assert 0.0 < run.verdicts[0].time - killed.onset <= 1.0
    assert ended.culprits == ()


def label(name: str, *, fault: bool, culprits: tuple[str, ...] = ()) -> JobLabel:
    return JobLabel(job=name, scenario=name, fault=fault, onset=100.0, end=3700.0, hours=1.0, culprits=culprits)


def rows(labels: list[JobLabel], *verdicts: JobVerdict) -> list[tuple[str, bool | None]]:
    found: list[Figure] = score(labels, verdicts)
    return [(each.figure, each.met) for each in found[:4]]


SICK, WELL, ALL = label("sick", fault=True, culprits=("n1",)), label("well", fault=False), label("all", fault=True)


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
