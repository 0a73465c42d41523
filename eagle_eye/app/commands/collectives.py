"""`eagle-eye collectives`: who did not come to a collective, from dumps of torch's flight recorder."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec
from rich.console import Console

from eagle_eye.activity.flight_dump import FlightDump, read_dump
from eagle_eye.activity.missing_ranks import MissingRanks, Wait, missing_ranks
from eagle_eye.app import options
from eagle_eye.app.printing import TableColumn, print_json, print_table, print_text
from eagle_eye.errors import WireError

MOST_RANKS = 8
"""Ranks that a line names one by one."""


@click.command(short_help="name the ranks that did not come to a collective, from dumps of torch's flight recorder")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@options.as_json
@options.wide
def command(paths: tuple[Path, ...], json_lines: bool, wide: bool) -> None:
    """Read the dumps of a job's ranks (files, or folders of them) and say which ranks the others wait for.

    torch writes a dump at a time-out where TORCH_NCCL_DUMP_ON_TIMEOUT=1 and TORCH_FR_DUMP_TEMP_FILE=PREFIX are set: PREFIX0, PREFIX1, ... on the
    nodes of the ranks. Collect them in one folder first. Nothing in a dump is executed. Exits with 1 where nobody is found.

    \b
    Examples:
      eagle-eye collectives dumps/
      eagle-eye collectives trace_0 trace_1 --json
    """
    dumps = list(_dumps(paths))
    if not dumps:
        raise click.ClickException("no dump of a flight recorder was found: name the files, or the folder that they are in")
    found = missing_ranks(dumps)
    if json_lines:
        print_json(msgspec.to_builtins(found))
    else:
        _show(found, dumps, wide=wide)
    if not found.ranks:
        raise SystemExit(1)


def _dumps(paths: Sequence[Path]) -> Iterator[FlightDump]:
    """What cannot be read is named, and the others count all the same."""
    for path in paths:
        for file in sorted(path.iterdir()) if path.is_dir() else (path,):
            try:
                yield read_dump(file)
            except WireError as error:
                click.echo(f"left out: {error}", err=True)


def _show(found: MissingRanks, dumps: Sequence[FlightDump], *, wide: bool) -> None:
    console = Console()
    print_text(console, _verdict(found))
    if found.without_dump:
        print_text(console, f"No dump of {_ranks(found.without_dump)}: gone, stopped, or on a node whose dumps are not here.")
    if found.waits:
        columns = (
            TableColumn("waits in", prose=True), TableColumn("group", drop=1, prose=True), TableColumn("who waits", prose=True), TableColumn("for", prose=True),
        )  # fmt: skip
        print_table(console, columns, (_row(wait) for wait in found.waits), wide=wide)
    print_text(console, f"{len(dumps)} dumps, {sum(len(dump.collectives) for dump in dumps)} collectives.")


def _verdict(found: MissingRanks) -> str:
    if not found.ranks:
        return "No rank waits for another one in these dumps: nobody is missing."
    if set(found.ranks) <= set(found.without_dump):
        return f"All ranks with a dump wait at the same place for {_ranks(found.ranks)}, of which there is no dump."
    return f"The others wait for {_ranks(found.ranks)}."


def _row(wait: Wait) -> tuple[str, ...]:
    return f"{wait.operation} {wait.number}", f"{wait.group} {wait.description}".rstrip(), _ranks(wait.waiting), _ranks(wait.missing)


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(str(rank) for rank in ranks[:MOST_RANKS])
    more = f" and {len(ranks) - MOST_RANKS} more" if len(ranks) > MOST_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}{more}"
