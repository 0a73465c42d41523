"""`eagle-eye explain`: what a report of a failed run speaks for: class, cause, repair, who is not at fault."""

import errno
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console

from eagle_eye.app import options
from eagle_eye.app.printing import print_json, print_text
from eagle_eye.app.report_reader import FailureExplanation, ReportReader
from eagle_eye.redaction import redact
from eagle_eye.text_file import read_bytes

LARGEST = 256 << 20
"""Bytes that are read."""
STDIN = "-"


@click.command(short_help="say what a log excerpt, a traceback or a report of a failed run speaks for: cause, repair, who is not at fault")
@click.argument("files", nargs=-1, type=click.Path(dir_okay=False, path_type=Path, allow_dash=True))
@options.as_json
def command(files: tuple[Path, ...], json_lines: bool) -> None:
    """Read a report and name the failures that it speaks for, the strongest first: cause, what to do now, who is not at fault, what else it could be.

    A report is what you would paste into a ticket: lines of the job's, the kernel's or the scheduler's log, stacks of py-spy, lines of training, and words of
    your own ("hangs at eval", "iteration time 105 -> 111 s"). Without FILES it is read from stdin. Several files are one report. It works offline by tables
    (detectors/failures, collectors/log); nothing is asked, executed or kept, and nothing is done. Exits with 1 where the report speaks for no known failure.

    \b
    Examples:
      eagle-eye explain slurm-4711.out
      journalctl -k -b | eagle-eye explain
      eagle-eye explain ticket.txt stacks.txt --json
    """
    sources = [(str(path), _read(path)) for path in files or (Path(STDIN),)]
    lines = [line for _, text in sources for line in text]
    found = ReportReader().explain(lines)
    if json_lines:
        for each in found:
            print_json(each)
    elif found:
        _show(found, sources)
    else:
        click.echo("It speaks for no known failure: add the first error of all ranks, the kernel's log of the node, and what the job did at that time.")
    if not found:
        raise SystemExit(1)


def _read(path: Path) -> Sequence[str]:
    try:
        data = sys.stdin.buffer.read(LARGEST + 1) if str(path) == STDIN else read_bytes(path, LARGEST)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise _too_long(path) from error
        raise click.ClickException(f"{path} cannot be read: {error.strerror or error}") from error
    if len(data) > LARGEST:
        raise _too_long(path)
    return data.decode(errors="replace").splitlines()


def _too_long(path: Path) -> click.ClickException:
    return click.ClickException(f"{path} has more than {LARGEST >> 20} MB: name its end, tail -c 100M {path}")


def _show(found: Sequence[FailureExplanation], sources: Sequence[tuple[str, Sequence[str]]]) -> None:
    console = Console()
    for number, each in enumerate(found):
        if number:
            console.print()
        print_text(console, f"{each.title} [{each.name}], {each.sure}: {each.origin}; repair: {each.repair}")
        for text in _details(each, sources):
            print_text(console, text, indent=2)


def _details(each: FailureExplanation, sources: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    yield f"cause: {each.cause}"
    yield f"do now: {each.remedy}"
    yield f"not at fault: {each.innocent}"
    for line in each.lines:
        yield f"{_place(line.line, sources)}: {redact(line.text)} ({line.sign})"
    for rival in each.rivals:
        yield f"or {rival.title}: {rival.apart}"
    yield f"see {each.source}"


def _place(number: int, sources: Sequence[tuple[str, Sequence[str]]]) -> str:
    """File and line of a line of the whole report."""
    for name, lines in sources:
        if number <= len(lines):
            return f"line {number}" if len(sources) == 1 else f"{name}:{number}"
        number -= len(lines)
    return ""
