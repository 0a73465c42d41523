"""What the lines of training frameworks say, and the lines that look like them."""

import math
import re
from pathlib import Path

import pytest

from benchmarks.collect.training_lines import HARMLESS, SAMPLES, Sample
from collectors.log import value_formats
from collectors.log.printed_values import PrintedValues, ValueSearch
from collectors.log.value_formats import ValueFormats, number
from eagle_eye.errors import ConfigError

FORMATS = ValueFormats()
SEARCH = ValueSearch(FORMATS)


def printed(text: str) -> dict[str, float]:
    """What a log with this text says, by the way that the agent reads it."""
    (line,) = SEARCH.newest(text.encode() + b"\n") or [b""]
    found = FORMATS.read(line.decode())
    return found.values if found else {}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.framework)
def test_each_framework_is_read_with_all_its_values_in_their_units(sample: Sample) -> None:
    printed = PrintedValues(SEARCH)
    printed.read(sample.line.encode() + b"\n")
    values = dict(sample.values or {})
    if "overflow_total" in values:
        values["overflow_steps"] = values.pop("overflow_total")
    assert printed.newest == pytest.approx(values, nan_ok=True)


@pytest.mark.parametrize("line", HARMLESS)
def test_twin_a_line_that_only_looks_like_one_says_nothing(line: str) -> None:
    printed = PrintedValues(SEARCH)
    printed.read(line.encode() + b"\n")
    assert printed.take() is None


@pytest.mark.parametrize("text", ["nan", "NaN", "NAN", "-nan", "nan(ind)", "-nan(ind)", "1.#QNAN", "-1.#IND", "tensor(nan, device='cuda:0')", "np.float32(nan)"])
def test_nan_is_read_in_any_spelling(text: str) -> None:
    assert math.isnan(printed(f"step 3 loss {text}")["loss"])


@pytest.mark.parametrize(("text", "value"), [("inf", math.inf), ("-inf", -math.inf), ("Infinity", math.inf), ("1.#INF", math.inf), ("+inf", math.inf)])
def test_infinity_is_read_in_any_spelling(text: str, value: float) -> None:
    assert printed(f"step 3 loss {text}")["loss"] == value


@pytest.mark.parametrize(("text", "value"), [("2.", 2.0), (".5", 0.5), ("-0.25", -0.25), ("1e-3", 1e-3), ("1,024.5", 1024.5), ("4.71K", 4710.0)])
def test_numbers_are_read_as_programs_print_them(text: str, value: float) -> None:
    assert number(text) == value
    assert printed(f"step 3 loss {text}")["loss"] == value


@pytest.mark.parametrize("text", ["2,34", "-2,5", "0,345", "1234,567", "2,3456", "5%", "5 %", "2.5%", "tensor([2.3, 4.5])", "tensor([[2.3], [4.5]])", "Array([2.5, 1.0], dtype=float32)"])
def test_fault_what_may_be_another_number_than_it_looks_is_none(text: str) -> None:
    """A decimal comma, a share, several elements: no value is better than a wrong one."""
    assert "loss" not in printed(f"step 3 loss {text} grad_norm 1.5")


@pytest.mark.parametrize(
    ("text", "value"),
    [("Array(2.34, dtype=float32)", 2.34), ("tensor([2.3], device='cuda:0')", 2.3), ("tensor(2.3, device='cuda:0', grad_fn=<NllLossBackward0>)", 2.3), ("array([2.5])", 2.5), ("2.5, 3 left", 2.5),
     ("1,234,567", 1234567.0), ("2.5,lr=0.1", 2.5)],
)  # fmt: skip
def test_twin_one_element_and_thousands_are_a_number(text: str, value: float) -> None:
    assert printed(f"step 3 loss {text}")["loss"] == value


def test_twin_a_share_that_is_told_in_percent_is_read() -> None:
    assert printed("iter 10: loss 4.2345, time 123.45ms, mfu 12.34%")["mfu_percent"] == pytest.approx(12.34)


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_torn_line_never_gives_another_value_than_the_whole_one(cut: int) -> None:
    """But for one that is torn within a number, behind a digit: nobody can tell that from a whole one."""
    line = "iteration 5/ 50 | elapsed time per iteration (ms): 1234.5 | lm loss: 1.081234E+01 | grad norm: 12.345 |"
    whole, torn = printed(line), printed(line[:-cut])
    other = [name for name, value in torn.items() if value != whole[name]]
    assert other == [] or (len(other) == 1 and line[-cut - 1] in "0123456789.")


def test_a_users_own_format_counts_first(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("""[[format]]\nframework = "ours"\nhints = ["@@"]\nneeds = ["step"]\n[format.values]\nstep = 's NUMBER'\nloss = 'l NUMBER'\niteration_ms = 't AMOUNTms'\n""")
    formats = ValueFormats(own)
    assert "@@" in formats.hints
    found = formats.read("@@ s 3 l 2.5 t 12ms step 4 loss 9")
    assert found is not None
    assert (found.framework, found.values) == ("ours", {"step": 3.0, "loss": 2.5, "iteration_s": 0.012})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("framework = 'a'\nhints = []", "hints are missing"),
        ("framework = 'a'\nhints = ['x']\nneeds = ['speed']", "'speed' is none of"),
        ("framework = 'a'\nhints = ['x']\n[format.values]\nloss = 'loss (\\d+) NUMBER'", "NUMBER or AMOUNT once"),
        ("framework = 'a'\nhints = ['x']\n[format.values]\nloss = '(NUMBER'", "a: "),
        ("framework = 'a'\nhints = ['x']\npatern = 'y'", "patern"),
        pytest.param("a = " + "[" * 100_000, "own.toml: ", id="nested without end"),
        pytest.param("a = " + "1" * 10_000, "own.toml: ", id="a number without end"),
    ],
)
def test_a_format_that_cannot_be_used_is_refused_with_its_file(tmp_path: Path, row: str, said: str) -> None:
    own = tmp_path / "own.toml"
    own.write_text(f"[[format]]\n{row}\n")
    with pytest.raises(ConfigError, match=said) as refused:
        ValueFormats(own)
    assert str(own) in str(refused.value)


def test_the_formats_that_are_remembered_by_the_texts_of_a_line_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_formats, "MOST_CANDIDATES", 2)
    formats = ValueFormats()
    for _ in range(2):
        for sample in SAMPLES:
            found = formats.read(re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", sample.line))
            assert (found is not None and bool(found.values or found.overflow)) == (sample.values is not None), sample.framework
            assert len(formats._candidates) <= 2
