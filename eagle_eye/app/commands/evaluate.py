"""`eagle-eye evaluate`: what detectors and diagnosis make of labelled data."""

import shlex
from pathlib import Path

import click
from rich.console import Console

from eagle_eye.app import options
from eagle_eye.app.evaluation import evaluation_page, figures
from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.printing import TableCell, TableColumn, print_json, print_table, print_text
from eagle_eye.errors import DataSetError

COLUMNS = (
    TableColumn("data set"), TableColumn("what", prose=True), TableColumn("figure", prose=True), TableColumn("goal", drop=1, prose=True), TableColumn("met"),
    TableColumn("others", drop=2, prose=True),
)  # fmt: skip
MET: dict[bool | None, TableCell] = {None: "", True: "yes", False: ("no", "red")}


@click.group(invoke_without_command=True, short_help="evaluate detectors and diagnosis on labelled data: figures beside goals and what others reach")
@click.option("--data", type=click.Path(path_type=Path), help="Folder with a folder for each data set.")
@click.option("--only", multiple=True, metavar="NAME", help="Evaluate this data set alone. Repeatable. Default: all that the folder has.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write an HTML page; it opens without a network.")
@options.wide
@options.as_json
@click.pass_context
def command(context: click.Context, data: Path | None, only: tuple[str, ...], html: Path | None, wide: bool, json_lines: bool) -> None:
    """Read labelled data sets through the chain that runs live (collectors, frames, detectors, diagnosis), compare the verdicts with the labels, and print
    figure, goal and what others reach. Nothing is sent to a server. Exits with 1 where a goal is missed or a data set cannot be read.

    What is in each data set, and what is asked of it: docs/evaluate.md.

    \b
    Examples:
      eagle-eye evaluate --data data
      eagle-eye evaluate --data data --only flight_recorder --only nccl_logs
      eagle-eye evaluate --data data --html evaluation.html
    """
    if context.invoked_subcommand is not None:
        return
    if data is None:
        raise click.UsageError("--data is missing: name the folder with a folder for each data set")
    if html is not None:
        evaluation_page.check_page_path(html)
    found = _evaluated(data, figures.chosen(data, only))
    if json_lines:
        for each in found:
            print_json(each)
    else:
        _print(found, wide=wide)
    if html is not None:
        evaluation_page.write_page(html, found, shlex.join(["eagle-eye", "evaluate", "--data", str(data), *(word for name in only for word in ("--only", name))]))
        click.echo(f"{html} written", err=True)
    raise SystemExit(int(any(each.met is False for each in found)))


def _evaluated(data: Path, names: tuple[str, ...]) -> list[Figure]:
    """A data set that cannot be read is named, and the others are evaluated all the same."""
    found: list[Figure] = []
    for name in names:
        try:
            found += figures.figures_of(data, name)
        except DataSetError as error:
            click.echo(f"{name}: {error}", err=True)
            found.append(Figure(data_set=name, what="all of it", figure="not evaluated", goal="evaluated", met=False, reason=str(error)))
    return found


def _print(found: list[Figure], *, wide: bool) -> None:
    console = Console()
    print_table(console, COLUMNS, [(each.data_set, each.what, each.figure, each.goal, MET[each.met], each.others) for each in found], wide=wide)
    for each in found:
        if each.met is False and each.reason:
            print_text(console, f"missed: {each.data_set}, {each.what}: {each.reason}")
