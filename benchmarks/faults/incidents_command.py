"""How long `eagle-eye incidents` takes beside a load that wants every core, as a job that trains does.

    python -m benchmarks.faults.incidents_command
    python -m benchmarks.faults.incidents_command --loops 8 --runs 20

The ledger is that of the recorded demo, its incidents copied until there are a thousand. Beside the command, the same rows are read with the
interpreter's own sqlite3 in a process of their own, and an interpreter is started that does nothing: no command of Python can be faster.
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
from rich.progress import track

from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from eagle_eye.app.demo.run_archive import unpack
from eagle_eye.ledger import Ledger
from eagle_eye.types import IncidentState

GOAL_S = 1.0
INCIDENTS = 1000
BUSY = "while True: pass"
READ = """
import sqlite3, sys
rows = sqlite3.connect(sys.argv[1]).execute("SELECT id, opened, job, state, body FROM incidents ORDER BY opened DESC LIMIT 50")
for row in rows: print(*row)
"""


class Measured(NamedTuple):
    """One command, run several times."""

    what: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.seconds)


def make_ledger(state: Path) -> str:
    """The ledger of a state directory; returns the id of an incident that an action has healed."""
    unpack(state)
    with contextlib.closing(Ledger.open(state / "ledger.sqlite")) as ledger:
        recorded = ledger.incidents(limit=INCIDENTS)
        for number in range(INCIDENTS - len(recorded)):
            like = recorded[number % len(recorded)]
            ledger.save_incident(msgspec.structs.replace(like.incident, id=f"copy-{number:011x}"), IncidentState.OPEN, time=like.opened - number)
        return next(outcome.incident for outcome in ledger.outcomes(limit=1000) if outcome.state == "done")


@contextlib.contextmanager
def load(loops: int) -> Iterator[None]:
    """So many processes that never wait."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(loops)]
    try:
        yield
    finally:
        for each in busy:
            each.kill()
            each.wait()


def measure(commands: dict[str, list[str]], runs: int) -> list[Measured]:
    """Each command so many times, in turns, so that what else the machine does hits all of them. Raises CalledProcessError."""
    seconds = {what: list[float]() for what in commands}
    for _ in track(range(runs), "runs", console=None, transient=True, disable=not sys.stderr.isatty()):
        for what, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds[what].append(time.perf_counter() - began)
    return [Measured(what, tuple(each)) for what, each in seconds.items()]


def rows_of(ours: Sequence[Measured], reading: Measured, starting: Measured) -> list[Row]:
    """The median and the worst run of each command, beside those of the peers."""
    rows = [
        Row(
            f"{each.what}, median of {len(each.seconds)}", f"{each.median:.2f} s, worst {max(each.seconds):.2f} s", f"≤ {GOAL_S:g} s, the worst too",
            max(each.seconds) <= GOAL_S, f"sqlite3 in a process of its own: {reading.median:.2f} s, worst {max(reading.seconds):.2f} s",
            f"{each.median / reading.median:.1f} times",
        )
        for each in ours
    ]  # fmt: skip
    return [*rows, Row("python -c pass", f"{starting.median:.2f} s, worst {max(starting.seconds):.2f} s")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="of each command (10)")
    parser.add_argument("--loops", type=int, default=2, help="busy processes beside it (2)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.loops < 0:
        parser.error("--runs is at least 1, and --loops at least 0")
    eagle_eye = [str(Path(sys.executable).with_name("eagle-eye")), "incidents"]
    with tempfile.TemporaryDirectory(prefix="incidents-command") as folder:
        state = Path(folder)
        incident = make_ledger(state)
        here = ["--state-dir", folder]
        commands = {
            "eagle-eye incidents": [*eagle_eye, *here],
            "eagle-eye incidents --open --json": [*eagle_eye, "--open", "--json", *here],
            "eagle-eye incidents ID": [*eagle_eye, incident, *here],
            "sqlite3": [sys.executable, "-c", READ, str(state / "ledger.sqlite")],
            "pass": [sys.executable, "-c", "pass"],
        }
        measure(commands, 1)  # files are read once
        steal = neighbours()
        with load(options.loops):
            *ours, reading, starting = measure(commands, options.runs)
    return report([*rows_of(ours, reading, starting), steal()], options.json, f"eagle-eye incidents beside {options.loops} busy loops")


if __name__ == "__main__":
    sys.exit(main())
