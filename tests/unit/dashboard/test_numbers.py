"""What the dashboard asks the history: jobs, nodes, heat maps and the timeline of a job."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dashboard.errors import NoHistory, NoLedger, NothingFound
from dashboard.pages import job as job_page
from dashboard.queries import cluster, evidence, incident, job
from dashboard.sources import Sources
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config, HistoryConfig
from eagle_eye.ledger import Ledger
from eagle_eye.types import Culprit, Entity, IncidentState, Kind, Layout, RankPlacement, Reading, StepReading
from fakes.sample_values import JOB, a_layout, an_incident
from fakes.small_deployment import T0, RecordedJob, worker

Watch = Callable[..., Sources]


@pytest.fixture
def watch(tmp_path: Path, ledger: Ledger) -> Iterator[Watch]:
    """Sources over the state directory `tmp_path`, at a time after T0."""
    opened: list[Sources] = []

    def at(seconds: float, **history: object) -> Sources:
        sources = Sources(Config(state_dir=str(tmp_path), history=HistoryConfig(**history)), clock=FakeClock(T0 + seconds))
        opened.append(sources)
        return sources

    yield at
    for sources in opened:
        sources.close()


@pytest.fixture
def recorded(tmp_path: Path) -> RecordedJob:
    return RecordedJob(tmp_path)


def two_nodes(time: float = T0) -> Layout:
    places = tuple(RankPlacement(worker=worker(node, slot), node=node, rank=rank * 2 + slot, local_rank=slot, gpu=f"GPU-{node}-{slot}") for rank, node in enumerate(("node-a", "node-b")) for slot in (0, 1))
    return Layout(job=JOB, epoch=1, time=time, coordinator="node-a", launchers={}, placements=places)


def on(node: str, name: str = "incident-1", **changes) -> object:
    return an_incident(id=name, culprits=(Culprit(entity=Entity(kind=Kind.NODE, name=node), confidence=0.9),), since=T0 + 50, time=T0 + 51, **changes)


# --- the cluster -------------------------------------------------------------------------------------------------------


def test_a_job_is_told_with_its_pace_throughput_and_goodput(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(60).write()
    ledger.save_job(JOB, two_nodes(), "127.0.0.1:1", "restart:3", 3)
    (line,) = cluster.overview(watch(60), since=T0, until=T0 + 60).jobs
    assert (line.job, line.state, line.nodes, line.workers, line.step) == (JOB, "running", 2, 4, 59)
    assert line.step_s == pytest.approx(1.0)
    assert line.tokens_per_s == pytest.approx(60 * 4 * 512 / 60)
    assert line.goodput == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("told", [41.0, None])
def test_the_utilisation_of_the_gpus_is_shown_where_workers_tell_it(watch: Watch, ledger: Ledger, recorded: RecordedJob, told: float | None) -> None:
    recorded.mfu_percent = told
    recorded.run(60).write()
    (line,) = cluster.overview(watch(60), since=T0, until=T0 + 60).jobs
    assert line.mfu_percent == pytest.approx(told if told is not None else float("nan"), nan_ok=True)
    assert [tile.value for tile in job_page.tiles(line, T0 + 60) if tile.label == "MFU"] == ([] if told is None else ["41\u202f%"])
    assert set(job.timeline(watch(60), JOB, since=T0, until=T0 + 60).phases) == {"forward", "communication"}


@pytest.mark.parametrize("further", [("gpu_forward_s",), ()])
def test_further_numbers_of_a_worker_can_be_chosen_where_one_tells_them(watch: Watch, recorded: RecordedJob, further: tuple[str, ...]) -> None:
    names = ("step_s", *further)
    told = StepReading(
        source="training", workers=(worker("node-a", 0),), names=names, numbers=np.array([9]), epochs=np.array([1]), ends=np.full((1, 1), T0 + 9.0),
        values=np.full((1, 1, len(names)), 0.5, np.float32),
    )  # fmt: skip
    recorded.tell("node-a", 9, told).write()
    assert job.worker_metrics(watch(60)) == (*job.WORKER_METRICS, *further)


def test_what_is_done_again_after_a_roll_back_is_no_goodput_and_no_throughput(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(60).run(30, 60, step=30, epoch=2).run(30, 90, step=60, epoch=2).write()
    (line,) = cluster.overview(watch(120), since=T0, until=T0 + 120).jobs
    assert line.goodput == pytest.approx(0.75, abs=0.02)
    assert line.tokens_per_s == pytest.approx(90 * 4 * 512 / 120)


def test_a_step_that_one_worker_has_not_completed_does_not_count(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(30).run(1, 30, silent=("node-b",)).write()
    (line,) = cluster.overview(watch(31), since=T0, until=T0 + 31).jobs
    assert line.step == 29


def test_a_job_that_is_over_is_told_from_its_numbers(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(30).write()
    (line,) = cluster.overview(watch(30), since=T0, until=T0 + 30).jobs
    assert (line.state, line.nodes, line.workers, line.step) == ("over", 2, 4, 29)


def test_a_job_without_a_step_for_a_minute_is_stalled(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(30).run(90, 30, idle=True).write()
    ledger.save_job(JOB, two_nodes(), "127.0.0.1:1", "restart:3", 3)
    assert [line.state for line in cluster.overview(watch(120), since=T0, until=T0 + 120).jobs] == ["stalled"]


def test_a_node_is_healthy_silent_suspect_healing_or_cordoned_and_says_why(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.nodes = ("node-a", "node-b", "node-c", "node-d", "node-e")
    recorded.run(20).run(40, 20, silent=("node-b",)).write()
    ledger.save_incident(on("node-c", "open one"), IncidentState.OPEN)
    ledger.save_incident(on("node-d", "healing one", cause="slow node"), IncidentState.OPEN)
    ledger.move_incident("healing one", IncidentState.HEALING, T0 + 55)
    ledger.cordon("node-e", JOB, "plan-7", T0 + 50, "slow node")
    overview = cluster.overview(watch(60), since=T0, until=T0 + 60)
    assert [(line.node, line.health) for line in overview.nodes] == [
        ("node-c", "suspect"), ("node-d", "healing"), ("node-e", "cordoned"), ("node-b", "silent"), ("node-a", "healthy"),
    ]  # fmt: skip
    assert {line.node: line.why for line in overview.nodes}["node-b"] == "no number for 40 s"
    assert {line.node: line.incident for line in overview.nodes}["node-c"] == "open one"
    assert overview.counts == {"suspect": 1, "healing": 1, "cordoned": 1, "silent": 1, "healthy": 1}
    assert overview.jobs[0].open_incidents == 2


def test_an_incident_that_is_healed_leaves_its_node_healthy(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(30).write()
    ledger.save_incident(on("node-b"), IncidentState.OPEN)
    ledger.move_incident("incident-1", IncidentState.HEALED, T0 + 29)
    assert cluster.overview(watch(30), since=T0, until=T0 + 30).counts["healthy"] == 2


def test_without_a_history_the_ledger_alone_tells(watch: Watch, ledger: Ledger) -> None:
    ledger.save_job(JOB, two_nodes(), "127.0.0.1:1", "restart:3", 3)
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    for sources in (watch(30, enabled=False), watch(30)):
        overview = cluster.overview(sources, since=T0, until=T0 + 30)
        assert [(line.node, line.health) for line in overview.nodes] == [("node-a", "suspect"), ("node-b", "healthy")]
        assert np.isnan(overview.jobs[0].goodput)


def test_a_heat_map_has_a_row_for_each_node_and_a_column_for_each_gpu(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(30).write()
    heat = cluster.heat(watch(30), metric="power_watts", table="gpu/gpu", since=T0 + 10, until=T0 + 21)
    assert (heat.nodes, heat.slots, heat.unit) == (["node-a", "node-b"], ["0", "1"], "W")
    assert heat.values.tolist() == [[115.0, 215.0], [115.0, 215.0]]
    assert heat.entities[1][0] == "GPU-node-b-0"
    moment = cluster.heat(watch(30), metric="power_watts", table="gpu/gpu", at=T0 + 20)
    assert moment.values[0, 0] == pytest.approx(114.5)
    single = cluster.heat(watch(30), metric="cpu_percent", table="node/host", at=T0 + 20)
    assert (single.slots, single.values.tolist()) == ([""], [[50.0], [10.0]])


def test_metrics_say_their_table_and_unit_gpus_first(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(30).write()
    assert [(each.table, each.name, each.unit) for each in cluster.metrics(watch(30))] == [("gpu/gpu", "power_watts", "W"), ("node/host", "cpu_percent", "%")]


def test_what_is_not_there_yet_is_said_with_what_to_do(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    with pytest.raises(NoHistory, match="no number has been written"):
        cluster.metrics(watch(0))
    with pytest.raises(NoHistory, match=r"history.enabled = true"):
        cluster.metrics(watch(0, enabled=False))
    recorded.run(30).write()
    with pytest.raises(NoHistory, match="no metric of this time"):
        cluster.heat(watch(30), metric="power_watts", table="gpu/gpu", at=T0 + 5000)
    with pytest.raises(NoHistory, match="no metric 'nonsense'"):
        cluster.heat(watch(30), metric="nonsense", table="gpu/gpu", at=T0 + 10)


def test_without_a_ledger_the_remedy_is_said(tmp_path: Path) -> None:
    sources = Sources(Config(state_dir=str(tmp_path / "nowhere")))
    with pytest.raises(NoLedger, match=r"there is no ledger at .*start `eagle-eye server`"):
        cluster.overview(sources, since=T0, until=T0 + 1)


# --- a job -------------------------------------------------------------------------------------------------------------


def test_the_timeline_of_a_job_has_loss_pace_throughput_and_phases(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(60).write()
    timeline = job.timeline(watch(60), JOB, since=T0, until=T0 + 60)
    assert len(timeline.times) == 60
    assert timeline.loss[9] == pytest.approx(1.0)
    assert timeline.step_s[0] == pytest.approx(1.0)
    assert timeline.tokens_per_s[0] == pytest.approx(2048.0)
    assert {name: values[5] for name, values in timeline.phases.items()} == {"forward": pytest.approx(0.5), "communication": pytest.approx(0.5)}
    assert timeline.steps[-1] == 59
    assert timeline.goodput[-1] == pytest.approx(1.0, abs=0.02)


def test_a_long_timeline_is_no_longer_than_can_be_shown(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(200).write()
    timeline = job.timeline(watch(200), JOB, since=T0, until=T0 + 200, points=20)
    assert len(timeline.times) == 20
    assert timeline.steps[-1] == 199


def test_a_gap_breaks_the_lines_and_costs_goodput(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(60).run(60, 60, idle=True).run(60, 120, step=60).write()
    timeline = job.timeline(watch(180), JOB, since=T0, until=T0 + 180)
    (gap,) = np.flatnonzero(np.isnan(timeline.loss))
    assert T0 + 60 < timeline.times[gap] < T0 + 120
    assert timeline.goodput[gap] == pytest.approx(0.5, abs=0.05)
    assert timeline.goodput[-1] == pytest.approx(1.0, abs=0.05)


def unlogged(recorded: RecordedJob, second: int, *, steps: bool = True, **printed: float) -> None:
    """A second of a script that logs no loss and no tokens, and prints these values."""
    workers = (worker("node-a", 0), worker("node-a", 1))
    told: list[Reading | StepReading] = [Reading(source="training", kind=Kind.WORKER, entities=workers, names=("marks",), matrix=np.full((2, 1), second, np.float32), time=T0 + second)]
    if steps:
        told.append(StepReading(source="training", workers=workers, names=("step_s",), numbers=np.array([second]), epochs=np.array([1]), ends=np.full((1, 2), T0 + second + 0.9), values=np.full((1, 2, 1), 0.5)))
    if printed:
        row = np.array([list(printed.values()), [np.nan] * len(printed)], np.float32)
        told.append(Reading(source="job_log", kind=Kind.WORKER, entities=workers, names=tuple(f"printed_{name}" for name in printed), matrix=row, time=T0 + second))
    recorded.tell("node-a", second, *told)


def test_what_a_script_does_not_log_is_taken_from_what_its_workers_print(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    for second in range(60):
        unlogged(recorded, second, **({"loss": 10.0 - second / 10, "grad_norm": 0.5, "gpu_tokens_per_s": 100.0, "iteration_s": 9.0} if second % 10 == 5 else {}))
    recorded.write()
    timeline = job.timeline(watch(60), JOB, since=T0, until=T0 + 60)
    assert timeline.printed == ("loss", "grad_norm", "tokens_per_s")
    assert np.isnan(timeline.loss[:4]).all(), "nothing was printed yet"
    assert timeline.loss[30] == pytest.approx(10.0 - 2.5)  # printed at 25 s, and valid until 35 s
    assert timeline.loss[36] == pytest.approx(10.0 - 3.5)
    assert timeline.grad_norm is not None
    assert timeline.grad_norm[30] == pytest.approx(0.5)
    assert timeline.tokens_per_s[30] == pytest.approx(200.0)  # two workers
    assert timeline.step_s[30] == pytest.approx(0.5)  # the script's own


def test_twin_what_a_script_logs_is_not_replaced_by_what_its_workers_print(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(30)
    for second in range(30):
        unlogged(recorded, second, steps=False, loss=99.0, tokens_per_s=1.0)
    timeline = job.timeline(watch(30), JOB, since=T0, until=T0 + 30) if recorded.write() else None
    assert timeline is not None
    assert timeline.printed == ()
    assert timeline.loss[9] == pytest.approx(1.0)
    assert timeline.tokens_per_s[0] == pytest.approx(2048.0)


def test_a_job_that_tells_no_step_is_shown_as_it_prints(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    for second in range(30):
        unlogged(recorded, second, steps=False, step=100.0 + second, loss=2.0, tokens_per_s=800.0)
    recorded.write()
    timeline = job.timeline(watch(30), JOB, since=T0, until=T0 + 30)
    assert (len(timeline.times), timeline.steps[-1], timeline.printed) == (30, 129.0, ("loss", "tokens_per_s"))
    assert timeline.grad_norm is None
    assert np.isnan(timeline.goodput).all(), "steps are not known, so neither is what they are of the time"


def test_incidents_and_epochs_are_marked(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(30).run(30, 40, step=30, epoch=2).write()
    ledger.save_incident(an_incident(since=T0 + 30, time=T0 + 31), IncidentState.OPEN)
    timeline = job.timeline(watch(70), JOB, since=T0, until=T0 + 70)
    assert [(mark.what, mark.text, mark.incident) for mark in timeline.marks] == [
        ("incident", "worker killed: worker 0 on node-a", "incident-1"), ("epoch", "epoch 2 begins", ""),
    ]  # fmt: skip


def test_a_job_that_did_nothing_in_this_time_has_an_empty_timeline_and_one_that_nobody_knows_is_not_there(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.run(30).write()
    ledger.save_job(JOB, a_layout(), "127.0.0.1:1", "none", 0)
    assert job.timeline(watch(5000), JOB, since=T0 + 4000, until=T0 + 5000).empty
    with pytest.raises(NothingFound, match="no job 'team/nothing/run'"):
        job.timeline(watch(30), "team/nothing/run", since=T0, until=T0 + 30)


def test_a_straggler_jumps_out_of_the_workers(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    recorded.slow = {worker("node-b", 1): 3.0}
    recorded.run(60).write()
    heat = job.workers(watch(60), JOB, since=T0, until=T0 + 60)
    assert heat.workers == [worker(node, slot) for node in ("node-a", "node-b") for slot in (0, 1)]
    assert heat.total == 4
    assert np.nanmean(heat.values, axis=1) == pytest.approx([0.5, 0.5, 0.5, 1.5])
    alike = job.workers(watch(60), JOB, since=T0, until=T0 + 60, metric="step_s")
    assert np.nanmean(alike.values, axis=1) == pytest.approx([2.0] * 4)


def test_of_more_workers_than_can_be_shown_the_slowest_are(watch: Watch, ledger: Ledger, recorded: RecordedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "MOST_WORKERS", 1)
    monkeypatch.setattr(job, "FEW_WORKERS", 1)
    recorded.slow = {worker("node-b", 0): 2.0}
    recorded.run(30).write()
    heat = job.workers(watch(30), JOB, since=T0, until=T0 + 30)
    assert (heat.workers, heat.total) == ([worker("node-b", 0)], 4)
    assert np.nanmean(heat.values) == pytest.approx(1.0)
    assert np.nanmean(heat.peers) == pytest.approx(0.5), "its peers are all, not only those that are shown"


def test_a_step_counts_until_the_one_before_it_and_a_pause_stays_empty() -> None:
    nan = np.nan
    row = np.array([[nan, 1.0, nan, nan, 2.0, nan, nan, 3.0, *[nan] * 15, 4.0, nan]], np.float32)
    expected = [nan, 1, 2, 2, 2, 3, 3, 3, *[nan] * 4, *[4] * 12, nan]
    assert np.isnan(job.held_back(row)[0][8:12]).all()
    np.testing.assert_array_equal(job.held_back(row)[0], np.array(expected, np.float32))


# --- evidence ----------------------------------------------------------------------------------------------------------


def test_evidence_shows_the_accused_beside_the_others_around_the_fault(watch: Watch, ledger: Ledger, recorded: RecordedJob) -> None:
    accused = worker("node-a", 0)
    recorded.slow = {accused: 3.0}
    recorded.run(120).write()
    found = an_incident(cause="slow worker", culprits=(Culprit(entity=Entity(kind=Kind.WORKER, name=accused), confidence=0.9),), since=T0 + 60, time=T0 + 62)
    ledger.save_incident(found, IncidentState.OPEN)
    sources = watch(120)
    plots = {plot.title: plot for plot in incident.plots(sources, incident.story(sources, "incident-1"))}
    compute = plots["Compute time of a step"]
    assert np.nanmedian(compute.series[accused]) == pytest.approx(1.5)
    assert np.nanmedian(compute.series[evidence.OTHERS]) == pytest.approx(0.5)
    assert compute.mark == T0 + 60
    assert "Step time, slowest worker" in plots, "what it did to the job"
    assert len(plots) <= evidence.MOST_PLOTS
    assert set(plots["Cpu"].series) == {"node-a", evidence.OTHERS}


def test_without_numbers_there_are_no_plots_and_no_error(watch: Watch, ledger: Ledger) -> None:
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    for sources in (watch(0), watch(0, enabled=False)):
        assert incident.plots(sources, incident.story(sources, "incident-1")) == ()
