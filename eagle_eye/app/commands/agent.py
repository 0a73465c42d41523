"""`eagle-eye agent`: collects the metrics and events of one node."""

import os
import socket
import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console

from eagle_eye.app import options
from eagle_eye.app.printing import TableColumn, print_json, print_table
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config

if TYPE_CHECKING:
    from eagle_eye.app.agent_check import CollectorCheck

COLUMNS = (TableColumn("collector"), TableColumn("state"), TableColumn("found", prose=True), TableColumn("remedy", drop=1, prose=True))
STYLES = {"reads": "green", "idle": "dim", "unavailable": "yellow", "failing": "red", "hung": "red"}


@click.command(short_help="collect and send this node's metrics and events")
@click.option("--node", default="", help="Name of this node. Default: the host name.")
@click.option("--without", multiple=True, metavar="COLLECTOR", help="Run without this collector; may be repeated.")
@click.option("--check", is_flag=True, help="Show what can be read on this machine and what cannot, and end.")
@options.as_json
@options.wide
@options.server
@options.deployment
def command(config: Config, node: str, server: str, without: tuple[str, ...], check: bool, json_lines: bool, wide: bool) -> None:
    """Run one agent per node. It does not touch the training processes: it reads their ring buffers.

    \b
    Examples:
      eagle-eye agent
      eagle-eye agent --node node-7 --server head:7467
      eagle-eye agent --without kernel_log
      eagle-eye agent --check         # as the user that the agent runs as
    """
    from eagle_eye.app.agent_process import left_out, serve

    if check:
        _check(left_out(config, without), node or socket.gethostname(), json_lines=json_lines, wide=wide)
    else:
        serve(left_out(config, without), node, server)


def _check(config: Config, node: str, *, json_lines: bool, wide: bool) -> None:
    """Exits with 1 where a collector fails or hangs."""
    from eagle_eye.app.agent_check import check_collectors

    checks = list(check_collectors(config, node, SystemClock()))
    if json_lines:
        for each in checks:
            print_json(each._asdict())
    else:
        rows = [(each.collector, (each.state, STYLES[each.state]), _found(each), each.remedy) for each in checks]
        print_table(Console(), COLUMNS, rows, wide=wide)
    sys.stdout.flush()
    if any(each.state in ("failing", "hung") for each in checks):
        os._exit(1)  # a thread that hangs would keep the interpreter from ending
    os._exit(0)


def _found(check: "CollectorCheck") -> str:
    return f"{check.reads}; without a value here: {', '.join(check.missing)}" if check.missing else check.reads
