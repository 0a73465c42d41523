"""`eagle-eye run`: everything around one command on one machine."""

import tempfile
import time
from pathlib import Path

import click
import msgspec

from eagle_eye.app import options
from eagle_eye.app.demo.stage import free_port
from eagle_eye.app.local_cluster import LocalCluster, end
from eagle_eye.app.parts import launcher_settings, run_launcher
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config


@click.command(short_help="run one command on this machine, watched and healed", context_settings={"ignore_unknown_options": True})
@click.option("--job", default="", help="tenant/name. Default: local/<name of the script>.")
@click.option("--nproc-per-node", type=int, default=1, show_default=True, help="Workers.")
@click.option("--heal", default="restart:3", show_default=True, help="What the job may do to itself: none, or restart:N.")
@click.option("--checkpoint-dir", default="", type=click.Path(), help="Default: under the state directory.")
@options.deployment
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(config: Config, command: tuple[str, ...], **given: object) -> None:
    """Start a server, an agent and a launcher around COMMAND, and end them with it.

    Nothing changes in the script: crashes, hangs and the machine are watched. Two lines in its loop
    (`monitor = eagle_eye.monitor()`, `for batch in monitor.steps(loader)`) add loss, throughput, phases and stragglers.

    \b
    Examples:
      eagle-eye run --nproc-per-node 4 -- python train.py
      eagle-eye run --heal none -- python -m my.train --lr 3e-4
    """
    given |= {"node": "", "nnodes": "1", "rdzv": "", "listen": "", "run_id": "", "server": f"127.0.0.1:{free_port()}", "no_server": False}
    settings = launcher_settings(config, command, given, started=time.strftime("%Y%m%d-%H%M%S"))
    with tempfile.TemporaryDirectory(prefix="eagle-eye-run-") as folder:
        cluster = LocalCluster(folder=Path(folder), config_file=None, clock=SystemClock(), state_dir=config.state)
        settings = msgspec.structs.replace(settings, run_dir=cluster.run_dir(settings.node))
        cluster.start_server("--listen", str(given["server"]))
        agent = cluster.start_agent(settings.node, "--server", str(given["server"]))
        try:
            code = run_launcher(settings)
        finally:
            end(agent)
            cluster.stop()
    click.echo(f"what happened: eagle-eye incidents --state-dir {config.state}", err=True)
    raise SystemExit(code)
