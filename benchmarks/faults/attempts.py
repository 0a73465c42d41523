"""Who may do what: carries out the attempts of docs/access.md ("Threat model") against real processes, real gRPC and real TLS.

    python -m benchmarks.faults.attempts
    python -m benchmarks.faults.attempts --kind certificates commands

Each is to be refused, and told: a notice, a line of a log, or an answer that names what was refused and why. The attempts of another user
of the machine run as `nobody`, which needs root.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults import (
    foreign_certificates,
    foreign_commands,
    foreign_job_files,
    foreign_persons,
    foreign_records,
    local_users,
)
from benchmarks.faults.attempt import Answer, Kind
from benchmarks.report import Row, report

KINDS: tuple[Kind, ...] = (foreign_certificates.KIND, foreign_persons.KIND, local_users.KIND, foreign_job_files.KIND, foreign_commands.KIND, foreign_records.KIND)
"""A further kind is a module with a `KIND`."""
GOAL = 31
"""Attempts that docs/access.md writes down."""


async def carried_out(kind: Kind) -> dict[str, Answer]:
    """Each attempt of a kind and what became of it; one that fails in another way was not refused."""
    answers = dict[str, Answer]()
    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        async with kind.open(Path(folder)) as parts:
            for name, attempt in kind.attempts.items():
                try:
                    answers[name] = await attempt(parts)
                except Exception as error:  # noqa: BLE001  # whatever it is, the others are tried all the same
                    answers[name] = Answer(False, f"{type(error).__name__}: {error}")
                print(f"{name}: {answers[name].told or 'not told'}", file=sys.stderr)
    return answers


def rows_of(answers: dict[str, Answer]) -> list[Row]:
    """One row for each attempt, and their sum."""
    rows = [Row(name, _words(answer), "refused and told", answer.refused and bool(answer.told)) for name, answer in answers.items()]
    refused = sum(answer.refused for answer in answers.values())
    told = sum(answer.refused and bool(answer.told) for answer in answers.values())
    figure = f"{refused} of {len(answers)} refused, {told} told"
    return [*rows, Row("all attempts", figure, f"{GOAL} of {GOAL}", told == len(answers) >= GOAL)]


def _words(answer: Answer) -> str:
    return f"{'refused' if answer.refused else 'NOT refused'}, {'told' if answer.told else 'NOT told'}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry them out and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", nargs="+", choices=[kind.name for kind in KINDS], help="these alone; default: all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        parser.error("attempts of another user need root")
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[2])
    answers = dict[str, Answer]()
    for kind in KINDS:
        if not options.kind or kind.name in options.kind:
            answers |= asyncio.run(carried_out(kind))
    return report(rows_of(answers), options.json, "attempts at what is another's")


if __name__ == "__main__":
    sys.exit(main())
