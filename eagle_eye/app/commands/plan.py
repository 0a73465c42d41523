"""`eagle-eye plan FILE`."""

import contextlib
from pathlib import Path

import click

from eagle_eye.app import options
from eagle_eye.app.live_plan_printing import print_live
from eagle_eye.app.plan_printing import print_prospect, prospect_json
from eagle_eye.app.printing import print_json
from eagle_eye.config import Config
from eagle_eye.ledger import Throughput
from eagle_eye.ledger.factory import open_ledger
from remediation.planner.files.cluster_file import ClusterFile
from remediation.planner.files.plan_report import make_report


@click.command(short_help="who should get which nodes, and what to do if one is lost")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--live", is_flag=True, help="In place of FILE: the elastic jobs that run, and what stands ready for each next event.")
@click.option("--what-if", "happens", multiple=True, metavar="EVENT", help="lose:NODE, join:NODE, slow:NODE:SPEED, finish:JOB or launch:JOB; may be given several times.")
@click.option("--ledger", "from_ledger", is_flag=True, help="What the jobs of these names reached on this deployment counts as measured.")
@options.as_json
@options.deployment
def command(config: Config, file: Path | None, live: bool, happens: tuple[str, ...], from_ledger: bool, json_lines: bool) -> None:
    """Read a cluster and its jobs from FILE (TOML) and say who should get how many nodes, and why. Changes nothing.

    With --what-if: the plan after that, and for each job that it hits all that could be done, with what it would cost.
    With --live: of the jobs that run on this deployment, as the server has worked it out.

    \b
    Examples:
      eagle-eye plan examples/cluster.toml
      eagle-eye plan examples/cluster.toml --what-if lose:node3
      eagle-eye plan examples/cluster.toml --what-if slow:node5:0.7 --json
      eagle-eye plan cluster.toml --ledger --what-if lose:node3
      eagle-eye plan examples/cluster.toml --what-if finish:gpt-7b --what-if launch:gpt-1.3b
      eagle-eye plan --live
    """
    if live == (file is not None) or (live and (happens or from_ledger)):
        raise click.UsageError("give FILE, or --live alone")
    if file is None:
        _print_live(config, json_lines)
        return
    prospect = make_report(ClusterFile(file, _reached(config) if from_ledger else ()), happens)
    if json_lines:
        click.echo(prospect_json(prospect))
    else:
        print_prospect(prospect, happens)


def _print_live(config: Config, json_lines: bool) -> None:
    with contextlib.closing(open_ledger(config, read_only=True)) as ledger:
        plans, jobs = ledger.standing(), ledger.jobs()
        if json_lines:
            for plan in plans:
                print_json(plan)
        else:
            print_live(plans, jobs, {(each.job, each.workers): each for each in ledger.throughputs()})


def _reached(config: Config) -> tuple[Throughput, ...]:
    with contextlib.closing(open_ledger(config, read_only=True)) as ledger:
        return ledger.throughputs()
