"""The table training_values.toml: which lines of a script's output hold which training values.

>>> formats = ValueFormats()
>>> formats.read("step: 10 loss: nan").values["loss"]
nan
>>> formats.read("val loss 2.1 at step 10").values
{}
"""

import math
import re
import tomllib
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

import ahocorasick_rs
import msgspec

from eagle_eye.errors import UNREADABLE, ConfigError

LONGEST = 4000
"""Characters of a line that are looked at: a dictionary of a trainer with all its rewards has 2000."""
MOST_CANDIDATES = 256
"""Sets of texts whose formats are remembered."""
_DIGITS = r"(?=[-+]?\.?\d)[-+]?(?:\d{1,3}(?:,\d{3})++(?!\d)|\d++)?(?:\.\d*+)?(?:[eE][-+]?\d++)?"
"""Nothing of it is given back: a run of a thousand digits would be tried in all its parts."""
_WRAPPED = r"(?:np\.float\d+\(|(?:tensor|[Aa]rray)\((?:\[(?=[^\[\],]{1,40}\]))?)?"
"""As Python prints a tensor, or an array of JAX or numpy, of one element that nobody has made a float; one of several has no value."""
_NO_DECIMAL_COMMA = r"(?![-+]?(?:0|\d{4,}+|\d++(?=,\d{1,2}(?!\d)|,\d{4})),\d)"
"""2,34 is neither 2 nor 234: a number that may have a decimal comma is none. 2,345 has thousands."""
_NOT_FINITE = r"[-+]?(?:1\.#\w+|(?i:nan(?:\(\w*\))?|inf(?:inity)?))"
_MACROS = {
    "NUMBER": rf"{_WRAPPED}{_NO_DECIMAL_COMMA}({_NOT_FINITE}|{_DIGITS}[kKMGBT]?)(?![\w#]|\.\d)",
    "AMOUNT": rf"(?<!\d)(?<!\d,){_NO_DECIMAL_COMMA}({_DIGITS})",
}
"""Each has one group. A number whose end was torn off or overwritten is none: what follows may not belong to a word, nor to another number."""
_NO_SHARE = r"(?! ?%)"
"""Behind a NUMBER of what is not told in percent."""
_MAGNITUDES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_INFINITE = re.compile(r"[-+]?(?:inf|1\.#INF)", re.IGNORECASE)
_UNITS: dict[str, tuple[str, Callable[[float], float]]] = {
    "step": ("step", lambda value: value),
    "loss": ("loss", lambda value: value),
    "grad_norm": ("grad_norm", lambda value: value),
    "learning_rate": ("learning_rate", lambda value: value),
    "iteration_s": ("iteration_s", lambda value: value),
    "iteration_ms": ("iteration_s", lambda value: value / 1e3),
    "iterations_per_s": ("iteration_s", lambda value: 1.0 / value if value else math.nan),
    "tokens_per_s": ("tokens_per_s", lambda value: value),
    "gpu_tokens_per_s": ("gpu_tokens_per_s", lambda value: value),
    "mfu_percent": ("mfu_percent", lambda value: value),
    "mfu_share": ("mfu_percent", lambda value: value * 1e2),
    "loss_scale": ("loss_scale", lambda value: value),
    "overflow_steps": ("overflow_steps", lambda value: value),
    "overflow_total": ("overflow_total", lambda value: value),
    "memory_bytes": ("memory_bytes", lambda value: value),
    "memory_mb": ("memory_bytes", lambda value: value * 1e6),
    "memory_gb": ("memory_bytes", lambda value: value * 1e9),
    "memory_gib": ("memory_bytes", lambda value: value * 2.0**30),
}
"""Name in the table → name of the value, and how it gets that one's unit."""
_SOLE = frozenset(name for name, (value, _) in _UNITS.items() if sum(value == other for other, _ in _UNITS.values()) == 1)
"""Values that only one name of the table stands for."""
MAY_BE_NAN = frozenset({"loss", "grad_norm"})
"""Of the others a number that is none says nothing."""
MAY_BE_NEGATIVE = frozenset({"loss"})


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One format."""

    framework: str
    hints: tuple[str, ...]
    also: tuple[str, ...] = ()
    of: Literal["train", "overflow", "evaluation"] = "train"
    needs: tuple[str, ...] = ()
    values: dict[str, str | tuple[str, ...]] = {}


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: tuple[_Row, ...] = ()


class LineValues(NamedTuple):
    """What a line says."""

    framework: str
    values: dict[str, float]
    """Name → value in the unit of its name; only a loss and a gradient norm may be NaN or infinite."""
    overflow: bool = False
    """It says that a loss scaler did not apply a step."""


_Value = tuple[str, tuple[re.Pattern[str], ...], bool]
"""Name, expressions, and whether a line that has none of them is of another format."""


class _Format(NamedTuple):
    """A row that is ready to read lines."""

    row: _Row
    patterns: tuple[_Value, ...]
    """Those that a line needs first."""

    def may_fit(self, texts: frozenset[str]) -> bool:
        """Whether a line with these of all formats' texts has what every line of this one has."""
        return not texts.isdisjoint(self.row.hints) and (not self.row.also or not texts.isdisjoint(self.row.also))

    def read(self, line: str) -> dict[str, float] | None:
        """None: the line is of another format."""
        values: dict[str, float] = {}
        for name, patterns, needed in self.patterns:
            for pattern in patterns:  # no generator: it would be made for each value and line, which costs as much as the search
                found = pattern.search(line)
                if found is not None:
                    break
            if found is not None:
                known, in_unit = _UNITS[name]
                value = in_unit(number(found[1]))
                if _is_possible(known, value):
                    values[known] = value
            elif needed:
                return None
        fits = all(name in values for name in self.row.needs) and (values or self.row.of != "train")
        return values if fits else None


