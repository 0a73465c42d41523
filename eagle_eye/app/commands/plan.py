"""`eagle-eye plan FILE`."""

import contextlib
from pathlib import Path

import click

from eagle_eye.app import options
from eagle_eye.app.plan_printing import print_prospect, prospect_json
from eagle_eye.config import Config
from eagle_eye.ledger import Throughput
from eagle_eye.ledger.opening import open_ledger
from remediation.planner.cluster_file import ClusterFile
from remediation.planner.prospect import foresee


@click.command(short_help="who should get which nodes, and what to do if one is lost")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--what-if", "happens", multiple=True, metavar="EVENT", help="lose:NODE, join:NODE, slow:NODE:SPEED, finish:JOB or launch:JOB; may be given several times.")
@click.option("--ledger", "from_ledger", is_flag=True, help="What the jobs of these names reached on this deployment counts as measured.")
@options.as_json
@options.deployment
def command(config: Config, file: Path, happens: tuple[str, ...], from_ledger: bool, json_lines: bool) -> None:
    """Read a cluster and its jobs from FILE (TOML) and say who should get how many nodes, and why. Changes nothing.

    With --what-if: the plan after that, and for each job that it hits all that could be done, with what it would cost.

    \b
    Examples:
      eagle-eye plan examples/cluster.toml
      eagle-eye plan examples/cluster.toml --what-if lose:node3
      eagle-eye plan examples/cluster.toml --what-if slow:node5:0.7 --json
      eagle-eye plan cluster.toml --ledger --what-if lose:node3
      eagle-eye plan examples/cluster.toml --what-if finish:gpt-7b --what-if launch:gpt-1.3b
    """
    prospect = foresee(ClusterFile(file, _reached(config) if from_ledger else ()), happens)
    if json_lines:
        click.echo(prospect_json(prospect))
    else:
        print_prospect(prospect, happens)


def _reached(config: Config) -> tuple[Throughput, ...]:
    with contextlib.closing(open_ledger(config, read_only=True)) as ledger:
        return ledger.throughputs()
