"""`eagle-eye evaluate` on data sets of metrics, made up and of a few rows."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from eagle_eye.app.evaluation.figures import Figure, figures_of
from eagle_eye.errors import DataSetError

ALERT = 10_000.0


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def shop(folder: Path, cause: str, *, metric: str = "latency", scenario: str = "low_traffic") -> None:
    """A site that calls a search and a payment; from the interval of the alert on the search is slow, or its calls fail, and the site with it."""
    usual, struck = (1.0, 3.0) if metric == "latency" else (100.0, 50.0)
    names = ["site", "search", "pay"]
    heads = [["microservice", *names * 2], ["metric", *[metric] * 3, *["requests"] * 3], ["statistic", *["Average"] * 3, *["Sum"] * 3], ["unix_timestamp", *[""] * 6]]
    rows = [[f"{ALERT + 300.0 * number}", *map(str, (value, value, usual, 90, 90, ""))] for number, value in ((-2, usual), (-0.5, struck), (0.5, struck))]
    write(folder / scenario / "issue_0.metrics.csv.gz", "\n".join(map(",".join, heads + rows)))
    write(folder / scenario / "graph.csv", ",site,search,pay\nsite,0,1,1\nsearch,0,0,0\npay,0,0,0\n")
    target = {"node": "site", "metric": metric, "agg": "Average", "timestamp": ALERT}
    write(folder / "issues.json", json.dumps([{"scenario": scenario, "issue": "issue_0", "target": target, "root_cause": {"node": cause, "metric": None}}]))


def only(data: Path, name: str) -> Figure:
    (found,) = figures_of(data, name)
    return found


@pytest.mark.parametrize("metric", ["latency", "availability"])
def test_the_component_that_the_others_wait_for_is_ranked_first(tmp_path: Path, metric: str) -> None:
    shop(tmp_path / "petshop_rca", "search", metric=metric)
    found = only(tmp_path, "petshop_rca")
    assert (found.figure, found.met) == ("1.000, 1.000", True)


def test_a_root_cause_that_is_ranked_second_counts_among_the_first_three_alone(tmp_path: Path) -> None:
    shop(tmp_path / "petshop_rca", "site", scenario="temporal_traffic2")
    found = only(tmp_path, "petshop_rca")
    assert (found.figure, found.met) == ("0.000, 1.000", False)
    assert found.what.startswith("temporal traffic latency: 1 incidents")


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("low_traffic/issue_0.metrics.csv.gz", "microservice,a\nmetric,latency\n", "issue_0.metrics.csv.gz: "), ("low_traffic/graph.csv", ",a\nb\n", "graph.csv: no matrix"),
        ("issues.json", '[{"scenario": "low_traffic", "issue": "issue_0", "target": {}, "root_cause": {}}]', "issues.json: issue_0: target or root cause of another form"),
    ],
)  # fmt: skip
def test_a_torn_file_of_the_shop_is_named(tmp_path: Path, file: str, text: str, told: str) -> None:
    shop(tmp_path / "petshop_rca", "search")
    write(tmp_path / "petshop_rca" / file, text)
    with pytest.raises(DataSetError, match="copy the data set again") as raised:
        only(tmp_path, "petshop_rca")
    assert told in str(raised.value)


def powers(folder: Path, *, sick: int | None = None, nodes: int = 4) -> None:
    """Nodes that train for 40 readings, each with a little noise; the power of a sick one falls late."""
    rng = np.random.default_rng(4)
    watts = 6000.0 * np.exp(rng.normal(0.0, 0.01, (nodes, 40)))
    if sick is not None:
        watts[sick, 30:] *= 0.5
    folder.mkdir(parents=True)
    np.savez(folder / "run.npz", ac_time_ms=np.tile(1_000_000 + 2000 * np.arange(40), (nodes, 1)), ac_watt=watts.astype(np.float32))


def test_faults_that_are_written_into_healthy_power_are_found_and_nobody_is_named_without_them(tmp_path: Path) -> None:
    powers(tmp_path / "mlperf_power")
    healthy, found, culprit, delay = figures_of(tmp_path, "mlperf_power")
    assert healthy.figure == "incidents with a culprit: 0; that act: 0; nodes that a finding is about: 0"
    assert (found.what, found.figure, culprit.figure[:5]) == ("16 faults injected: found", "1.000", "1.000")
    assert (delay.met, delay.figure) == (True, "median 8 s, longest 10 s; 0 of 16 later than 10 s")


def test_a_run_that_is_not_healthy_shows(tmp_path: Path) -> None:
    powers(tmp_path / "mlperf_power", sick=2)
    healthy = next(figures_of(tmp_path, "mlperf_power"))
    assert healthy.figure.endswith("nodes that a finding is about: 1")


def test_a_torn_run_is_named(tmp_path: Path) -> None:
    powers(tmp_path / "mlperf_power")
    np.savez(tmp_path / "mlperf_power" / "run.npz", ac_time_ms=np.zeros(3), ac_watt=np.zeros((2, 3)))
    with pytest.raises(DataSetError, match="its times and powers"):
        list(figures_of(tmp_path, "mlperf_power"))


def servers(folder: Path, *, explained: int = 2) -> None:
    """Three metrics that follow one load; in the test one of them leaves the others."""
    rng = np.random.default_rng(6)
    load = 4.0 + np.cumsum(rng.normal(0.0, 0.1, 400))[:, None]
    metrics = load * np.array([[1.0, 2.0, 3.0]]) + rng.normal(0.0, 0.05, (400, 3))
    label = np.zeros(200, np.uint8)
    label[100:115] = 1
    metrics[300:315, 1] += 6.0 * (-1.0) ** np.arange(15)
    folder.mkdir(parents=True)
    np.savez(folder / "machine-1.1.npz", train=metrics[:200].astype(np.float32), test=metrics[200:].astype(np.float32), label=label)
    write(folder / "machine-1.1.interpretation.json", json.dumps([{"start": 100, "end": 114, "dims_1based": [explained]}]))


@pytest.mark.parametrize("name", ["smd", "asd"])
def test_a_metric_that_leaves_the_others_is_scored_and_named(tmp_path: Path, name: str) -> None:
    servers(tmp_path / name)
    area, *_, hits = figures_of(tmp_path, name)
    assert (area.met, hits.met, hits.figure) == (True, True, "1.000")
    servers(tmp_path / "wrong" / name, explained=1)
    *_, missed = figures_of(tmp_path / "wrong", name)
    assert (missed.met, missed.figure) == (False, "0.000")


def test_a_torn_explanation_is_named(tmp_path: Path) -> None:
    servers(tmp_path / "asd")
    write(tmp_path / "asd" / "machine-1.1.interpretation.json", '[{"start": 100, "end": 900, "dims_1based": [1]}]')
    with pytest.raises(DataSetError, match="a range is not within the test; copy the data set again"):
        list(figures_of(tmp_path, "asd"))
