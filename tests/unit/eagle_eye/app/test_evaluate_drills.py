"""`eagle-eye evaluate drills`: the same seed is the same corpus, half of it is innocent, the chain is right about each kind, and what is wrong is counted."""

import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from detectors.exceptions import Exceptions
from detectors.exits import Exits
from detectors.fabric_errors import FabricErrors
from detectors.fail_slow import FailSlow
from detectors.loss import Loss
from detectors.loss_scale import LossScale
from detectors.repeated_batches import RepeatedBatches
from detectors.straggler import Straggler
from eagle_eye.app.cli import main
from eagle_eye.app.evaluation.drill_corpus.accusation_file import write_counts
from eagle_eye.app.evaluation.drill_corpus.drill_frames import JobFrames
from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob
from eagle_eye.app.evaluation.drill_corpus.drill_run import Accusation, DrillVerdict, run_drill
from eagle_eye.app.evaluation.drill_corpus.drill_score import calibration_error, score
from eagle_eye.app.evaluation.drill_corpus.kinds import KINDS
from eagle_eye.app.evaluation.drill_corpus.kinds.handicaps import HANDICAPS
from eagle_eye.app.evaluation.drill_corpus.planned_drills import PlannedDrill, jobs_of, planned_drills
from eagle_eye.types import Kind


def test_the_same_seed_is_the_same_corpus_half_of_it_innocent_and_a_tenth_with_two_jobs() -> None:
    plans = planned_drills(500, 7)
    assert plans == planned_drills(500, 7) != planned_drills(500, 8)
    by_name = {kind.name: kind for kind in KINDS}
    assert sum(by_name[plan.kind].fault for plan in plans) == 250
    assert sum(len(plan.sizes) == 2 for plan in plans) == 50
    assert {plan.kind for plan in plans} == set(by_name)
    assert {size for plan in plans for size in plan.sizes} == {64, 128, 256, 512, 1024, 2048, 4096}


DETECTORS = [("exits", Exits()), ("exceptions", Exceptions()), ("fabric_errors", FabricErrors())]


@pytest.mark.parametrize("name", ["worker killed", "words of ECC from the script", "two jobs: their switch loses a rail, both train on"])
def test_a_drill_goes_through_the_whole_chain(name: str) -> None:
    kind = next(kind for kind in KINDS if kind.name == name)
    found = run_drill(PlannedDrill(1, name, (64,) * kind.jobs, 7), DETECTORS)
    assert (found.class_right, found.culprit_right, found.ever_accused, found.evicted) == (True, True, 0, ())


@pytest.mark.parametrize("name", [kind.name for kind in KINDS if kind.family == "data"])
def test_data_that_come_again_are_told_and_their_twins_are_not(name: str) -> None:
    found = run_drill(PlannedDrill(1, name, (64,), 7), [("repeated_batches", RepeatedBatches()), ("loss_scale", LossScale())])
    assert (found.class_right, found.culprit_right, found.ever_accused, found.evicted) == (True, True, 0, ())


@pytest.mark.parametrize("name", [kind.name for kind in KINDS if kind.family == "slow" and ("more to do" in kind.name or "chosen more often" in kind.name or "wanders" in kind.name or "garbage" in kind.name)])
def test_work_of_a_rank_and_work_that_wanders_accuse_nobody_and_evict_nobody(name: str) -> None:
    found = run_drill(PlannedDrill(1, name, (64,), 2), [("straggler", Straggler()), ("fail_slow", FailSlow())])
    assert (found.class_right, found.culprit_right, found.ever_accused, found.evicted) == (True, True, 0, ())