class ValueFormats:
    """All formats; the first that fits a line counts."""

    def __init__(self, own: Path | None = None) -> None:
        """`own`: a file with formats of the user's, which count before those of this release. Raises ConfigError, with file and row."""
        mine = _rows_of(str(own), own.read_bytes) if own else ()
        rows = (*mine, *_rows_of("training_values.toml", (resources.files(__package__) / "training_values.toml").read_bytes))
        self._formats = tuple(_Format(row, tuple(sorted(_compiled(row), key=lambda value: not value[2]))) for row in rows)
        hints = {hint for row in rows for hint in row.hints}
        self.hints = tuple(sorted(hint for hint in hints if not any(other in hint for other in hints - {hint})))
        """Every line that some format fits has one of them."""
        self._texts = ahocorasick_rs.AhoCorasick(sorted({*hints, *(text for row in rows for text in row.also)}))
        self._candidates: dict[frozenset[str], tuple[_Format, ...]] = {}
        """Texts in a line → the formats that it may be of: lines of one script have the same ones over and over."""

    def read(self, line: str) -> LineValues | None:
        """Of a line without colours; None where no format fits."""
        text = line[:LONGEST]
        for each in self._candidates_of(text):
            if (values := each.read(text)) is not None:
                return LineValues(each.row.framework, values, each.row.of == "overflow")
        return None

    def _candidates_of(self, line: str) -> tuple[_Format, ...]:
        texts = frozenset(self._texts.find_matches_as_strings(line, overlapping=True))
        found = self._candidates.get(texts)
        if found is None:
            if len(self._candidates) >= MOST_CANDIDATES:
                self._candidates.clear()
            found = self._candidates[texts] = tuple(each for each in self._formats if each.may_fit(texts))
        return found


def number(text: str) -> float:
    """A number as programs print it.

    >>> number("1,024.5"), number("4.71K"), number("-nan(ind)"), number("1.#INF"), number("-Infinity")
    (1024.5, 4710.0, nan, inf, -inf)
    """
    try:
        return float(text)
    except ValueError:
        pass
    if _INFINITE.match(text):
        return -math.inf if text[0] == "-" else math.inf
    magnitude = _MAGNITUDES.get(text[-1:], 1.0)
    try:
        return float(text.rstrip("kKMGBT").replace(",", "")) * magnitude
    except ValueError:  # NaN, in one of its spellings
        return math.nan


def _is_possible(name: str, value: float) -> bool:
    """nanoGPT, for example, says an MFU of -100 % as long as it has none."""
    return (name in MAY_BE_NAN or math.isfinite(value)) and not (value < 0.0 and name not in MAY_BE_NEGATIVE)


def _rows_of(name: str, read: Callable[[], bytes]) -> tuple[_Row, ...]:
    try:
        rows = msgspec.convert(tomllib.loads(read().decode()), _Table).format
    except (OSError, *UNREADABLE) as error:
        raise ConfigError(f"{name}: {error}") from error
    for row in rows:
        if not row.hints or not all(row.hints):
            raise ConfigError(f"{name}: {row.framework}: hints are missing: texts of which every such line has one")
        if unknown := sorted({*row.values, *row.needs} - _UNITS.keys()):
            raise ConfigError(f"{name}: {row.framework}: {unknown[0]!r} is none of {', '.join(_UNITS)}")
        try:
            list(_compiled(row))
        except (re.error, ValueError) as error:
            raise ConfigError(f"{name}: {row.framework}: {error}") from error
    return rows


def _compiled(row: _Row) -> Iterator[_Value]:
    """Raises re.error, and ValueError for an expression without NUMBER or AMOUNT."""
    for name, written in row.values.items():
        shares = name.startswith("mfu")
        patterns = tuple(re.compile(_expanded(each if shares else each.replace("NUMBER", f"NUMBER{_NO_SHARE}"))) for each in ((written,) if isinstance(written, str) else written))
        if any(pattern.groups != 1 for pattern in patterns):
            raise ValueError(f"{name}: it has to have NUMBER or AMOUNT once, and no group of its own but (?:…)")
        yield name, patterns, name in row.needs and name in _SOLE


def _expanded(pattern: str) -> str:
    for word, expression in _MACROS.items():
        pattern = pattern.replace(word, expression)
    return pattern
