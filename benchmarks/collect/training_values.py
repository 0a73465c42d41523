"""Whether training values are read out of the lines that hold them, and what that costs.

    python -m benchmarks.collect.training_values                sample lines of each framework, and the speed
    python -m benchmarks.collect.training_values --data DIR     also DIR/nccl_logs, DIR/llm_incidents, DIR/nccl_issue_incidents, DIR/gpu_node_logs

The public logs: lines of Megatron-LM out of logbooks are compared with a table of the same iterations; in whole logs of jobs a training line is one of a simple
rule (MLPerf's `train_loss`, Megatron's `iteration N/`), and every other line with a value is a mistake; logs of errors and of kernels hold none. The speed is that of
the collector with the table and without, on the same log, by turns; beside it one regular expression for `step … loss …` over lines in Python.
"""

import argparse
import csv
import gzip
import json
import math
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.collect.job_log import GOAL_MB_S, collect, follow, write_log
from benchmarks.collect.training_lines import HARMLESS, SAMPLES
from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from collectors.log.printed_values import PrintedValues, ValueSearch
from collectors.log.value_formats import ValueFormats

GOAL = 0.98
TURNS = 3
PART = 16
"""The regular expression reads one part of so many: it would take minutes for all."""
TRAINING = re.compile(r'"train_loss"|\biteration +\d+/')
PLAIN = re.compile(r"step\D{0,3}(\d+).*?loss\D{0,3}([\d.]+)|iteration +(\d+).*?loss: ([\d.E+-]+)", re.IGNORECASE)
"""What small tools search for."""


class Read(NamedTuple):
    """What was read out of some lines."""

    lines: int
    right: int
    others: int
    """Values in lines that hold none."""
    peer: int
    """Lines with a loss by PLAIN."""


def values_of(line: str, search: ValueSearch) -> dict[str, float]:
    """What a log that has only this line says, by the agent's own way."""
    values = PrintedValues(search)
    values.read(line.encode(errors="replace") + b"\n")
    return values.newest


def samples(search: ValueSearch) -> Read:
    """All values of each sample, in their units."""
    right = others = 0
    for sample in SAMPLES:
        wanted = dict(sample.values or {})
        if "overflow_total" in wanted:
            wanted["overflow_steps"] = wanted.pop("overflow_total")
        right += same(values_of(sample.line, search), wanted)
    for line in HARMLESS:
        others += bool(values_of(line, search))
    return Read(len(SAMPLES), right, others, sum(bool(PLAIN.search(sample.line)) for sample in SAMPLES))


def same(found: dict[str, float], wanted: dict[str, float]) -> bool:
    """The same names and values; NaN is like NaN."""
    return found.keys() == wanted.keys() and all(math.isclose(found[name], wanted[name], rel_tol=1e-6) or (math.isnan(found[name]) and math.isnan(wanted[name])) for name in wanted)


def logbooks(data: Path, search: ValueSearch) -> Read:
    """Lines of Megatron-LM in logbooks of real runs, beside a table of what they say. Five are broken in two there: such halves are left out."""
    with (data / "llm_incidents" / "iteration_lines.csv").open() as file:
        known = {(int(row["iteration"]), float(row["lm_loss"])): row for row in csv.DictReader(file)}
    lines = [line for row in _jsonl(data / "llm_incidents" / "raw_log_blocks.jsonl") for line in str(row["text"]).splitlines()]
    training = [line for line in lines if "elapsed time per iteration" in line and "lm loss" in line]
    right = 0
    for line in training:
        found = values_of(line, search)
        row = known.get((int(found.get("step", -1)), found.get("loss", math.nan)))
        norms = row is None or not row["grad_norm"] or math.isclose(found["grad_norm"], float(row["grad_norm"]), abs_tol=1e-3)
        right += {"step", "loss", "grad_norm", "iteration_s", "learning_rate"} <= found.keys() and norms
    others = sum(bool(values_of(line, search)) for line in lines if "elapsed time per iteration" not in line)
    return Read(len(training), right, others, sum(bool(PLAIN.search(line)) for line in training))


