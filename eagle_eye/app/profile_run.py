"""Runs the layer profiler in the user's interpreter, with a progress bar, and prints the profile."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from eagle_eye.app.printing import TableColumn, print_table
from eagle_eye.errors import ConfigError, EagleEyeError

UNUSABLE = 2
"""Exit status of the profiler for a model that cannot be profiled."""


def run(python: str, arguments: Sequence[str]) -> tuple[Path, bool]:
    """(file of the profile, whether it was in the cache). Ends the profiler when interrupted.

    Raises ConfigError for a model that cannot be profiled, EagleEyeError when the profiler fails.
    """
    command = [python or sys.executable, "-m", "eagle_eye.training.profile", *arguments]
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise ConfigError(f"--python {command[0]}: {error.strerror}; name the interpreter that trains the model") from error
    try:
        last = _watch(process)
        _, complaint = process.communicate()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if process.returncode == UNUSABLE:
        raise ConfigError(complaint.strip())
    if process.returncode or "profile" not in last:
        raise EagleEyeError(f"the profiler ended with {process.returncode}: {complaint.strip()[-2000:]}")
    return Path(last["profile"]), bool(last["cached"])


def _watch(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Show its progress; returns its last report."""
    report: dict[str, Any] = {}
    columns = (TextColumn("profiling"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading the model", total=None)
        for line in process.stdout or ():
            try:
                report = json.loads(line)
            except ValueError:
                continue  # output of the user's model
            if isinstance(report, dict) and "of" in report:
                bar.update(task, total=report["of"], completed=report["done"], description=str(report["what"]))
    return report if isinstance(report, dict) else {}


def print_profile(record: dict[str, Any], path: Path, cached: bool, *, wide: bool) -> None:
    """One line a layer, and the sums."""
    console = Console()
    layers, counts = record["layers"], sorted({count for times in record["allreduce_in_node"] for count in times} - {"1"}, key=int)
    titles = ("forward ms", "backward ms", "parameters MB", "activations MB", "GFLOP", *(f"all-reduce ×{count} ms" for count in counts))
    columns = (TableColumn("layer", name=True), *(TableColumn(title, drop=place if place > 1 else 0) for place, title in enumerate(titles)))
    rows = []
    for layer, times in zip(layers, record["allreduce_in_node"], strict=True):
        parameters, activations = layer["mem_required"]
        numbers = (layer["forward"], layer["backward"], parameters / 1e6, activations / 1e6, layer["flops"] / 1e9, *(times.get(count, 0.0) for count in counts))
        rows.append((layer["name"], *(f"{number:.3g}" for number in numbers)))
    hardware, versions = record["hardware"], record["versions"]
    console.print(f"{record['model']['name']}, micro-batch {record['micro_batch']}, on {hardware['device']} ({hardware['name']}), torch {versions['torch']}", highlight=False)
    print_table(console, columns, rows, wide=wide)
    milliseconds = sum(layer["forward"] + layer["backward"] for layer in layers)
    teraflops = sum(layer["flops"] for layer in layers) / milliseconds / 1e9 if milliseconds else 0.0
    console.print(f"{milliseconds:.1f} ms forward and backward, {teraflops:.3g} TFLOP/s{', from the cache' if cached else ''}: {path}", highlight=False, soft_wrap=True)