@pytest.mark.parametrize("name", [kind.name for kind in KINDS if kind.family == "loss" and ("gradient not" in kind.name or "gradients that" in kind.name or "one worker first" in kind.name)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whose_gradient_or_loss_was_no_number_first_is_named_unless_a_pipeline_hides_it(name: str, seed: int) -> None:
    found = run_drill(PlannedDrill(1, name, (64,), seed), [("loss", Loss())])
    assert (found.class_right, found.culprit_right, found.ever_accused, found.evicted) == (True, True, 0, ())


def test_the_same_drill_is_the_same_verdict_and_a_blind_chain_is_wrong() -> None:
    plan = PlannedDrill(1, "worker exits without a word", (64,), 8)
    assert run_drill(plan, DETECTORS[:1]) == run_drill(plan, DETECTORS[:1])
    blind = run_drill(plan, DETECTORS[2:])
    assert (blind.told, blind.class_right, blind.culprit_right, blind.accusations) == ((), False, False, ())


def drilled(number: int, *, right: bool = True, evicted: tuple[str, ...] = (), confidence: float = 0.95, fault: bool = True) -> DrillVerdict:
    accusation = Accusation(cause="worker killed", confidence=confidence, score=1.0, right=right)
    return DrillVerdict(
        number=number, kind="worker killed", family="death", fault=fault, ranks=64, causes=("worker killed",), told=("worker killed",) if right else ("exception",), culprits=("gpu g",),
        accused=("gpu g",) if right else ("gpu h",), class_right=right, culprit_right=right, ever_accused=0 if right else 1, evicted=evicted, accusations=(accusation,), delay_s=1.0 if right else None,
    )  # fmt: skip


def test_what_is_wrong_is_counted_and_named() -> None:
    met = {each.what: each for each in score([drilled(number) for number in range(40)])}
    assert (met["class and culprit right"].figure, met["class and culprit right"].met) == ("40 of 40 (100.0%)", True)
    missed = {each.what: each for each in score([drilled(0, right=False, evicted=("n1",)), drilled(1)])}
    assert (missed["class and culprit right"].met, missed["healthy nodes that a proposed plan evicts"].met) == (False, False)
    assert "told exception, accused gpu h" in missed["class and culprit right"].reason
    assert missed["drills in which somebody healthy stood accused for a second"].figure == "1 of 2 (50.0%)"


def test_the_calibration_error_is_how_far_confidence_is_from_what_was_right() -> None:
    told = [Accusation(cause="c", confidence=0.95, score=1.0, right=number < 8) for number in range(10)]
    assert calibration_error(told) == pytest.approx(0.15)
    unsure = [Accusation(cause="c", confidence=0.25, score=1.0, right=number < 1) for number in range(4)]
    assert calibration_error([*told, *unsure]) == pytest.approx((10 * 0.15 + 4 * 0.0) / 14)
    assert calibration_error([]) == 0.0
    assert calibration_error([Accusation(cause="c", confidence=1.0, score=1.0, right=True)]) == 0.0


# --- hard drills


def test_a_share_of_the_drills_is_hard_and_the_others_are_as_without() -> None:
    plain, hard = planned_drills(100, 7), planned_drills(100, 7, 0.5)
    assert [plan._replace(hard=False) for plan in hard] == plain
    assert 30 <= sum(plan.hard for plan in hard) <= 60
    assert all(len(plan.sizes) == 1 for plan in hard if plan.hard)


def made_hard(name: str, kind: str = "worker 1.6 to 2.2 times as slow", seed: int = 7) -> DrillJob:
    """A drill as its kind has it, with one handicap."""
    jobs, drilled_kind = jobs_of(PlannedDrill(1, kind, (64,), seed))
    drilled_kind.happen(jobs)
    HANDICAPS[name](jobs[0], np.random.default_rng(1))
    return jobs[0]


@pytest.mark.parametrize("name", HANDICAPS)
def test_each_handicap_leaves_frames_that_the_chain_takes_and_every_kind_of_drill_has_one(name: str) -> None:
    found = run_drill(PlannedDrill(1, "worker killed", (64,), 7, hard=True), DETECTORS)
    assert found.handicap in HANDICAPS
    job = made_hard(name, "worker killed")
    assert [frame for frame in JobFrames(job, job.onset + 3.0) if frame.tick]


def test_telemetry_that_is_lost_is_that_of_the_node_at_fault_alone() -> None:
    job = made_hard("telemetry lost")
    frames = [frame for frame in JobFrames(job, job.onset + 12.0) if frame.tick]
    frame, step = frames[-1], [step for each in frames for step in each.steps][-1]
    mine = np.array([node == job.target.node for node in frame.entities[Kind.NODE]])
    assert np.isnan(frame.metrics[Kind.NODE]["cpu_percent"]).tolist() == mine.tolist()
    assert frame.time - frame.reporting[job.target.node] > 10.0
    assert np.flatnonzero(np.isnan(step.values["forward_s"])).tolist() == job.indices(job.target.node)


def test_in_a_hard_drill_nobody_accused_is_right_and_somebody_healthy_is_wrong() -> None:
    blind = run_drill(PlannedDrill(1, "worker exits without a word", (64,), 8, hard=True), DETECTORS[2:])
    assert (blind.accused, blind.class_right, blind.culprit_right) == ((), True, True)
    wrong = msgspec.structs.replace(drilled(0, right=False, confidence=0.45), handicap="a sensor lies")
    figures = {each.what: each for each in score([drilled(1), drilled(2), wrong])}
    assert figures["class and culprit right"].figure == "2 of 2 (100.0%)", "of drills without a handicap"
    assert figures["hard drills: class and culprit right, or nobody accused"].figure == "0 of 1 (0.0%)"
    assert (figures["accusations that state 0.4 to 0.5"].figure, figures["accusations that state 0.9 to 1.0"].figure) == ("0 of 1 (0.0%) right", "2 of 2 (100.0%) right")


def test_counts_are_written_with_the_command_that_made_them(tmp_path: Path) -> None:
    write_counts(tmp_path / "counts.toml", [drilled(0), drilled(1, right=False)], "eagle-eye evaluate drills --seed 1")
    table = tomllib.loads((tmp_path / "counts.toml").read_text())
    assert table == {"made_by": "eagle-eye evaluate drills --seed 1", "drills": 2, "causes": {"worker killed": {"told": 2, "right": 1}}}


def test_the_command_prints_figures_beside_goals(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["evaluate", "drills", "--incidents", "1", "--seed", "5", "--jobs", "1", "--counts", str(tmp_path / "c.toml"), "--json"])
    assert result.exit_code in (0, 1), result.output
    assert "class and culprit right" in result.output
    assert (tmp_path / "c.toml").exists()
