"""Options that several commands share."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from eagle_eye import config as configuration
from eagle_eye.durations import seconds_of
from eagle_eye.ports import address_problem

Function = Callable[..., Any]


def deployment(function: Function) -> Function:
    """Add --config, --state-dir and --run-dir; the command receives the loaded `config`."""

    @click.option("--config", "config_path", type=click.Path(), help="Configuration file. Default: ./eagle-eye.toml, else /etc/eagle-eye/config.toml.")
    @click.option("--state-dir", default="", help="Directory of what survives a restart: stream, ledger, checkpoints.")
    @click.option("--run-dir", default="", help="Directory of this node's sockets and job files.")
    @functools.wraps(function)
    def with_config(*args: Any, config_path: str | None, state_dir: str, run_dir: str, **kwargs: Any) -> Any:
        loaded = configuration.load(config_path, state_dir=state_dir, run_dir=run_dir)
        return function(*args, config=loaded, **kwargs)

    return with_config


def config_file() -> Path | None:
    """The --config of the running command, to pass it to child processes; None: they find their own."""
    given = click.get_current_context().params["config_path"]
    return Path(given).absolute() if given else None


def run_dir_given() -> bool:
    """Whether the running command has --run-dir."""
    return bool(click.get_current_context().params["run_dir"])


as_json = click.option("--json", "json_lines", is_flag=True, help="Print JSON, one object a line.")
wide = click.option("--wide", is_flag=True, help="Print every column in full, however wide the terminal is.")


def address(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Callback of an option: host:port, or several with commas; empty where the option may be. Raises click.BadParameter."""
    for each in value.split(",") if value else ():
        if problem := address_problem(each.strip()):
            raise click.BadParameter(f"{each!r} is no address: {problem}", param=parameter)
    return value


server = click.option("--server", default="", callback=address, help="host:port of the server; with standbys all of them, separated by commas. Default: server.addresses, else server.listen.")
person = click.option("--as", "person", default="", help="Name that is recorded as the operator. Default: the name of your token, or your login name without tokens.")


def training(function: Function) -> Function:
    """Add what the commands that start workers share: --job, --nproc-per-node, --heal, --min-workers, --weight, --respawns, --max-skipped-steps, --checkpoint-dir, --preload, --parallel, --steps-from, --ignore-cordon, the command."""
    added: tuple[Callable[[Function], Function], ...] = (
        click.option("--job", default="", help="tenant/name. Default: local/<name of the script>."),
        click.option("--nproc-per-node", type=int, default=1, show_default=True, help="Workers on this node."),
        click.option(
            "--heal", default="", show_default="restart:3; in-place for a script that calls eagle_eye.elastic",
            help="Self-healing without a server's command: none, restart:N (all workers, from the newest checkpoint), or in-place[:N] "
            "(elastic workers go on without those that are lost). N is the heal budget: so many times within an hour for failures of one kind, three times "
            "as many for all kinds together; another window is written after a slash: restart:3/30m (units: s, m, h, d, w).",
        ),
        click.option("--min-workers", type=int, default=1, show_default=True, help="An elastic job with fewer workers saves a checkpoint and stops."),
        click.option("--weight", type=float, default=1.0, show_default=True, help="Priority of an elastic job against others when the planner assigns workers: the weight of its throughput."),
        click.option("--respawns", type=int, default=-1, show_default=True, help="How many dead workers of an elastic job are replaced on the same node; -1: all."),
        click.option(
            "--max-skipped-steps", type=int, default=0, show_default=True,
            help="When the same failure comes again in a step (after a restart, or on the worker that computed it next), its data is to blame: skip that step, at most so many "
            "in the job's life; 0: end the job with it. Needs a script that marks its steps.",
        ),
        click.option(
            "--checkpoint-dir", default="", type=click.Path(),
            help="Directory of checkpoints, shared by all nodes, or a URL such as s3://bucket/prefix. Those in memory are stored there, too: how often, and how many of them "
            "stay, is configured in [checkpoints] (storage_interval_s, storage_keep, storage_keep_steps, storage_keep_hours). Default: under the state directory.",
        ),
        click.option(
            "--preload", default="", metavar="MODULES",
            help="Modules that each node imports once before it forks workers, besides torch, separated by commas; it makes restarts faster. "
            "none: import nothing; it saves seconds at the start of a script without torch.",
        ),
        click.option(
            "--parallel", default="", metavar="SIZES",
            help="How the model is split over the ranks, such as tp=4,pp=2: diagnosis compares the ranks of one stage. "
            "Default: what the training command says by Megatron-LM's or torchtitan's options.",
        ),
        click.option(
            "--steps-from", type=click.Choice(["marks", "optimizer"]), default="marks", show_default=True,
            help="Where the job's steps come from: the marks that its script makes, or each step of its optimizer, for a script that makes none "
            "(its data, forward, backward and optimizer phases are seen, its loss is not).",
        ),
        click.option("--ignore-cordon", is_flag=True, help="Start workers here although the server keeps this node out (evicted from another job, not released yet)."),
        click.argument("training_command", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED),
    )
    for add in reversed(added):
        function = add(function)
    return function


def duration(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Callback of an option: `30d`, `12h`, `90m`, `45s`, `2w` as seconds. Raises click.BadParameter.

    >>> duration(None, None, "90m")
    5400.0
    """
    if value is None:
        return None
    seconds = seconds_of(value)
    if seconds is None:
        raise click.BadParameter(f"{value!r} is not a duration: write for example 45s, 90m, 12h, 30d or 2w")
    return seconds
