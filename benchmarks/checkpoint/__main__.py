"""All that is promised of checkpoints, in one run and one table.

    python -m benchmarks.checkpoint                        about 50 minutes on 2 cores that have nothing else to do, 20 GiB of memory
    python -m benchmarks.checkpoint --quick                about 10 minutes: 1 GiB alone, few moments, bounds that are wide
    python -m benchmarks.checkpoint --only kills flips     some of the parts; --list names them

The parts run one after the other, each as a process of its own (`python -m benchmarks.checkpoint.NAME` runs one by itself). One that fails, or takes
four times as long as it should, is a row that has not met its goal, and the next one begins; Ctrl-C (or SIGTERM) ends what runs and prints what is there. Progress
goes to stderr. The exit status is 1 where a goal was missed. Times say little on a machine that does other things meanwhile: the last rows say whether it did.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import psutil

from benchmarks.machine import neighbours
from benchmarks.report import Row, report

PATIENCE = 4
"""A part may take so many times what is expected, and ..."""
LEAST_S = 300.0
"""... so long in any case."""
END_S = 20.0
"""That a part has to end those that it has started."""
SHARED_ROWS = ("processor time that other machines took", "processes that wanted the processors")
"""Beginnings of rows that say how busy the machine was: of the whole run they are at the end."""
GIB = 1 << 30


class Part(NamedTuple):
    """Of the run."""

    name: str
    command: tuple[str, ...]
    minutes: float
    """Expected, on two idle cores."""
    needs_bytes: int = 0
    """Of free memory; left out where there is less."""


def part(name: str, module: str, arguments: str, minutes: float, needs_gib: float = 0.0) -> Part:
    """One of the modules beside this one."""
    return Part(name, (sys.executable, "-m", f"benchmarks.checkpoint.{module}", "--json", *arguments.split()), minutes, int(needs_gib * GIB))


WHOLE = (
    part("memory", "memory", "--gib 1 --pairs 12", 4, 5),
    part("memory-4", "memory", "--gib 4 --pairs 0", 6, 18),
    part("backup", "backup", "--rounds 12", 4),
    part("neighbour", "neighbour", "--mib 1024 --moments 200", 4, 5),
    part("neighbour-4", "neighbour", "--mib 4096 --moments 0 --flips 0", 3, 20),
    part("kills", "kills", "--moments 200", 5),
    part("node_kills", "node_kills", "--moments 67", 8),
    part("lost_nodes", "lost_nodes", "", 6),
    part("flips", "flips", "--count 200", 2),
    part("reshard", "reshard", "", 1),
    part("many_saves", "many_saves", "--saves 10000", 5),
)
QUICK = (
    part("memory", "memory", "--gib 1 --pairs 4", 2, 5),
    part("backup", "backup", "--rounds 3", 1.5),
    part("neighbour", "neighbour", "--mib 1024 --moments 20", 1, 5),
    part("kills", "kills", "--moments 20", 0.5),
    part("node_kills", "node_kills", "--moments 5", 0.7),
    part("lost_nodes", "lost_nodes", "--one-each", 1.6),
    part("flips", "flips", "--count 10", 0.2),
    part("reshard", "reshard", "", 0.5),
    part("many_saves", "many_saves", "--saves 1000 --warm-up 300", 0.7),
)


class Interrupted(Exception):
    """Ctrl-C, while a part ran."""


def rows_of(part: Part) -> list[Row]:
    """Run it. Raises Interrupted."""
    free = psutil.virtual_memory().available
    if free < part.needs_bytes:
        return [Row(part.name, f"left out: it needs {part.needs_bytes / GIB:.0f} GiB of memory, {free / GIB:.0f} are free")]
    limit_s = max(LEAST_S, PATIENCE * 60 * part.minutes)
    process = subprocess.Popen(part.command, stdout=subprocess.PIPE, text=True, start_new_session=True)  # so that Ctrl-C does not reach it before us
    try:
        printed, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        end(process)
        return [failed(part, f"not done after {limit_s:.0f} s")]
    except KeyboardInterrupt:
        end(process)
        raise Interrupted from None
    end(process)  # what it has left behind
    try:
        return [Row(**row) for row in json.loads(printed)["rows"] if not row["what"].startswith(SHARED_ROWS)]
    except (ValueError, KeyError, TypeError):
        return [failed(part, f"ended with {process.returncode} and printed no result")]


def failed(part: Part, why: str) -> Row:
    """In place of its rows."""
    return Row(part.name, why, "a result", False)


def end(process: "subprocess.Popen[str]") -> None:
    """Let it end those that it has started, then end them all."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def table(parts: Sequence[Part], say: Callable[[str], object]) -> list[Row]:
    """All rows; those that are there where somebody interrupts it."""
    steal, load, rows = neighbours(), os.getloadavg()[0], list[Row]()
    for number, each in enumerate(parts, 1):
        say(f"{number} of {len(parts)}: {each.name}, about {each.minutes:g} min ...")
        began = time.monotonic()
        try:
            rows += rows_of(each)
        except Interrupted:
            rows += [failed(left, "interrupted") for left in parts[number - 1 :]]
            break
        say(f"{each.name}: {(time.monotonic() - began) / 60:.1f} min")
    waiting = Row(f"{SHARED_ROWS[1]}, before and at the end", f"{load:.1f}, {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", peer="above 2 the times above say little")
    return [*rows, steal(), waiting]


def main() -> int:
    """Run the parts and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1 GiB alone, few moments")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these parts alone")
    parser.add_argument("--list", action="store_true", help="name the parts, and how long they take")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    parts = QUICK if options.quick else WHOLE
    if options.list:
        print(*(f"{each.name:12} {each.minutes:4g} min   {' '.join(each.command[1:])}" for each in parts), sep="\n")
        return 0
    if unknown := set(options.only or ()) - {each.name for each in parts}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}; --list names them")
    for number in (signal.SIGINT, signal.SIGTERM):  # also where the shell has us ignore them, in the background
        signal.signal(number, signal.default_int_handler)
    chosen = [each for each in parts if not options.only or each.name in options.only]
    rows = table(chosen, lambda text: print(text, file=sys.stderr, flush=True))
    return report(rows, options.json, "checkpoints: figures, goals, and what others do")


if __name__ == "__main__":
    sys.exit(main())
