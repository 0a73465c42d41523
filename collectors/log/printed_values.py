"""Training values out of one log: what its newest lines say, by the table training_values.toml.

The output is searched from its end, and of a burst only the newest lines are read, so the cost of a second is bounded: a script that
prints a thousand steps a second is sampled. A run of lines whose loss is no number is counted over all lines that are read.
"""

import math
import re
from collections import deque

import ahocorasick_rs

from .value_formats import LONGEST, LineValues, ValueFormats

NAMES = (
    "printed_step", "printed_loss", "printed_grad_norm", "printed_learning_rate", "printed_iteration_s", "printed_tokens_per_s", "printed_gpu_tokens_per_s",
    "printed_mfu_percent", "printed_loss_scale", "printed_overflow_steps", "printed_memory_bytes", "printed_bad_losses", "printed_bad_grad_norms",
)  # fmt: skip
"""Metrics of a worker, in the order of a row. Beside what lines say: `printed_bad_losses`, in how many lines in succession the loss was no
number, and `printed_bad_grad_norms`, the same for the gradient norm while the loss was one. Megatron-LM leaves out a loss of NaN, and
Transformers prints 0.0 for it: beside a gradient norm that is no number both count as such a loss."""
MOST_LINES = 12
MOST_BYTES = 1 << 15
"""Lines that are read between two readings, which are a second apart, and bytes of those of one piece of output, which has up to a megabyte; the newest ones."""
FIRST_BLOCK, LARGEST_BLOCK = 1 << 12, 1 << 16
"""Bytes that are searched at once, from the end: a script that prints much has all the lines that are read in the first block; of one that prints few each block is twice as large as the one before."""
EXCUSED = 40
"""A loss scaler that begins at 2^32 overflows in up to 32 steps until it fits: so many bad lines in succession are excused by overflows."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class ValueSearch:
    """Finds the lines that may hold values."""

    def __init__(self, formats: ValueFormats) -> None:
        self.formats = formats
        hints = [hint.encode() for hint in formats.hints]
        self._overlap = max(map(len, hints)) - 1
        self._search = ahocorasick_rs.BytesAhoCorasick(hints, matchkind=ahocorasick_rs.MatchKind.LeftmostFirst)  # the kind that is searched fastest

    def newest(self, piece: bytes) -> list[bytes]:
        """The last lines with a hint, oldest first. What a carriage return ends is a line, too: a progress bar draws itself anew after each."""
        lines: list[bytes] = []
        end = first = len(piece)
        left, block = MOST_BYTES, FIRST_BLOCK
        while end > 0 and left > 0 and len(lines) < MOST_LINES:
            begin, block = max(0, end - block), min(2 * block, LARGEST_BLOCK)
            for _, hit, _ in reversed(self._search.find_matches_as_indexes(piece[begin : min(end + self._overlap, first)])):
                if begin + hit >= first:
                    continue
                first, last = _line_around(piece, begin + hit)
                lines.append(piece[first:last])
                left -= last - first
                if left <= 0 or len(lines) == MOST_LINES:
                    break
            end = min(begin, first)
        return lines[::-1]


class PrintedValues:
    """The values of one log, over all its pieces."""

    def __init__(self, search: ValueSearch) -> None:
        self._search = search
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)
        """Found, and not read yet."""
        self._newest: dict[str, float] = {}
        """What was read since the last `take`."""
        self._bad_losses = self._bad_norms = 0
        self._overflow = False
        """A step was not applied since the newest loss."""
        self._excused = 0
        self._overflow_total = 0.0

    def read(self, piece: bytes) -> None:
        """Find the newest lines of a piece of output; they are read when somebody asks what they say."""
        self._lines += self._search.newest(piece)

    @property
    def newest(self) -> dict[str, float]:
        """What was read since the last `take`, by name, without the counts."""
        self._read_lines()
        return {name: value for name, value in self._newest.items() if name not in ("bad_losses", "bad_grad_norms")}

    def take(self) -> list[float] | None:
        """A row of NAMES, NaN for what nobody printed since the last call; None: nothing was printed at all."""
        self._read_lines()
        if not self._newest:
            return None
        row = [self._newest.get(name.removeprefix("printed_"), math.nan) for name in NAMES]
        self._newest = {}
        return row

    def begin_again(self) -> None:
        """Another process writes it from now on."""
        self._read_lines()
        self._bad_losses = self._bad_norms = self._excused = 0
        self._overflow, self._overflow_total = False, 0.0

    def _read_lines(self) -> None:
        for line in self._lines:
            text = line.decode(errors="replace")
            found = self._search.formats.read(_COLOURS.sub("", text) if "\x1b" in text else text)
            if found is not None and (found.values or found.overflow):
                self._take_in(found)
        self._lines.clear()

    def _take_in(self, line: LineValues) -> None:
        values = dict(line.values)
        if "overflow_total" in values:
            before, self._overflow_total = self._overflow_total, values.pop("overflow_total")
            values["overflow_steps"] = max(0.0, self._overflow_total - before)
        self._newest |= values
        self._overflow = self._overflow or line.overflow or values.get("overflow_steps", 0.0) > 0.0
        if "loss" in values or "grad_norm" in values:
            self._count(values)
            self._overflow = False
        self._newest |= {"bad_losses": self._bad_losses, "bad_grad_norms": self._bad_norms}

    def _count(self, values: dict[str, float]) -> None:
        """A loss or a norm that is no number, where no overflow explains it."""
        loss, norm = values.get("loss"), values.get("grad_norm", 0.0)
        bad_norm = not math.isfinite(norm)
        bad_loss = (loss is not None and not math.isfinite(loss)) or (bad_norm and (loss == 0.0 or (loss is None and "step" in values)))
        if not (bad_loss or bad_norm):
            self._excused = 0
        elif self._overflow and self._excused < EXCUSED:
            self._excused += 1
            return
        if loss is not None or bad_loss:
            self._bad_losses = self._bad_losses + 1 if bad_loss else 0
        if "grad_norm" in values:
            self._bad_norms = self._bad_norms + 1 if bad_norm and not bad_loss else 0


def _line_around(piece: bytes, place: int) -> tuple[int, int]:
    """Where the line begins and ends that has this place; of a longer one LONGEST bytes on both sides, so that nobody searches a megabyte without an end of line."""
    low, high = max(0, place - LONGEST), place + LONGEST
    begin = max(piece.rfind(b"\n", low, place) + 1, piece.rfind(b"\r", low, place) + 1, low)
    end = piece.find(b"\n", place, high)
    end = end if end >= 0 else min(high, len(piece))
    drawn = piece.find(b"\r", place, end)
    return begin, drawn if drawn >= 0 else end
