"""`eagle-eye plan FILE`."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from eagle_eye.app import options
from eagle_eye.app.printing import print_json
from eagle_eye.config import Config
from eagle_eye.ledger.factory import open_ledger

if TYPE_CHECKING:
    from eagle_eye.ledger import Throughput


@click.command(short_help="allocate nodes to jobs, and price the repairs of a fault")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--live", is_flag=True, help="Instead of FILE: the running elastic jobs, and the precomputed plan for each next event.")
@click.option("--what-if", "events", multiple=True, metavar="EVENT", help="lose:NODE, join:NODE, slow:NODE:SPEED, finish:JOB or launch:JOB; may be given several times.")
@click.option("--ledger", "from_ledger", is_flag=True, help="Use throughputs that jobs of these names reached on this deployment as measured.")
@options.wide
@options.as_json
@options.deployment
def command(config: Config, file: Path | None, live: bool, events: tuple[str, ...], from_ledger: bool, wide: bool, json_lines: bool) -> None:
    """Read a cluster and its jobs from FILE (TOML), and print how many nodes each job should get, and why. Changes nothing.

    With --what-if: the same after the event, and for each job that it hits all repairs with their downtime and cost.
    With --live: the elastic jobs of this deployment and their precomputed plans, from the server's ledger.

    \b
    Examples:
      eagle-eye plan examples/cluster.toml
      eagle-eye plan examples/cluster.toml --what-if lose:node3
      eagle-eye plan examples/cluster.toml --what-if slow:node5:0.7 --json
      eagle-eye plan cluster.toml --ledger --what-if lose:node3
      eagle-eye plan examples/cluster.toml --what-if finish:gpt-7b --what-if launch:gpt-1.3b
      eagle-eye plan --live
    """
    if live == (file is not None) or (live and (events or from_ledger)):
        raise click.UsageError("give FILE, or --live alone")
    if file is None:
        _print_live(config, wide=wide, json_lines=json_lines)
        return
    from eagle_eye.app.plan_printing import print_report, report_json
    from remediation.planner.files.cluster_file import ClusterFile
    from remediation.planner.files.plan_report import make_report

    report = make_report(ClusterFile(file, _measured(config) if from_ledger else ()), events)
    if json_lines:
        click.echo(report_json(report))
    else:
        print_report(report, events, wide=wide)


def _print_live(config: Config, *, wide: bool, json_lines: bool) -> None:
    from eagle_eye.app.plan_printing import print_live

    with contextlib.closing(open_ledger(config, read_only=True)) as ledger:
        plans, jobs = ledger.precomputed_plans(), ledger.jobs()
        if json_lines:
            for plan in plans:
                print_json(plan)
        else:
            print_live(plans, jobs, {(each.job, each.workers): each for each in ledger.throughputs()}, wide=wide)


def _measured(config: Config) -> "tuple[Throughput, ...]":
    with contextlib.closing(open_ledger(config, read_only=True)) as ledger:
        return ledger.throughputs()
