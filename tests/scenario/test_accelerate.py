"""A real loop of Accelerate on the CPU: what is in the ring afterwards."""

import pytest

from fakes.framework_runs import UNWATCHED, FrameworkRun, phases_s, run_variants

SCRIPT = """
import json, time, warnings
warnings.simplefilter("ignore")
import torch
from accelerate import Accelerator
from eagle_eye.training.integrations.accelerate import AcceleratorSteps

def main(what):
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2 if what != "by hand" else 1)
    model = torch.nn.Sequential(torch.nn.Embedding(16, 8), torch.nn.Flatten(), torch.nn.Linear(48, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rows = [{"input_ids": torch.randint(0, 16, (6,)), "labels": torch.randn(1)} for _ in range(32)]
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, torch.utils.data.DataLoader(rows, batch_size=4))
    losses, norms = [], []
    watch = AcceleratorSteps(accelerator)

    def train(batch, count):
        loss = torch.nn.functional.mse_loss(model(batch["input_ids"]), batch["labels"])
        losses.append(float(loss.detach()))
        if what == "raises" and len(losses) == 6:
            raise ValueError("shapes do not fit")
        accelerator.backward(loss)
        if accelerator.sync_gradients and (what != "by hand" or count % 2):
            norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 1.0)))
        if what != "by hand" or count % 2:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    for epoch in range(4 if what == "long" else 2):
        for count, batch in enumerate(watch.steps(loader)):
            if what == "by hand":
                train(batch, count)
            else:
                with accelerator.accumulate(model):
                    train(batch, count)
            if count == 3:
                with watch.evaluation():
                    time.sleep(0.02)
                    accelerator.wait_for_everyone()
            if count == 5 and epoch == 1 and what == "leaves":
                break
        with watch.evaluation():  # between two epochs
            time.sleep(0.02)
        accelerator.save_state("out")
    return {"losses": losses, "norms": norms}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FrameworkRun]:
    return run_variants(tmp_path_factory.mktemp("accelerate"), SCRIPT, ("accumulates", "long", "by hand", "leaves", "raises", UNWATCHED))


def test_a_step_is_an_update_and_its_phases_are_all_of_it(runs: dict[str, FrameworkRun]) -> None:
    trained = runs["accumulates"]
    said = trained.said
    assert trained.numbers() == list(range(8)), "numbered on over both epochs"
    assert trained.now is not None
    assert (trained.now.running, trained.now.phase, trained.now.faults) == (False, "other", 0)
    for step in trained.steps:
        assert phases_s(step) == pytest.approx(step.values["step_s"], abs=1e-6)
        assert {"data_s", "forward_s", "backward_s", "optimizer_s"} <= step.values.keys()
        assert (step.values["samples"], step.values["tokens"]) == (8.0, 48.0)
    assert trained.values("loss") == pytest.approx([(first + second) / 2 for first, second in zip(said["losses"][::2], said["losses"][1::2], strict=True)], rel=1e-5)
    assert trained.values("grad_norm") == pytest.approx(said["norms"], rel=1e-5)
    assert trained.values("learning_rate") == [0.5 * 0.5**number for number in range(8)]


def test_an_evaluation_is_a_phase_of_its_step_and_of_none_between_two_loops(runs: dict[str, FrameworkRun]) -> None:
    assert runs["accumulates"].numbers("evaluation_s", 0.02) == [1, 5]
    assert runs["accumulates"].numbers("checkpoint_s") == [], "it was saved behind the loops"


def test_updates_that_a_script_counts_by_hand_are_steps_as_well(runs: dict[str, FrameworkRun]) -> None:
    assert runs["by hand"].numbers() == list(range(8))
    assert set(runs["by hand"].values("samples")) == {8.0}


def test_a_loop_that_is_left_behind_its_update_has_made_that_step(runs: dict[str, FrameworkRun]) -> None:
    left = runs["leaves"]
    assert left.numbers() == list(range(7))
    assert left.now is not None
    assert not left.now.running


def test_an_exception_passes_through_and_who_is_not_watched_trains_as_it_would(runs: dict[str, FrameworkRun]) -> None:
    assert "ValueError: shapes do not fit" in runs["raises"].errors
    assert runs["raises"].numbers() == [0, 1]
    assert runs[UNWATCHED].said == runs["accumulates"].said


def test_the_replicas_of_its_model_are_compared_and_its_gradients_looked_at(runs: dict[str, FrameworkRun]) -> None:
    trained = runs["long"]
    assert {"replica_digest", "gradient_digest"} <= trained.steps[15].values.keys()
    assert trained.numbers("replica_digest") == trained.numbers("gradient_digest") == [15]
    assert 0 in trained.numbers("bad_gradient")
    assert trained.now is not None
    assert trained.now.faults == 0
