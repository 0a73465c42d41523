"""Whose step it is: the workers of the layout that holds now, also after it was written again or names were forgotten."""

import msgspec
import numpy as np
import pytest

from eagle_eye.step_assembly import StepAssembly
from eagle_eye.types import Layout
from fakes.synthetic_frames import layout_of


@pytest.fixture
def steps() -> StepAssembly:
    return StepAssembly()


def report(steps: StepAssembly, tick: int, layout: Layout, number: int) -> None:
    """Each worker reports the step, its place in the layout as loss."""
    count = len(layout.workers)
    steps.report(
        tick, steps.ids_of(layout.workers)[None, :], ("loss",), np.array([[number]]), np.array([[layout.epoch]]), np.ones((1, 1, count)),
        np.arange(count, dtype=float)[None, None, :, None],
    )  # fmt: skip


def handed_out(steps: StepAssembly, tick: int, layout: Layout) -> list[tuple[tuple[str, ...], list[float]]]:
    return [(step.workers, step.values["loss"].tolist()) for step in steps.due(tick, {layout.epoch: layout})]


def test_a_layout_of_the_same_epoch_that_is_written_again_counts_from_then_on(steps: StepAssembly) -> None:
    first = layout_of(2, 2)
    report(steps, 1, first, 1)
    assert handed_out(steps, 1, first) == [(first.workers, [0.0, 1.0, 2.0, 3.0])]
    smaller = msgspec.structs.replace(first, placements=first.placements[:3])
    report(steps, 2, smaller, 2)
    assert handed_out(steps, 2, smaller) == [(smaller.workers, [0.0, 1.0, 2.0])], "nobody waits for the fourth any more"


def test_after_the_names_were_forgotten_values_are_their_own_workers(steps: StepAssembly) -> None:
    layout = layout_of(2, 2)
    report(steps, 1, layout, 1)
    handed_out(steps, 1, layout)
    steps.forget()
    steps.ids_of(["another", *reversed(layout.workers)])
    report(steps, 2, layout, 2)
    assert handed_out(steps, 2, layout) == [(layout.workers, [0.0, 1.0, 2.0, 3.0])]


def test_a_step_that_one_has_not_reported_is_waited_for(steps: StepAssembly) -> None:
    layout = layout_of(2, 2)
    report(steps, 1, msgspec.structs.replace(layout, placements=layout.placements[:3]), 1)
    assert handed_out(steps, 1, layout) == []
    report(steps, 2, layout, 1)
    assert [workers for workers, _ in handed_out(steps, 2, layout)] == [layout.workers]
