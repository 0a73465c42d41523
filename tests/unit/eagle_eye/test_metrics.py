"""What Prometheus is shown."""

import math
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from eagle_eye.clock import FakeClock
from eagle_eye.ledger import Ledger
from eagle_eye.metrics import Metrics, PartitionMetrics, ProcessMetrics
from eagle_eye.types import Allow, Breaker, Entity, Event, IncidentState, Kind, Outcome, Refuse
from eagle_eye.types.job_snapshot import JobSnapshot, SnapshotStep
from fakes.sample_values import JOB, a_layout, a_plan, an_incident

T0 = 1000.0


def step(number: int, end: float, *, epoch: int = 1, step_s: float | None = 1.0, tokens: float | None = 100.0) -> SnapshotStep:
    return SnapshotStep(number=number, epoch=epoch, end=end, workers=4, tokens=tokens, step_s=step_s)


def snapshot(time: float, *steps: SnapshotStep, job: str = JOB, events: tuple[Event, ...] = ()) -> JobSnapshot:
    return JobSnapshot(job=job, generation=1, number=round(time * 10), time=time, tick=True, steps=steps, events=events, layout=a_layout() if steps else None)


def event(name: str, time: float = T0, *, node: str = "n1", **attributes: str) -> Event:
    entity = Entity(kind=Kind.JOB, name=JOB)
    return Event(name=name, job=JOB, entity=entity, time=time, node=node, incarnation="b", number=1, attributes=attributes)


class Shown:
    """One scrape, as a scraper reads it."""

    def __init__(self, metrics: Metrics) -> None:
        body, content_type = metrics.scrape()
        assert content_type.startswith("text/plain")
        self.text = body.decode()
        self.families = {family.name: family for family in text_string_to_metric_families(self.text)}

    def __call__(self, name: str, **labels: str) -> float:
        found = [each.value for family in self.families.values() for each in family.samples if each.name == name and matches(each.labels, labels)]
        return found[0] if len(found) == 1 else math.nan


