"""Figures and pieces of pages: what a reader must be able to see in them."""

from dataclasses import replace
from datetime import UTC
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from dashboard import html
from dashboard.figures import figure_style
from dashboard.figures.colours import DARK, LIGHT
from dashboard.figures.heat_map import heat_map, limits, one_per_node
from dashboard.figures.job_timeline import job_timeline
from dashboard.figures.prediction_figure import PredictionPair, prediction_figure
from dashboard.figures.worker_map import beside_peers, slowest, worker_map
from dashboard.pages.cluster import usual
from dashboard.queries.cluster import Heat, HeatMetric
from dashboard.queries.job import JobTimeline, TimelineMark, WorkerHeat


def heat(nodes: int, slots: int = 8) -> Heat:
    values = np.full((nodes, slots), 400, np.float32)
    values[nodes // 2, slots - 1] = 100
    names = [f"node-{node:05d}" for node in range(nodes)]
    return Heat(metric="power_watts", unit="W", nodes=names, slots=[str(slot) for slot in range(slots)], values=values, entities=[[f"GPU-{name}-{slot}" for slot in range(slots)] for name in names])


def timeline(marks: tuple[TimelineMark, ...] = ()) -> JobTimeline:
    times = np.array([100.0, 101.0, np.nan, 110.0])
    numbers = np.array([2.0, 1.9, np.nan, 1.5])
    return JobTimeline(times=times, loss=numbers, step_s=numbers, tokens_per_s=numbers * 1000, phases={"forward": numbers / 3, "communication": numbers / 2}, goodput=np.array([0.9, 0.9, 0.5, 0.6]), epochs=numbers, steps=numbers, marks=marks)


def said_of(figure) -> list[str]:
    return figure.data[0].customdata.ravel().tolist()


@pytest.mark.parametrize("nodes", [4, 200, 10_000])
def test_the_odd_gpu_of_a_cluster_of_any_size_is_drawn_and_names_its_node(nodes):
    figure = heat_map(heat(nodes), LIGHT)
    cells = figure.data[0]
    odd = cells.customdata[cells.z == 100].tolist()
    assert len(odd) == 1
    assert f"node-{nodes // 2:05d}" in odd[0]
    assert cells.hovertemplate == "%{customdata}<br><b>%{z:.3~r}\u202fW</b><extra></extra>"


def test_ten_thousand_nodes_stay_one_small_picture():
    figure = heat_map(heat(10_000), DARK)
    assert figure.layout.height <= 400
    assert len(figure.to_json()) < 400_000
    assert len({word for word in said_of(figure) if word}) == 10_000, "every node is there"


def test_a_node_with_one_odd_gpu_is_not_averaged_away():
    assert one_per_node(np.array([[400, 400, 100], [400, 410, 400]], np.float32)).tolist() == [100, 410]


def test_a_node_that_tells_nothing_stays_empty():
    assert np.isnan(one_per_node(np.array([[np.nan, np.nan], [1, 1]], np.float32))[0])


def test_noise_is_not_made_a_picture():
    low, high = limits(np.array([400.0, 401.0], np.float32))
    assert high - low >= 40
    assert limits(np.array([400.0, 100.0, 400.0], np.float32)) == (100.0, 700.0)
    assert limits(np.array([np.nan], np.float32)) == (0.0, 1.0)


def test_what_is_alike_on_all_nodes_is_not_what_is_shown_first():
    power, processors, memory = (HeatMetric(table, name, "") for table, name in (("gpu/gpu", "power_watts"), ("node/host", "cpu_percent"), ("node/host", "memory_percent")))
    busy = replace(heat(2, 1), values=np.array([[100.0], [99.9]], np.float32))
    told = {power: heat(4), processors: busy, memory: replace(busy, values=np.array([[40.0], [60.0]], np.float32))}

    def first(*found: HeatMetric) -> HeatMetric:
        return found[usual(found, lambda metric: told[metric].flat)]

    assert first(memory, processors, power) == power
    assert first(processors, memory) == memory
    assert first(processors) == processors
    told[power] = replace(heat(4), values=np.full((4, 8), np.nan, np.float32))
    assert first(power, processors, memory) == memory, "nor is what nobody has told"


def test_a_pause_breaks_the_line_and_marks_say_what_happened():
    marks = (TimelineMark(time=101.0, what="incident", text="slow node: node-c", incident="i"), TimelineMark(time=105.0, what="heal", text="restart", incident="i"))
    figure = job_timeline(timeline(marks), LIGHT, UTC, since=100.0, until=110.0)
    loss = next(trace for trace in figure.data if trace.name == "Loss")
    assert loss.y[2] is None
    points = next(trace for trace in figure.data if trace.name == "what happened")
    assert list(points.customdata) == ["slow node: node-c", "restart"]
    assert {trace.name for trace in figure.data if trace.stackgroup} == {"forward", "communication"}


def test_hundreds_of_marks_are_few_traces():
    marks = tuple(TimelineMark(time=100.0 + number, what="incident", text="x", incident=str(number)) for number in range(400))
    figure = job_timeline(timeline(marks), LIGHT, UTC, since=100.0, until=500.0)
    assert len(figure.layout.shapes) == 0
    assert len(figure.data) < 15


def test_times_stand_in_the_readers_zone():
    assert figure_style.moments([0.0, float("nan")], ZoneInfo("Asia/Tokyo")) == ["1970-01-01 09:00:00.000", ""]


def workers(values: np.ndarray) -> WorkerHeat:
    names = [f"run/node-{row}/0" for row in range(len(values))]
    peers = np.median(values, axis=0).astype(np.float32)
    return WorkerHeat(metric="compute_s", unit="s", times=np.arange(values.shape[1], dtype=float), workers=names, values=values.astype(np.float32), peers=peers, every=15.0, total=len(names))


def test_a_straggler_is_named_and_a_slow_moment_of_all_is_not():
    values = np.ones((4, 40))
    values[:, 30:] = 3.0
    assert slowest(workers(values)) == ("run/node-0/0", 1.0)
    values[2, 30:] = 5.4
    name, times = slowest(workers(values))
    assert name == "run/node-2/0"
    assert times == pytest.approx(1.8)
    assert beside_peers(workers(values))[0, 35] == 1.0
    assert "node-2 / 0" in worker_map(workers(values), LIGHT, UTC).layout.yaxis.ticktext


def test_whoever_has_been_slow_for_a_minute_is_named_though_the_newest_columns_are_not_written_yet():
    values = np.ones((4, 240))
    values[1, 230:236] = 1.8
    values[:, 236:] = np.nan
    assert slowest(workers(values)) == ("run/node-1/0", pytest.approx(1.8))


def test_two_workers_never_share_a_line():
    values = np.ones((2, 4))
    alike = replace(workers(values), workers=["run-1/node-0/0", "run-2/node-0/0"])
    assert list(worker_map(alike, LIGHT, UTC).data[0].y) == alike.workers


def test_workers_that_told_nothing_make_no_figure_fail():
    assert slowest(workers(np.full((2, 5), np.nan))) is None
    worker_map(workers(np.full((2, 5), np.nan)), DARK, UTC)


def test_the_books_lay_predicted_beside_actual():
    figure = prediction_figure([PredictionPair("restart worker", 5.0, 5.3)], LIGHT, "s")
    assert {trace.name: list(trace.x) for trace in figure.data} == {"predicted": [5.0], "actual": [5.3]}


def test_what_came_over_a_wire_is_never_markup():
    row = ("<script>alert(1)</script>", html.link("<b>", "incident", incident='"><b>'))
    table = html.table((html.Column("Job"), html.Column("Link")), [row])
    assert "<script" not in table
    assert "<b>" not in table
    assert 'href="incident?incident=%22%3E%3Cb%3E"' in table


def test_a_gradient_norm_lies_over_the_loss_with_an_axis_of_its_own_and_is_named():
    plain, with_norm = (job_timeline(each, LIGHT, UTC, since=100.0, until=110.0) for each in (timeline(), replace(timeline(), grad_norm=np.array([0.5, 0.4, np.nan, 0.3]))))
    (norm,) = [trace for trace in with_norm.data if trace.name == "Gradient norm"]
    assert (norm.yaxis, list(norm.y)[:2], with_norm.layout.yaxis7.overlaying) == ("y7", [0.5, 0.4], "y")
    assert "gradient norm" in with_norm.layout.annotations[0].text
    assert "gradient norm" not in plain.layout.annotations[0].text
    assert not [trace for trace in plain.data if trace.name == "Gradient norm"]
