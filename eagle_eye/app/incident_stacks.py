"""Prints the stacks that an incident keeps: all workers of a dump in groups of equal stacks, or each text as py-spy wrote it."""

from typing import Any

from rich.console import Console
from rich.markup import escape

from eagle_eye.activity.py_spy_text import parse_text
from eagle_eye.activity.stack_groups import SampledProcess, group_stacks
from eagle_eye.app.stack_printing import print_groups


def print_dump(console: Console, stacks: list[dict[str, Any]], *, wide: bool) -> None:
    """`stacks`: of the detail of a step `dump` (remediation/actions/dump.py). What is no output of py-spy, such as what the kernel said instead, is printed as it is."""
    found = [(each, () if wide else parse_text(each["stack"])) for each in stacks]
    processes = {str(worker): SampledProcess(samples=(threads,)) for each, threads in found if threads for worker in each["workers"]}
    print_groups(console, group_stacks(processes), "worker", wide=False)
    for each in (each for each, threads in found if not threads):
        console.print(f"[bold]{escape(', '.join(each['workers']))}[/]")
        console.print(each["stack"], highlight=False, markup=False, soft_wrap=True)
