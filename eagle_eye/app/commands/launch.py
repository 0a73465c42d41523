"""`eagle-eye launch`: one job's workers on one node."""

import time

import click

from eagle_eye.app import options
from eagle_eye.app.parts import launcher_settings, run_launcher
from eagle_eye.config import Config


@click.command(short_help="start, supervise and heal one job's workers on this node", context_settings={"ignore_unknown_options": True})
@click.option("--job", default="", help="tenant/name. Default: local/<name of the script>.")
@click.option("--run-id", default="", help="Unique per start, the same on every node. Default: the time; name it when there are several nodes.")
@click.option("--node", default="", help="Name of this node. Default: the host name.")
@click.option("--nproc-per-node", type=int, default=1, show_default=True, help="Workers on this node.")
@click.option("--nnodes", default="1", show_default=True, help="Nodes of the job: N, or MIN:MAX to go on without a node that died.")
@click.option("--rdzv", default="", help="host:port of the launcher that coordinates from the start. Default: this one.")
@click.option("--listen", default="", help="host:port of this launcher. Default: --rdzv if that is this machine and free, else any port.")
@click.option("--heal", default="restart:3", show_default=True, help="What the job may do to itself: none, or restart:N.")
@click.option("--server", default="", help="host:port of the server. Default: server.listen of the configuration.")
@click.option("--no-server", is_flag=True, help="Live without a server: exits are healed, hangs are not seen.")
@click.option("--checkpoint-dir", default="", type=click.Path(), help="Shared by all nodes. Default: under the state directory.")
@options.deployment
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(config: Config, command: tuple[str, ...], **given: object) -> None:
    """Start COMMAND once per worker, with torchrun's environment: a torchrun script starts unchanged.

    \b
    Examples:
      eagle-eye launch --nproc-per-node 8 -- python train.py --lr 3e-4
      eagle-eye launch --job team/gpt --run-id 7 --nnodes 2:4 --rdzv node-0:29400 --nproc-per-node 8 -- python -m my.train
      eagle-eye launch --heal none -- ./train.sh
    """
    raise SystemExit(run_launcher(launcher_settings(config, command, given, started=time.strftime("%Y%m%d-%H%M%S"))))
