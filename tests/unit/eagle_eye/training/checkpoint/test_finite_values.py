"""A state that nobody is to go on from: values that are no numbers, or infinite, but where they are meant to be."""

from pathlib import Path

import pytest
import torch

from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint.memory_layout import all_finite

MASK = torch.triu(torch.full((8, 8), float("-inf")), 1)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.float8_e5m2])
def test_what_is_not_finite_is_found_in_any_kind(kind: torch.dtype) -> None:
    values = torch.full((1000,), 200.0).to(kind)
    assert all_finite(values)
    for bad in (float("inf"), float("-inf"), float("nan")):
        values[500] = bad
        assert not all_finite(values)


def test_finite_values_whose_sum_is_not_are_finite() -> None:
    assert all_finite(torch.full((1000,), 3e38))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_twin_a_mask_of_attention_is_as_it_should_be(kind: torch.dtype) -> None:
    mask = MASK.to(kind)
    assert all_finite(mask)
    for bad in (float("nan"), float("inf"), 0.5):
        changed = mask.clone()
        changed[0, 0] = bad
        assert not all_finite(changed)
    assert not all_finite(torch.full((8,), float("-inf"), dtype=kind)), "of weights that are all gone nobody goes on"


def test_a_model_with_a_mask_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    checkpoint.save({"weight": torch.ones(4), "mask": MASK}, 7, tmp_path)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert torch.equal(found[0]["mask"], MASK)
