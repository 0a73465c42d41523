"""`eagle-eye collectives`: who did not come to a collective or called another one, from dumps of torch's flight recorder; how long they took, from logs of NCCL Inspector."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import msgspec
from rich.console import Console

from eagle_eye.activity.differing_calls import GROUP, ORDER, CallMismatch
from eagle_eye.activity.dump_names import ranks_of
from eagle_eye.activity.dump_reader import read_dumps
from eagle_eye.activity.flight_dump import FlightDump
from eagle_eye.activity.inspector_log import InspectorSummary, OperationSummary, is_inspector_log
from eagle_eye.activity.missing_ranks import MissingRanks, Wait, missing_ranks
from eagle_eye.app import options
from eagle_eye.app.printing import TableColumn, print_json, print_table, print_text
from eagle_eye.errors import WireError

MOST_RANKS = 8
"""Ranks that a line names one by one."""
MOST_OPERATIONS = 40
"""Rows of the table; --json has all."""


@click.command(short_help="name the ranks that did not come to a collective or called another one, from dumps of torch's flight recorder; durations from NCCL Inspector")
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@options.as_json
@options.wide
def command(paths: tuple[Path, ...], json_lines: bool, wide: bool) -> None:
    """Read the dumps of a job's ranks (files, or folders of them) and say which ranks the others wait for, and which called a collective otherwise.

    torch writes a dump at a time-out where TORCH_NCCL_DUMP_ON_TIMEOUT=1 and TORCH_FR_DUMP_TEMP_FILE=PREFIX are set: PREFIX0, PREFIX1, ... on the
    nodes of the ranks. Collect them in one folder first. Nothing in a dump is executed. Exits with 1 where there are dumps and nothing is found.

    What the ranks of a group passed to the same collective has to agree in operation, size, type and order. More than half of the group decides who
    differs; without such a majority nobody is named. Such a difference is a fault of the program, not of a machine.

    Logs of NCCL Inspector (NCCL 2.28 and later, HOST-pidPID.log) in the folder are added up: bytes, duration and bus bandwidth of each operation of each
    communicator, and the rank that the others wait for.

    `eagle-eye blame` is the same command.

    \b
    Examples:
      eagle-eye collectives dumps/
      eagle-eye collectives trace_0 trace_1 --json
    """
    dumps, measured = _read(paths)
    operations = list(measured.operations())
    if not dumps and not operations:
        raise click.ClickException("no dump of a flight recorder and no log of NCCL Inspector was found: name the files, or the folder that they are in")
    found = missing_ranks(dumps)
    if json_lines:
        print_json({**msgspec.to_builtins(found), "operations": msgspec.to_builtins(operations)})
    else:
        if dumps:
            _show(found, dumps, wide=wide)
        if operations:
            _show_operations(operations, wide=wide)
    if measured.unreadable:
        click.echo(f"left out: {measured.unreadable} of {measured.lines} lines of NCCL Inspector: torn, or of another version", err=True)
    if dumps and not (found.ranks or found.mismatches):
        raise SystemExit(1)


def _read(paths: Sequence[Path]) -> tuple[list[FlightDump], InspectorSummary]:
    """What cannot be read is named, and the others count all the same."""
    others: list[Path] = []
    measured = InspectorSummary()
    for path in paths:
        for file in sorted(path.iterdir()) if path.is_dir() else (path,):
            if not is_inspector_log(file):
                others.append(file)
            else:
                try:
                    measured.read(file)
                except WireError as error:
                    _leave_out(error)
    return _dumps(others), measured


def _dumps(paths: Sequence[Path]) -> list[FlightDump]:
    read: list[tuple[Path, FlightDump]] = []
    for path, outcome in zip(paths, read_dumps(paths), strict=True):
        if isinstance(outcome, FlightDump):
            read.append((path, outcome))
        else:
            _leave_out(outcome)
    dumps: dict[int, FlightDump] = {}
    for (path, dump), rank in zip(read, ranks_of([path for path, _ in read]), strict=True):
        if rank is None:
            _leave_out(f"{path}: its name does not say the rank: name it PREFIX_RANK, as trace_7")
        elif rank in dumps:
            _leave_out(f"{path}: there is another dump of rank {rank}: give those of one time")
        else:
            dumps[rank] = replace(dump, rank=rank)
    return list(dumps.values())


def _leave_out(why: WireError | str) -> None:
    click.echo(f"left out: {why}", err=True)


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
    for mismatch in found.mismatches:
        print_text(console, _difference(mismatch))
    print_text(console, f"{len(dumps)} dump{'s' if len(dumps) != 1 else ''}, {sum(dump.recorded for dump in dumps)} collectives.")


def _show_operations(operations: Sequence[OperationSummary], *, wide: bool) -> None:
    console = Console()
    columns = (
        TableColumn("operation", prose=True), TableColumn("group", drop=1, prose=True), TableColumn("files"), TableColumn("times"), TableColumn("MB"), TableColumn("ms"),
        TableColumn("bus GB/s"), TableColumn("waits for", prose=True),
    )  # fmt: skip
    print_table(console, columns, (_measured_row(each) for each in operations[:MOST_OPERATIONS]), wide=wide)
    if len(operations) > MOST_OPERATIONS:
        print_text(console, f"{len(operations) - MOST_OPERATIONS} further operations took less time.")


def _measured_row(each: OperationSummary) -> tuple[str, ...]:
    last = f"rank {each.last_rank}: {1e3 * (each.last_rank_s or 0.0):.3g} ms" if each.last_rank is not None else ""
    bus = f"{each.bus_bytes_per_s / 1e9:.4g}" if each.bus_bytes_per_s is not None else ""
    files = f"{len(each.ranks)}/{each.size}" if each.size else str(len(each.ranks))
    return each.operation, f"{each.group} {each.communicator}".strip(), files, str(each.count), f"{each.mean_bytes / 1e6:.4g}", f"{1e3 * each.mean_s:.4g}", bus, last


def _verdict(found: MissingRanks) -> str:
    if not found.ranks:
        return _verdict_on_nobody(found)
    victims = f" {found.victims} other{'s' if found.victims != 1 else ''} wait{'s' if found.victims == 1 else ''} because of that." if found.victims else ""
    differing = {rank for mismatch in found.mismatches for rank in mismatch.ranks}
    if set(found.ranks) <= set(found.without_dump):
        return f"The others wait for {_ranks(found.ranks)}, of which there is no dump.{victims}"
    if set(found.ranks) <= differing:
        return f"{_ranks(found.ranks).capitalize()} called a collective otherwise than the others of the group: look at the program.{victims}"
    return f"The others wait for {_ranks(found.ranks)}.{victims}"


def _verdict_on_nobody(found: MissingRanks) -> str:
    if found.mismatches:
        return "Ranks of a group called a collective differently: look at the program, no machine is at fault."
    whole = next((wait for wait in found.waits if not wait.missing), None)
    if whole is not None:
        return f"All of group {whole.group} {whole.description}".rstrip() + f" have come to {whole.operation} {whole.number}, and it does not end: look at their links and GPUs. Nobody is named."
    if found.between:
        pairs = "; ".join(f"{first} and {second}" for first, second in found.between[:MOST_RANKS])
        return f"Both ends of a message wait in it, and it does not end: look at the link between ranks {pairs}. Nobody is named."
    return "No rank waits for another one in these dumps: nobody is missing."


def _difference(found: CallMismatch) -> str:
    """In words, with both sides."""
    where = f"group {found.group} {found.description}".rstrip()
    what = {GROUP: f"{where} is not the same group everywhere", ORDER: f"Another order of collectives from {found.number} of {where} on"}.get(
        found.kind, f"Another {found.kind} in collective {found.number} of {where}"
    )
    sides = "; ".join(f"{_ranks(side.ranks)}: {side.call}" for side in found.sides)
    who = f" {_ranks(found.ranks).capitalize()} differ{'s' if len(found.ranks) == 1 else ''} from more than half of the group." if found.ranks else " No side has more than half of the group."
    return f"{what[0].upper()}{what[1:]}: {sides}.{who}"


def _row(wait: Wait) -> tuple[str, ...]:
    return f"{wait.operation} {wait.number}", f"{wait.group} {wait.description}".rstrip(), _ranks(wait.waiting), _ranks(wait.missing) if wait.missing else "nobody: all have come"


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(str(rank) for rank in ranks[:MOST_RANKS])
    more = f" and {len(ranks) - MOST_RANKS} more" if len(ranks) > MOST_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named}{more}"
