"""`eagle-eye evaluate`: what detectors and diagnosis make of labelled data."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import Progress

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

    What is in each data set, and what is asked of it: docs/evaluate.md. `cluster` makes a synthetic cluster, `score` compares verdicts of any detector with its labels, `drills` leads synthetic incidents
    through the whole chain.

    \b
    Examples:
      eagle-eye evaluate --data data
      eagle-eye evaluate --data data --only flight_recorder --only nccl_logs
      eagle-eye evaluate --data data --html evaluation.html
      eagle-eye evaluate cluster --gpus 1000 --seed 7 --out cluster
      eagle-eye evaluate score cluster/labels.jsonl verdicts.jsonl
      eagle-eye evaluate drills --incidents 500 --seed 7
    """
    if context.invoked_subcommand is not None:
        return
    if data is None:
        raise click.UsageError("--data is missing: name the folder with a folder for each data set")
    if html is not None:
        evaluation_page.check_page_path(html)
    found = _evaluated(data, figures.chosen(data, only))
    words = shlex.join(["eagle-eye", "evaluate", "--data", str(data), *(word for name in only for word in ("--only", name))])
    _finish(found, html, words, wide=wide, json_lines=json_lines)


@command.command(short_help="make a synthetic cluster with every kind of fault and its innocent twins, and judge it")
@click.option("--gpus", type=click.IntRange(8, 100_000), default=1000, show_default=True, help="GPUs of the cluster.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The same seed gives the same cluster.")
@click.option("--steps", type=click.IntRange(min=100), default=200, show_default=True, help="Steps of each job, of about a second.")
@click.option("--out", type=click.Path(path_type=Path), help="Write frames (Parquet), events and labels into this new folder, for other detectors.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder with straggler_ops/, mlperf_power/ or acme_dist/: compute times, powers and temperatures of healthy machines vary as there. Default: stated in docs/evaluate.md.")
@click.option("--no-verdicts", is_flag=True, help="Only make the cluster; with --out.")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write an HTML page; it opens without a network.")
@options.wide
@options.as_json
def cluster(gpus: int, seed: int, steps: int, out: Path | None, data: Path | None, no_verdicts: bool, html: Path | None, wide: bool, json_lines: bool) -> None:
    """Make the jobs of a cluster from a seed, each with a fault or a twin that looks like one, and print how many faults the detectors and the diagnosis of this release
    find, whom they accuse, how soon, and how many healthy nodes they accuse. Exits with 1 where a goal is missed.

    With --out other detectors can be run on the same frames: docs/evaluate.md has the format. One job is held in memory at a time.

    \b
    Examples:
      eagle-eye evaluate cluster --gpus 64 --seed 7
      eagle-eye evaluate cluster --gpus 10000 --seed 7 --out cluster --no-verdicts
    """
    from eagle_eye.app import plugin_wiring
    from eagle_eye.app.evaluation.synthetic_cluster import cluster_jobs, cluster_run, cluster_score, recorded_data
    from eagle_eye.app.evaluation.synthetic_cluster.frame_files import FrameFiles
    from eagle_eye.config import Config

    if no_verdicts and out is None:
        raise click.UsageError("--no-verdicts without --out would make a cluster for nobody")
    if html is not None:
        evaluation_page.check_page_path(html)
    recorded = recorded_data.recorded_data(data) if data is not None else recorded_data.RecordedData()
    runs = cluster_jobs.planned_runs(gpus, seed, steps)
    with (FrameFiles(out) if out is not None else nullcontext()) as files, _progress(len(runs)) as done:
        run = cluster_run.run_cluster(runs, [] if no_verdicts else plugin_wiring.detectors(Config()), files, recorded, done)
    click.echo(f"{len(run.labels)} jobs, {cluster_jobs.workers_of(runs)} GPUs, digest {run.digest}" + (f"; {out} written" if out else ""), err=True)
    if not no_verdicts:
        words = f"eagle-eye evaluate cluster --gpus {gpus} --seed {seed} --steps {steps}" + (f" --data {shlex.quote(str(data))}" if data else "")
        _finish(_named(cluster_score.score(run.labels, run.verdicts), "cluster"), html, words, wide=wide, json_lines=json_lines)


