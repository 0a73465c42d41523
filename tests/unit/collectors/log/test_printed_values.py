"""The newest values of a log, and runs of lines whose loss is no number."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.collect.training_lines import SAMPLES, Sample
from collectors.log import printed_values
from collectors.log.printed_values import NAMES, PrintedValues, ValueSearch
from collectors.log.value_formats import ValueFormats

SEARCH = ValueSearch(ValueFormats())
MEGATRON = " iteration {step}/ 1000 | elapsed time per iteration (ms): 100.0 | {loss}loss scale: 1.0 | grad norm: {norm} | number of skipped iterations: {skipped} |\n"
OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768\n"


def said(text: str, printed: PrintedValues | None = None) -> dict[str, float]:
    """What a text says, without what it does not say."""
    printed = printed or PrintedValues(SEARCH)
    printed.read(text.encode())
    row = printed.take() or []
    return {name.removeprefix("printed_"): value for name, value in zip(NAMES, row, strict=bool(row)) if not math.isnan(value)}


def bad(text: str) -> tuple[float, float]:
    values = said(text)
    return values["bad_losses"], values["bad_grad_norms"]


def test_the_newest_of_each_value_counts_and_is_given_once() -> None:
    printed = PrintedValues(SEARCH)
    assert said("step 1 loss 3.0 lr 0.1\nstep 2 loss 2.0\n", printed) == {"step": 2, "loss": 2, "learning_rate": 0.1, "bad_losses": 0, "bad_grad_norms": 0}
    assert printed.take() is None


def test_the_lines_of_a_block_are_one_step() -> None:
    values = said("[step=7/90]\n    train/CrossEntropyLoss=2.5\n    throughput/device/tokens_per_second=1,000\n")
    assert (values["step"], values["loss"], values["gpu_tokens_per_s"]) == (7, 2.5, 1000)


def test_a_progress_bar_without_an_end_of_line_is_read_at_its_newest() -> None:
    assert said("".join(f"\rEpoch 0: 1%| | {n}/1000 [00:10<00:14, 10.0it/s, loss={n}.5]" for n in range(9)))["loss"] == 8.5


def test_bytes_of_another_encoding_are_no_obstacle() -> None:
    printed = PrintedValues(SEARCH)
    printed.read(b"\xff\xfe\xc3 step 3 \x80 loss 2.5 \xf0\n")
    assert printed.newest["loss"] == 2.5


def test_of_a_burst_the_newest_lines_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(SEARCH.formats, "read", read.append)
    printed = PrintedValues(SEARCH)
    for first in (0, 2500):
        printed.read("".join(f"step {step} loss 2.0\n" for step in range(first, first + 2500)).encode())
    printed.take()
    assert len(read) == printed_values.MOST_LINES
    assert (read[0], read[-1]) == ("step 4988 loss 2.0", "step 4999 loss 2.0")


def test_a_line_without_an_end_costs_no_more_than_the_bound() -> None:
    lines = SEARCH.newest(b"loss" * (1 << 18))
    assert sum(map(len, lines)) <= printed_values.MOST_BYTES + 2 * 4000


@pytest.mark.parametrize("noise", [0, 70_000])
@pytest.mark.parametrize("blocks", [1, 3, 7], ids=["first block", "second", "third"])
@pytest.mark.parametrize("before_the_end", range(8, 15))
def test_a_line_is_found_wherever_a_block_of_the_search_ends(noise: int, blocks: int, before_the_end: int) -> None:
    piece = b"step 1 loss 2.0\n" + b"x" * noise + b"\nstep 2 loss 3.0\n" + b"y" * (blocks * printed_values.FIRST_BLOCK - before_the_end) + b"\n"
    assert SEARCH.newest(piece) == [b"step 1 loss 2.0", b"step 2 loss 3.0"]


def test_random_bytes_and_cut_samples_never_raise() -> None:
    rng = random.Random(7)
    printed = PrintedValues(SEARCH)
    text = "\n".join(sample.line for sample in SAMPLES).encode()
    for _ in range(150):
        begin = rng.randrange(len(text))
        piece = bytearray(text[begin : begin + rng.randrange(2000)])
        for _ in range(rng.randrange(20)):
            if piece:
                piece[rng.randrange(len(piece))] = rng.randrange(256)
        printed.read(bytes(piece))
        printed.take()
        values = said("\nstep 7 loss 2.0\n", printed)
        assert (values["step"], values["loss"]) == (7, 2), "what comes after is read"


# --- runs of bad lines


def test_fault_a_loss_that_stays_nan_is_counted_line_by_line() -> None:
    assert bad("step 1 loss 2.0\nstep 2 loss nan\nstep 3 loss inf\nstep 4 loss -nan\n") == (3, 0)


def test_twin_one_nan_between_numbers_is_over_with_the_next_line() -> None:
    assert bad("step 1 loss nan\nstep 2 loss nan\nstep 3 loss 2.0\n") == (0, 0)


def test_fault_megatron_leaves_a_loss_of_nan_out() -> None:
    assert bad("".join(MEGATRON.format(step=step, loss="", norm="nan", skipped=0) for step in range(3))) == (3, 0)


def test_twin_megatron_in_fp16_skips_steps_until_the_scale_fits() -> None:
    """As the logs of real runs begin: no loss, a scale that is halved each step."""
    warming = "".join(MEGATRON.format(step=step, loss="lm loss: nan | ", norm="inf", skipped=1) for step in range(20))
    assert bad(warming) == (0, 0)
    assert bad(warming + MEGATRON.format(step=20, loss="lm loss: 9.5 | ", norm="3.2", skipped=0)) == (0, 0)


def test_twin_a_skipped_step_that_deepspeed_tells_of_excuses_the_next_loss() -> None:
    assert bad("".join(f"{OVERFLOW}{{'loss': nan, 'grad_norm': nan}}\n" for _ in range(10))) == (0, 0)
    assert bad("".join(f"steps: {step} loss: nan iter time (s): 1.0 samples/sec: 2\n[Rank 0] step={step}, skipped={step}, lr=[0.1]\n" for step in range(1, 9)))[0] <= 1


def test_fault_a_scale_that_never_fits_is_no_excuse_for_ever() -> None:
    printed = PrintedValues(SEARCH)
    for _ in range(printed_values.EXCUSED + 3):
        values = said(f"{OVERFLOW}{{'loss': nan, 'grad_norm': nan}}\n", printed)
    assert values["bad_losses"] == 3


def test_fault_a_loss_of_zero_beside_a_norm_of_nan_is_transformers_word_for_nan() -> None:
    assert bad("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 0.1}\n" * 4) == (4, 0)


def test_a_norm_that_is_no_number_is_counted_apart_from_the_loss() -> None:
    assert bad("{'loss': 2.5, 'grad_norm': nan}\n" * 4) == (0, 4)
    assert bad("{'loss': 2.5, 'grad_norm': nan}\n{'loss': 2.5, 'grad_norm': 1.0}\n") == (0, 0)


def test_another_process_begins_without_the_run_of_the_one_before() -> None:
    printed = PrintedValues(SEARCH)
    said("step 1 loss nan\nstep 2 loss nan\n", printed)
    printed.begin_again()
    assert said("step 1 loss nan\n", printed)["bad_losses"] == 1


@given(st.sampled_from(SAMPLES), st.integers(0, 120), st.binary(max_size=20), st.sampled_from([b"", b"1e999", b"9" * 400, b"nan", b"\r", b"\x1b[31m", b"{" * 50]))
def test_a_torn_or_changed_line_is_read_or_left_out(sample: Sample, cut: int, other: bytes, strange: bytes) -> None:
    line = sample.line.encode()
    printed = PrintedValues(SEARCH)
    printed.read(line[:cut] + other + strange + line[cut:] + b"\n")
    row = printed.take()
    assert row is None or len(row) == len(NAMES)