def matches(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return wanted.items() <= labels.items()


@pytest.fixture
def metrics(ledger: Ledger) -> Metrics:
    return Metrics(lambda: ProcessMetrics(role="all", leads=True, leads_since=T0, term=3), ledger, FakeClock(T0))


def test_a_job_that_always_steps_has_a_goodput_of_one_and_one_that_stands_half_the_time_a_half(metrics: Metrics) -> None:
    for second in range(100):
        metrics.observe_job(snapshot(T0 + second + 1, step(second, T0 + second + 1)))
        ends = [step(second, T0 + second + 1)] if second % 2 == 0 else []
        metrics.observe_job(snapshot(T0 + second + 1, *ends, job="t/half/r"))
    shown = Shown(metrics)
    assert shown("eagle_eye_job_goodput_ratio", job=JOB) == pytest.approx(1.0, abs=0.01)
    assert shown("eagle_eye_job_goodput_ratio", job="t/half/r") == pytest.approx(0.5, abs=0.02)
    assert shown("eagle_eye_job_steps_total", job=JOB) == 100
    assert shown("eagle_eye_job_tokens_total", job=JOB) == 10_000
    assert shown("eagle_eye_job_step_seconds", job=JOB) == 1.0


def test_what_is_done_again_after_a_roll_back_is_no_goodput(metrics: Metrics) -> None:
    for second in range(10):
        metrics.observe_job(snapshot(T0 + second + 1, step(second, T0 + second + 1)))
    for second in range(10, 20):
        metrics.observe_job(snapshot(T0 + second + 1, step(second - 10, T0 + second + 1, epoch=2)))
    shown = Shown(metrics)
    assert shown("eagle_eye_job_steps_total", job=JOB) == 10
    assert shown("eagle_eye_job_repeated_steps_total", job=JOB) == 10
    assert shown("eagle_eye_job_tokens_total", job=JOB) == 1000
    assert shown("eagle_eye_job_goodput_ratio", job=JOB) == pytest.approx(0.5, abs=0.02)
    assert shown("eagle_eye_job_epoch", job=JOB) == 2


def test_a_step_counts_no_more_time_than_has_passed(metrics: Metrics) -> None:
    metrics.observe_job(snapshot(T0 + 1, step(1, T0 + 1)))
    metrics.observe_job(snapshot(T0 + 2, step(2, T0 + 2, step_s=50.0)))
    assert Shown(metrics)("eagle_eye_job_productive_seconds_total", job=JOB) == 2.0


def test_a_step_without_a_duration_of_its_own_counts_since_the_one_before(metrics: Metrics) -> None:
    for second in range(4):
        metrics.observe_job(snapshot(T0 + second, step(second, T0 + second, step_s=None, tokens=None)))
    shown = Shown(metrics)
    assert shown("eagle_eye_job_productive_seconds_total", job=JOB) == 3.0
    assert shown("eagle_eye_job_tokens_total", job=JOB) == 0.0


def test_time_after_the_end_of_a_job_is_not_lost_and_the_job_is_forgotten_later(metrics: Metrics) -> None:
    metrics.observe_job(snapshot(T0 + 1, step(1, T0 + 1)))
    metrics.observe_job(snapshot(T0 + 2, events=(event("job.finished", T0 + 1.5),)))
    metrics.observe_job(snapshot(T0 + 60))
    assert Shown(metrics)("eagle_eye_job_goodput_ratio", job=JOB) == pytest.approx(1.0)
    assert Shown(metrics)("eagle_eye_job_ended", job=JOB) == 1.0
    metrics.observe_job(snapshot(T0 + 1000))
    assert math.isnan(Shown(metrics)("eagle_eye_job_ended", job=JOB))


def test_a_node_without_a_job_is_no_job(metrics: Metrics) -> None:
    metrics.observe_job(snapshot(T0, job="idle/n1"))
    assert "idle/n1" not in Shown(metrics).text


def test_the_number_of_jobs_shown_is_bounded(metrics: Metrics) -> None:
    for number in range(600):
        metrics.observe_job(snapshot(T0, step(1, T0), job=f"t/j{number}/r"))
    shown = Shown(metrics).families["eagle_eye_job_steps"].samples
    assert len(shown) == 500
    assert {"job": "t/j599/r"} in [each.labels for each in shown]


def test_events_collectors_and_drops_are_counted_with_bounded_labels(metrics: Metrics) -> None:
    metrics.observe_events([event("collector.failing", collector="gpu"), event("collector.failing", collector="gpu", node="n2")])
    metrics.observe_events([event("collector.failing", collector="gpu"), event("collector.recovered", collector="gpu"), event("spool.dropped", count="7")])
    metrics.observe_events([event(f"strange.{number}") for number in range(200)])
    shown = Shown(metrics)
    assert shown("eagle_eye_collector_failures_total", collector="gpu") == 2
    assert shown("eagle_eye_collectors_failing", collector="gpu") == 1
    assert shown("eagle_eye_node_dropped_records_total") == 7
    assert shown("eagle_eye_events_total", event="other") > 100
    assert len(shown.families["eagle_eye_events"].samples) <= 65


def test_a_node_on_which_a_collector_leaves_several_things_out_is_one_node(metrics: Metrics) -> None:
    metrics.observe_events([event("collector.failing", collector="training", about=thing) for thing in ("worker a", "worker b")])
    assert Shown(metrics)("eagle_eye_collectors_failing", collector="training") == 1
    metrics.observe_events([event("collector.recovered", collector="training", about="worker a")])
    assert Shown(metrics)("eagle_eye_collectors_failing", collector="training") == 1
    metrics.observe_events([event("collector.recovered", collector="training", about="worker b")])
    assert Shown(metrics)("eagle_eye_collectors_failing", collector="training") == 0


def test_the_ledger_is_counted_once_and_only_what_came_since_this_process_leads(metrics: Metrics, ledger: Ledger) -> None:
    ledger.save_incident(an_incident(id="old", time=T0 - 50), IncidentState.OPEN)
    ledger.save_incident(an_incident(id="new", time=T0 + 5, cause="node lost"), IncidentState.OPEN)
    plan = a_plan("p1")
    ledger.save_outcome(Outcome(plan="p1", incident="new", action="restart_worker", state="done", time=T0 + 9, detection_s=0.7))
    ledger.save_outcome(Outcome(plan="p0", incident="old", action="restart_worker", state="done", time=T0 - 9, detection_s=0.7))
    ledger.save_verdict(plan, Allow(guard="duplicates"), T0 + 6)
    ledger.save_verdict(plan, Refuse(guard="blast_radius", reason="too much"), T0 + 6)
    Shown(metrics)
    ledger.save_outcome(Outcome(plan="p1", incident="new", action="restart_worker", state="done", time=T0 + 12, detection_s=0.7, transition_s=4.0))
    ledger.move_incident("new", IncidentState.FAILED, T0 + 13)
    shown = Shown(metrics)
    assert shown("eagle_eye_incidents", state="open", cause="worker killed") == 1
    assert shown("eagle_eye_incidents", state="failed", cause="node lost") == 1
    assert shown("eagle_eye_incidents_opened_total", cause="node lost") == 1
    assert math.isnan(shown("eagle_eye_incidents_opened_total", cause="worker killed"))
    assert shown("eagle_eye_actions_total", action="restart_worker", outcome="done") == 1
    assert shown("eagle_eye_guard_verdicts_total", guard="blast_radius", verdict="refuse") == 1
    assert shown("eagle_eye_detection_seconds_count") == 1
    assert shown("eagle_eye_detection_seconds_bucket", le="0.5") == 0
    assert shown("eagle_eye_detection_seconds_bucket", le="1.0") == 1
    assert shown("eagle_eye_transition_seconds_sum") == 4.0


def test_an_open_breaker_is_shown_until_a_person_closes_it(metrics: Metrics, ledger: Ledger) -> None:
    breaker = Breaker(id="b", job=JOB, action="restart_worker", plan="p", incident="i", reason="did not help", since=T0 - 5)
    ledger.save_suppression(breaker)
    assert Shown(metrics)("eagle_eye_breakers_open", action="restart_worker") == 1
    ledger.save_suppression(Breaker(id="b", job=JOB, action="restart_worker", plan="p", incident="i", reason="did not help", since=T0 - 5, until=T0 - 1, person="ada"))
    assert math.isnan(Shown(metrics)("eagle_eye_breakers_open", action="restart_worker"))


def test_a_process_that_stands_by_shows_nothing_of_the_ledger(ledger: Ledger) -> None:
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    shown = Shown(Metrics(lambda: ProcessMetrics(role="lead", leads=False, term=7), ledger, FakeClock(T0)))
    assert "eagle_eye_incidents" not in shown.text
    assert shown("eagle_eye_leader", role="lead") == 0
    assert shown("eagle_eye_leader_term") == 7


def test_a_ledger_that_is_away_leaves_the_rest_to_be_shown(metrics: Metrics, ledger: Ledger, tmp_path) -> None:
    ledger.save_incident(an_incident(time=T0 + 1), IncidentState.OPEN)
    Shown(metrics)
    ledger.close()
    (tmp_path / "ledger.sqlite").write_bytes(b"no database" * 1000)
    shown = Shown(metrics)
    assert shown("eagle_eye_incidents", state="open") == 1
    assert shown("eagle_eye_leader") == 1


def with_a_partition(ledger: Ledger) -> Metrics:
    partition = PartitionMetrics(
        partition=2, lag_records=5, lag_s=1.5, last_tick=math.nan, records=10, frames=3, marks=4, findings=0, incidents=0, dead_letters=1
    )
    figures = ProcessMetrics(role="all", leads=True, leads_since=T0, partitions=(partition,), sessions={"agent": 3}, stream_away=True, dropped=4, clocks={"node-a": -30.5, **{f"n{each}": 4.0 for each in range(60)}})
    return Metrics(lambda: figures, ledger, FakeClock(T0))


def test_partitions_sessions_and_spools_are_shown(ledger: Ledger) -> None:
    shown = Shown(with_a_partition(ledger))
    assert shown("eagle_eye_partition_lag_records", partition="2") == 5
    assert shown("eagle_eye_partition_lag_seconds", partition="2") == 1.5
    assert shown("eagle_eye_partition_dead_letters_total", partition="2") == 1
    assert math.isnan(shown("eagle_eye_partition_last_tick_timestamp_seconds", partition="2"))
    assert (shown("eagle_eye_sessions", peer="agent"), shown("eagle_eye_sessions", peer="launcher")) == (3, 0)
    assert (shown("eagle_eye_stream_unavailable"), shown("eagle_eye_spool_dropped_records_total")) == (1, 4)


def test_of_clocks_that_are_off_the_farthest_are_shown(ledger: Ledger) -> None:
    shown = Shown(with_a_partition(ledger))
    assert shown("eagle_eye_node_clock_offset_seconds", node="node-a") == -30.5
    assert len(shown.families["eagle_eye_node_clock_offset_seconds"].samples) == 50


def test_a_scrape_of_a_full_house_is_small(ledger: Ledger) -> None:
    """Aggregates only: what 500 jobs and 64 partitions show does not depend on how many GPUs they have."""
    metrics = with_a_partition(ledger)
    for number in range(500):
        metrics.observe_job(snapshot(T0, step(1, T0), job=f"t/j{number}/r"))
    assert len(Shown(metrics).text.splitlines()) < 7000
