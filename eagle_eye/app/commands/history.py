"""`eagle-eye history metrics | entities | export | bad-records`."""

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from eagle_eye.app import options
from eagle_eye.app.printing import TableColumn, brief_time, local_time, print_table
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError

FORMULA = r"^([=+\-@\t\r])"
"""How a cell begins that a spreadsheet computes."""


@click.group(short_help="list and export metrics, and records that could not be read")
def command() -> None:
    """List and export metrics from the history, and records that could not be read.

    \b
    Examples:
      eagle-eye history metrics
      eagle-eye history export power_watts --table gpu --last 1h --every 10s -o power.csv
      eagle-eye history bad-records
    """


def window(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --last, --since, --until and --job."""
    added: tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...] = (
        click.option("--job", default="", help="Only of one job: tenant/name, or one run of it: tenant/name/run."),
        click.option("--until", default="", help="End, e.g. 2025-11-20T09:00 (UTC). Default: now."),
        click.option("--since", default="", help="Beginning, written as --until; instead of --last."),
        click.option("--last", default="1h", show_default=True, callback=options.duration, help="How far back from the end: 90s, 30m, 6h, 2d."),
    )
    for add in added:
        function = add(function)
    return function


@command.command(short_help="list metrics")
@click.argument("table", default="")
@options.wide
@options.deployment
def metrics(config: Config, table: str, wide: bool) -> None:
    """List the metrics of a TABLE (gpu, node, worker, steps), or of all.

    \b
    Examples:
      eagle-eye history metrics
      eagle-eye history metrics gpu
    """
    rows = [(metric.table, metric.name) for metric in _history(config).metrics(table)]
    if rows:
        print_table(Console(), (TableColumn("table"), TableColumn("metric", name=True)), rows, wide=wide)
    else:
        click.echo("the history is empty so far: it is written every half minute")


@command.command(short_help="list GPUs, nodes or workers with samples")
@click.argument("table")
@window
@options.wide
@options.deployment
def entities(config: Config, table: str, last: float, since: str, until: str, job: str, wide: bool) -> None:
    """List the GPUs, nodes or workers of a TABLE that have samples in a time window.

    \b
    Examples:
      eagle-eye history entities gpu --last 10m
      eagle-eye history entities worker --job team/gpt/20251120-083000
    """
    begin, end = _times(last, since, until)
    columns = (TableColumn("job", name=True), TableColumn("node", name=True), TableColumn("entity", name=True))
    print_table(Console(), columns, _history(config).entities(table, since=begin, until=end, job=job), wide=wide)


@command.command(short_help="export samples as CSV or Parquet")
@click.argument("names", metavar="METRIC...", nargs=-1, required=True)
@click.option("--table", required=True, help="gpu, node, worker, steps; `eagle-eye history metrics` lists them.")
@window
@click.option("--entity", "entities", multiple=True, help="Only of this entity; may be given several times.")
@click.option("--every", default=None, callback=options.duration, help="One value per interval (10s, 5m) instead of all samples.")
@click.option("--aggregate", type=click.Choice(["mean", "min", "max", "last", "count"]), default="mean", show_default=True, help="With --every: the value of an interval, from its samples.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), default=None, help="*.csv or *.parquet. Default: CSV to the terminal.")
@options.deployment
def export(
    config: Config, names: tuple[str, ...], table: str, last: float, since: str, until: str, job: str, entities: tuple[str, ...], every: float | None,
    aggregate: str, output: Path | None,
) -> None:  # fmt: skip
    """Export samples as CSV or Parquet, one row for each time and entity.

    \b
    Examples:
      eagle-eye history export power_watts temperature_celsius --table gpu --last 1h --every 10s -o power.csv
      eagle-eye history export loss step_s --table steps --job team/gpt/20251120-083000 -o steps.parquet
      eagle-eye history export cpu_percent --table node --since 2025-11-20T08:00 --until 2025-11-20T08:05 --entity node-a
    """
    if output is not None and output.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"{output}: name it *.csv or *.parquet")
    begin, end = _times(last, since, until)
    console = Console(stderr=True)
    with console.status("reading the history"):
        rows = _history(config).series(
            table, names, since=begin, until=end, job=job, entities=entities, every=every or 0.0, aggregate=aggregate
        )
        _write(rows, output)
    if output is not None:
        console.print(f"{rows.num_rows:,} rows in {output}")
    if not rows.num_rows:
        console.print(f"no sample matches in that time: `eagle-eye history entities {table}` lists the entities that have samples", soft_wrap=True)


@command.command("bad-records", short_help="list records that could not be read")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Write them to a file, one JSON object a line; the bytes are base64.")
@options.wide
@options.deployment
def bad_records(config: Config, output: Path | None, wide: bool) -> None:
    """List the records that could not be read: where they lay in the stream, and why they were passed over.

    They are kept as long as the stream keeps records ([stream] retention_s). One comes from a program of another version, or
    from somebody who should not be able to write there.

    \b
    Examples:
      eagle-eye history bad-records
      eagle-eye history bad-records -o bad-records.jsonl
    """
    from eagle_eye.dead_letters import dead_letters
    from eagle_eye.stream.factory import open_stream

    with closing(open_stream(config, SystemClock())) as stream:
        kept = list(dead_letters(stream))
    if output is not None:
        _write_lines(output, [msgspec.json.encode({"time": each.time, "key": each.key, **msgspec.structs.asdict(each.letter)}) for each in kept])
        click.echo(f"{len(kept):,} records in {output}")
    elif not kept:
        click.echo("every record could be read")
    else:
        rows = [(local_time(time), key, f"{letter.topic}/{letter.partition}", str(letter.offset), letter.reason) for time, key, letter in kept]
        columns = (TableColumn("time", brief=brief_time), TableColumn("key", name=True), TableColumn("topic", drop=1), TableColumn("offset"), TableColumn("why", prose=True))
        print_table(Console(), columns, rows, wide=wide)


def _write_lines(path: Path, lines: Sequence[bytes]) -> None:
    try:
        path.write_bytes(b"".join(line + b"\n" for line in lines))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error


def _history(config: Config) -> Any:
    from eagle_eye.history.factory import open_history

    return open_history(config)


def _write(table: Any, output: Path | None) -> None:
    import pyarrow as arrow
    from pyarrow import csv, parquet

    try:
        if output is None:
            text = arrow.BufferOutputStream()
            csv.write_csv(_without_formulas(table), text)
            click.echo(text.getvalue().to_pybytes(), nl=False)
        elif output.suffix == ".parquet":
            parquet.write_table(table, output, compression="zstd")
        else:
            csv.write_csv(_without_formulas(table), output)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror or error}") from error


def _without_formulas(table: Any) -> Any:
    """Names and texts are a job's own: a spreadsheet would run one that begins as a formula does (https://owasp.org/www-community/attacks/CSV_Injection)."""
    import pyarrow as arrow
    from pyarrow import compute

    for index, field in enumerate(table.schema):
        if arrow.types.is_string(field.type) or arrow.types.is_large_string(field.type):
            table = table.set_column(index, field, compute.replace_substring_regex(table.column(index), FORMULA, r"'\1"))
    return table.rename_columns([re.sub(FORMULA, r"'\1", name) for name in table.column_names])


def _times(last: float, since: str, until: str) -> tuple[float, float]:
    end = _moment(until) if until else SystemClock().now()
    return (_moment(since) if since else end - last), end


def _moment(text: str) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time: write for example 2025-11-20T09:00; it is UTC unless it names an offset") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
