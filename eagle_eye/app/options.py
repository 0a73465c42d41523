"""Options that several commands share."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from eagle_eye import config as configuration

Function = Callable[..., Any]


def deployment(function: Function) -> Function:
    """Add --config, --state-dir and --run-dir; the command receives the loaded `config`."""

    @click.option("--config", "config_path", type=click.Path(), help="Configuration file. Default: ./eagle-eye.toml, else /etc/eagle-eye/config.toml.")
    @click.option("--state-dir", default="", help="What outlives a restart: stream, ledger, checkpoints.")
    @click.option("--run-dir", default="", help="Sockets and the list of running jobs of this node.")
    @functools.wraps(function)
    def with_config(*args: Any, config_path: str | None, state_dir: str, run_dir: str, **kwargs: Any) -> Any:
        loaded = configuration.load(config_path, state_dir=state_dir, run_dir=run_dir)
        return function(*args, config=loaded, **kwargs)

    return with_config


def config_file() -> Path | None:
    """What the running command was given as --config, to hand it on to other processes; None: they find their own."""
    given = click.get_current_context().params["config_path"]
    return Path(given).absolute() if given else None


def run_dir_given() -> bool:
    """Whether the running command was told --run-dir."""
    return bool(click.get_current_context().params["run_dir"])


as_json = click.option("--json", "json_lines", is_flag=True, help="Print JSON, one object a line.")
server = click.option("--server", default="", help="host:port of the server, or of all that may lead, with commas. Default: server.addresses, else server.listen.")
person = click.option("--as", "person", default="", help="Who decides. Default: whoever your token names; your login where there are no tokens.")


def training(function: Function) -> Function:
    """Add what the commands that start workers share: --job, --nproc-per-node, --heal, --min-workers, --weight, --respawns, --checkpoint-dir, --preload, the command."""
    added: tuple[Callable[[Function], Function], ...] = (
        click.option("--job", default="", help="tenant/name. Default: local/<name of the script>."),
        click.option("--nproc-per-node", type=int, default=1, show_default=True, help="Workers on this node."),
        click.option(
            "--heal", default="", show_default="restart:3; in-place for a script that calls eagle_eye.elastic",
            help="What the job may do to itself: none, restart:N (all workers, from the newest checkpoint), or in-place[:N] "
            "(elastic workers go on without those that are lost).",
        ),
        click.option("--min-workers", type=int, default=1, show_default=True, help="An elastic job with fewer saves a checkpoint and stops."),
        click.option("--weight", type=float, default=1.0, show_default=True, help="What an elastic job's progress is worth against that of others, when the server shares workers out."),
        click.option("--respawns", type=int, default=-1, show_default=True, help="How many workers of an elastic job that die are replaced on the spot; -1: all."),
        click.option("--checkpoint-dir", default="", type=click.Path(), help="Shared by all nodes. Default: under the state directory."),
        click.option(
            "--preload", default="", metavar="MODULES",
            help="What each node imports once beside torch, so that no worker has to, with commas: a restart is as much faster. none: nothing, "
            "for scripts without torch; it saves them seconds at the start.",
        ),
        click.argument("training_command", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED),
    )
    for add in reversed(added):
        function = add(function)
    return function


UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def duration(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Callback of an option: `30d`, `12h`, `90m`, `45s`, `2w` as seconds. Raises click.BadParameter.

    >>> duration(None, None, "90m")
    5400.0
    """
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", value.strip())
    if found is None or float(found[1]) == 0:
        raise click.BadParameter(f"{value!r} is not a duration: write for example 45s, 90m, 12h, 30d or 2w")
    return float(found[1]) * UNIT_SECONDS[found[2]]