@command.command(short_help="drill the whole chain with synthetic incidents of every class, half of them innocent twins")
@click.option("--incidents", type=click.IntRange(min=1), default=500, show_default=True, help="Drills; a tenth of them has two jobs.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="The same seed gives the same drills.")
@click.option("--hard", type=click.FloatRange(min=0.0, max=1.0), default=0.0, show_default=True, help="Share of the drills that are made hard: telemetry lost, late or a lie, a clock off, a second suspect. They are counted by themselves.")
@click.option("--jobs", "processes", type=click.IntRange(min=1), default=lambda: len(os.sched_getaffinity(0)), show_default="processors", help="Drills that run at once, each in a process of its own.")
@click.option("--counts", type=click.Path(dir_okay=False, path_type=Path), help="Also write how often accusations of each cause were right, as a file that calibrates confidence (docs/evaluate.md).")
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), help="Also write an HTML page; it opens without a network.")
@options.wide
@options.as_json
def drills(incidents: int, seed: int, hard: float, processes: int, counts: Path | None, html: Path | None, wide: bool, json_lines: bool) -> None:
    """Draw incidents from a seed, each a fault or a twin that only looks like one, in jobs of 64 to 4,096 ranks; lead each through frames, detectors, diagnosis and the plan that
    would be proposed, and print how often class and culprit are right, which healthy nodes would be evicted, and how far the stated confidence is from what was right.
    Exits with 1 where a goal is missed.

    \b
    Examples:
      eagle-eye evaluate drills --incidents 50 --seed 7
      eagle-eye evaluate drills --incidents 50 --seed 7 --hard 0.5
      eagle-eye evaluate drills --incidents 2000 --seed 1001 --counts confidence_counts.toml
    """
    from eagle_eye.app.evaluation.drill_corpus import accusation_file, drill_run, drill_score, planned_drills

    if html is not None:
        evaluation_page.check_page_path(html)
    plans = planned_drills.planned_drills(incidents, seed, hard)
    with _progress(len(plans)) as done:
        verdicts = sorted(drill_run.run_drills(plans, processes, done), key=lambda verdict: verdict.number)
    words = f"eagle-eye evaluate drills --incidents {incidents} --seed {seed}" + (f" --hard {hard:g}" if hard else "")
    if counts is not None:
        accusation_file.write_counts(counts, verdicts, words)
        click.echo(f"{counts} written", err=True)
    _finish(_named(drill_score.score(verdicts), "drills"), html, words, wide=wide, json_lines=json_lines)


@command.command(short_help="compare the verdicts of any detector with the labels of a synthetic cluster")
@click.argument("labels", type=click.Path(path_type=Path))
@click.argument("verdicts", type=click.Path(path_type=Path))
@options.wide
@options.as_json
def score(labels: Path, verdicts: Path, wide: bool, json_lines: bool) -> None:
    """LABELS is labels.jsonl of a synthetic cluster; VERDICTS has a line {"job": ..., "time": ..., "culprits": [nodes]} for each verdict of a detector. Exits with 1
    where a goal is missed.

    \b
    Examples:
      eagle-eye evaluate score cluster/labels.jsonl verdicts.jsonl
    """
    from eagle_eye.app.evaluation.synthetic_cluster import cluster_score

    found = cluster_score.score(cluster_score.read_labels(labels), cluster_score.read_verdicts(verdicts))
    _finish(_named(found, "cluster"), None, "", wide=wide, json_lines=json_lines)


@contextmanager
def _progress(jobs: int) -> Iterator[Callable[[object], None]]:
    """A bar on a terminal, nothing elsewhere."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("jobs", total=jobs)
        yield lambda _: bar.advance(task)


def _named(found: list[Figure], data_set: str) -> list[Figure]:
    return [msgspec.structs.replace(each, data_set=data_set) for each in found]


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


def _finish(found: list[Figure], html: Path | None, words: str, *, wide: bool, json_lines: bool) -> None:
    """Print, write the page, and end with 1 where a goal is missed. `words`: the command, for the page."""
    if json_lines:
        for each in found:
            print_json(each)
    else:
        _print(found, wide=wide)
    if html is not None:
        evaluation_page.write_page(html, found, words)
        click.echo(f"{html} written", err=True)
    raise SystemExit(int(any(each.met is False for each in found)))


def _print(found: list[Figure], *, wide: bool) -> None:
    console = Console()
    print_table(console, COLUMNS, [(each.data_set, each.what, each.figure, each.goal, MET[each.met], each.others) for each in found], wide=wide)
    for each in found:
        if each.met is False and each.reason:
            print_text(console, f"missed: {each.data_set}, {each.what}: {each.reason}")
