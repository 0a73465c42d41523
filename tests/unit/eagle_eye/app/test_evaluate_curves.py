"""`eagle-eye evaluate` on loss curves and series of one metric, made up and short."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from detectors.grad_norm import GradientNorm
from detectors.loss import Loss
from detectors.loss_course import LossCourse
from eagle_eye.app.evaluation.data_sets import nanogpt_speedrun
from eagle_eye.app.evaluation.figures import Figure, figures_of
from eagle_eye.app.evaluation.loss_curves import LossCurve
from eagle_eye.app.evaluation.loss_faults import FAULTS, figures_of_faults
from eagle_eye.errors import DataSetError
from eagle_eye.types import Doubles

DETECTORS = [("loss", Loss()), ("loss_course", LossCourse()), ("grad_norm", GradientNorm())]


def losses(count: int) -> Doubles:
    return 2.0 + 4.0 / np.sqrt(1.0 + np.arange(count) / 50.0) + np.random.default_rng(1).normal(0.0, 0.05, count)


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def mlperf(folder: Path, curve: Doubles) -> None:
    """Two runs: one that logs each step, one that logs few; and one that did not end."""
    write(folder / "runs.csv", "run,run_start_ms,run_stop_ms,status", "0,0,3600000,success", "1,0,1800000,success", "2,0,,")
    write(folder / "steps.csv.gz", "run,time_ms,samples_or_step,loss,step_time_s", *(f"0,{1000 * number},{64 * number},{loss},1.0" for number, loss in enumerate(curve, 1)))
    write(folder / "sparse_loss.csv.gz", "run,time_ms,samples,loss", "1,1000,64,3.0", "1,9000,128,2.5", "2,1000,64,3.0")


def healthy(folder: Path) -> Figure:
    (found,) = figures_of(folder.parent, folder.name)
    return found


def test_healthy_curves_accuse_nobody_and_what_is_told_of_them_is_counted(tmp_path: Path) -> None:
    mlperf(tmp_path / "mlperf_curves", losses(40))
    found = healthy(tmp_path / "mlperf_curves")
    assert (found.what, found.met) == ("2 healthy runs, 1.5 run-hours, 42 losses", True)
    assert found.figure == "incidents with a culprit: 0; that act: 0; findings: none"
    mlperf(tmp_path / "mlperf_curves", np.where(np.arange(40) == 30, 40.0, losses(40)))
    assert healthy(tmp_path / "mlperf_curves").figure.endswith("findings: loss.spike 1")


def test_a_loss_that_stays_infinite_is_an_incident_that_acts_and_one_that_passes_is_none(tmp_path: Path) -> None:
    for last, told in ((30, "0; findings: loss.bad_step 1"), (31, "1; findings: loss.bad_step 1, loss.not_finite 1")):
        mlperf(tmp_path / "mlperf_curves", np.where((np.arange(40) >= 30) & (np.arange(40) <= last), np.inf, losses(40)))
        found = healthy(tmp_path / "mlperf_curves")
        assert (found.met, found.figure) == (last == 30, f"incidents with a culprit: 0; that act: {told}")


def test_a_validation_is_no_step_and_hours_are_those_of_the_times(tmp_path: Path) -> None:
    path = tmp_path / "step_time_runs.csv.gz"
    write(path, "run,step,train_loss,val_loss,train_time_ms,grad_norm", "7,0,,10.8,0,", "7,1,9.5,,1000,", "7,2,9.0,,3000,", "7,2,,5.0,3000,", "7,3,8.5,,4000,")
    (curve,) = nanogpt_speedrun.runs(path)
    assert (curve.steps.tolist(), curve.losses.tolist(), curve.hours) == ([1.0, 2.0, 3.0], [9.5, 9.0, 8.5], 3.0 / 3600.0)
    assert curve.step_s[1:].tolist() == [2.0, 1.0]


@pytest.mark.parametrize(("name", "file"), [("mlperf_curves", "steps.csv.gz"), ("nanogpt_speedrun", "train_loss_runs.csv.gz")])
def test_a_torn_line_is_named(tmp_path: Path, name: str, file: str) -> None:
    mlperf(tmp_path / name, losses(2))
    write(tmp_path / name / file, "run,time_ms,samples_or_step,step,loss,train_loss,val_loss,step_time_s,train_time_ms", "0,1000,64,1,3.0,3.0,,1.0,1", "0,2000,x,x,3.0,3.0,,1.0,1")
    with pytest.raises(DataSetError, match=f"{file}, line 3: .*copy the data set again"):
        list(figures_of(tmp_path, name))


def test_each_fault_written_into_a_curve_is_told_and_of_its_twins_nothing() -> None:
    count = np.arange(400.0)
    curve = LossCurve("made/up", count, count + 1000.0, losses(1400)[1000:], np.full(400, np.nan), 1.0)
    found = list(figures_of_faults([curve, curve.part(slice(100))], DETECTORS))
    assert [each.met for each in found] == [True] * (len(FAULTS) - 1)  # a plateau needs a longer one
    assert all(" of 1" in each.figure for each in found)  # the second is too short for any
    blind = list(figures_of_faults([curve], DETECTORS[:1]))
    assert [each.met for each in blind] == [False, False, True, False, True, True]


def test_a_real_rise_of_a_curve_is_not_counted_against_its_twin() -> None:
    count = np.arange(310.0)
    rising = losses(1310)[1000:]
    rising[200:] *= 1.3
    curve = LossCurve("made/up", count, count + 1000.0, rising, np.full(310, np.nan), 1.0)
    (twin,) = figures_of_faults([curve], DETECTORS, FAULTS[-1:])
    assert twin.met is True


def series(folder: Path, value: float, *, marked: bool = True) -> None:
    """600 rows, of which the first 90 are for learning; from row 300 on the metric swings as far as `value`."""
    moments = [f"2026-01-01 {number // 60:02d}:{number % 60:02d}:00" for number in range(600)]
    values = np.random.default_rng(1).normal(10.0, 1.0, 600)
    values[300:320] += value * (-1.0) ** np.arange(20)
    write(folder / "made__up.csv.gz", "timestamp,value", *(f"{moment},{number}" for moment, number in zip(moments, values.tolist(), strict=True)))
    write(folder / "files.csv", "file,gz", "made/up.csv,made__up.csv.gz")
    write(folder / "windows.json", f'{{"made/up.csv": {[[moments[298] + ".000000", moments[340] + ".000000"]] if marked else []}}}'.replace("'", '"'))


def test_an_alarm_at_the_start_of_a_marked_window_is_worth_nearly_all(tmp_path: Path) -> None:
    series(tmp_path / "nab", 30.0)
    own, best = figures_of(tmp_path, "nab")
    assert own.what.startswith("1 series, 1 windows")
    assert float(own.figure) > 90.0
    assert (best.met, float(best.figure) >= float(own.figure)) == (True, True)
    assert "whole corpus" in best.others
    series(tmp_path / "nab", 0.0)
    _, missed = figures_of(tmp_path, "nab")
    assert missed.met is False


def test_what_others_reach_comes_from_their_raw_scores(tmp_path: Path) -> None:
    series(tmp_path / "nab", 30.0)
    alarm = (np.arange(600) == 298).astype(np.float64)
    np.savez(tmp_path / "nab" / "detector_scores.npz", **{f"{name}|made/up.csv": alarm for name in ("ARTime", "contextOSE", "numenta")})
    _, best = figures_of(tmp_path, "nab")
    assert best.others.startswith("these series: ARTime 100.0, contextOSE 100.0")


def test_a_window_that_begins_at_no_row_is_named(tmp_path: Path) -> None:
    series(tmp_path / "nab", 30.0)
    write(tmp_path / "nab" / "windows.json", '{"made/up.csv": [["2025-01-01 00:00:00", "2026-01-01 05:00:00"]]}')
    with pytest.raises(DataSetError, match=r"made__up\.csv\.gz: its values or its windows are of another form"):
        list(figures_of(tmp_path, "nab"))