def whole_logs(data: Path, search: ValueSearch) -> Iterator[tuple[str, Read]]:
    """(name, what was read) of each log of a job."""
    for row in json.loads((data / "nccl_logs" / "labels.json").read_text()):
        lines = gzip.decompress((data / "nccl_logs" / row["file"]).read_bytes()).decode(errors="replace").splitlines()
        training = [line for line in lines if TRAINING.search(line)]
        right = sum("loss" in found or "overflow_steps" in found for found in (values_of(line, search) for line in training))
        others = sum(bool(values_of(line, search)) for line in lines if not TRAINING.search(line))
        yield row["file"], Read(len(training), right, others, sum(bool(PLAIN.search(line)) for line in training))


def without_values(data: Path, search: ValueSearch) -> Read:
    """Lines of errors and kernels."""
    lines = [line for row in _jsonl(data / "nccl_issue_incidents" / "incidents.jsonl") for line in str(row["rendered_log"]).splitlines()]
    lines += [str(row["line"]) for row in _jsonl(data / "gpu_node_logs" / "kernel_lines.jsonl")]
    return Read(len(lines), len(lines), sum(bool(values_of(line, search)) for line in lines), sum(bool(PLAIN.search(line)) for line in lines))


def speed(megabytes: int) -> list[Row]:
    """Of the collector with and without the table, by turns: the best of each."""
    best = {True: math.inf, False: math.inf}
    with tempfile.TemporaryDirectory(prefix="training-values") as name:
        whole = Path(name) / "whole.log"
        write_log(whole, megabytes)
        for turn in range(2 * TURNS):
            on = turn % 2 == 0
            folder = Path(name) / str(turn)
            folder.mkdir()
            log = folder / "0.log"
            collector = follow(folder, log, training_values=on)
            log.unlink()
            log.hardlink_to(whole)
            best[on] = min(best[on], collect(collector, log).seconds)
        began = time.perf_counter()
        with whole.open(errors="replace") as file:
            sum(bool(PLAIN.search(line)) for line in file.readlines((megabytes << 20) // PART))
        plain = megabytes / PART / (time.perf_counter() - began)
    on_mb_s, off_mb_s = megabytes / best[True], megabytes / best[False]
    return [
        Row(
            f"job_log with training values: {megabytes} MB", f"{on_mb_s:.0f} MB/s", f"≥ {GOAL_MB_S:g} MB/s", on_mb_s >= GOAL_MB_S,
            f"without them: {off_mb_s:.0f} MB/s; one expression over lines: {plain:.0f} MB/s", f"{on_mb_s / off_mb_s:.2f} and {on_mb_s / plain:.0f} times",
        )
    ]  # fmt: skip


def _jsonl(path: Path) -> Iterator[dict[str, object]]:
    yield from (json.loads(line) for line in path.read_text().splitlines())


def _rows(what: str, read: Read) -> Iterator[Row]:
    if read.lines:
        yield Row(
            what, f"{read.right} of {read.lines}", f"≥ {GOAL:.0%}", read.right >= GOAL * read.lines, f"one expression: a loss in {read.peer}", f"{read.right / max(1, read.peer):.1f} times"
        )
    yield Row(f"{what}: values in lines that hold none", str(read.others), "0", read.others == 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, compare, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with nccl_logs/, llm_incidents/, nccl_issue_incidents/ and gpu_node_logs/")
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.megabytes < PART:
        parser.error(f"--megabytes is at least {PART}")
    search = ValueSearch(ValueFormats())
    rows = [*_rows("sample lines with all their values", samples(search))]
    if options.data:
        rows += _rows("lines of logbooks (Megatron-LM)", logbooks(options.data, search))
        for name, read in whole_logs(options.data, search):
            rows += _rows(f"training lines of {name.partition('__')[2][:44]}", read)
        rows += list(_rows("errors and kernels", without_values(options.data, search)))[1:]
    steal = neighbours()
    return report([*rows, *speed(options.megabytes), steal()], options.json, "training values in the output of jobs")


if __name__ == "__main__":
    sys.exit(main())
