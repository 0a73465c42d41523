"""`eagle-eye launch`: one job's workers on one node."""

from typing import Any

import click

from eagle_eye.app import options
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config


@click.command(short_help="start, supervise and heal one job's workers on this node", context_settings={"ignore_unknown_options": True})
@options.training
@click.option("--run-id", default="", help="Unique per start, the same on every node. Default: the time; name it when there are several nodes.")
@click.option("--node", default="", help="Name of this node. Default: the host name.")
@click.option("--nnodes", default="1", show_default=True, help="Nodes of the job: N, or MIN:MAX to go on without a node that died.")
@click.option("--rdzv", default="", callback=options.address, help="host:port of the launcher that coordinates from the start. Default: this one.")
@click.option("--listen", default="", callback=options.address, help="host:port of this launcher. Default: --rdzv if that is this machine and free, else any port.")
@options.server
@click.option("--no-server", is_flag=True, help="Run without a server: self-healing covers exits, and stops and hangs of elastic workers; other hangs are not detected.")
@options.deployment
def command(config: Config, training_command: tuple[str, ...], run_id: str, **given: Any) -> None:
    """Start COMMAND once per worker, with torchrun's environment: a torchrun script starts unchanged.

    On a node that the server has cordoned, since another job was evicted from it, no worker is started until
    `eagle-eye release NODE`, or with --ignore-cordon.

    \b
    Examples:
      eagle-eye launch --nproc-per-node 8 -- python train.py --lr 3e-4
      eagle-eye launch --job team/gpt --run-id 7 --nnodes 2:4 --rdzv node-0:29400 --nproc-per-node 8 -- python -m my.train
      eagle-eye launch --heal in-place --min-workers 2 --nproc-per-node 4 -- python examples/elastic_gpt.py
      eagle-eye launch --heal none -- ./train.sh
    """
    from eagle_eye.app.launcher_process import launch, launcher_settings, new_run_id

    run_id = run_id or new_run_id(SystemClock())
    raise SystemExit(launch(launcher_settings(config, training_command, run_id=run_id, **given)))
