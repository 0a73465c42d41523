"""`eagle-eye run`: everything around one command on one machine."""

import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from eagle_eye.app import options
from eagle_eye.app.local_cluster import LocalCluster, end
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.ports import free_port


@click.command(short_help="run one command on this machine, watched and healed", context_settings={"ignore_unknown_options": True})
@options.training
@options.deployment
def command(config: Config, training_command: tuple[str, ...], **given: Any) -> None:
    """Start a server, an agent and a launcher around COMMAND, and end them with it. Their sockets and logs
    lie in a temporary directory; --run-dir counts for other commands only.

    Nothing changes in the script: crashes, hangs and the machine are watched. Two lines in its loop
    (`monitor = eagle_eye.monitor()`, `for batch in monitor.steps(loader)`) add loss, throughput, phases and stragglers; without
    a change, `--steps-from optimizer` adds all but the loss, which is read where the script prints it.

    \b
    Examples:
      eagle-eye run --nproc-per-node 4 -- python train.py
      eagle-eye run --nproc-per-node 4 --steps-from optimizer -- python train.py
      eagle-eye run --heal none -- python -m my.train --lr 3e-4
    """
    from eagle_eye.app.launcher_process import launch, launcher_settings, new_run_id

    clock = SystemClock()
    server = f"127.0.0.1:{free_port()}"
    settings = launcher_settings(config, training_command, run_id=new_run_id(clock), server=server, **given)
    with tempfile.TemporaryDirectory(prefix="eagle-eye-run-") as folder:
        cluster = LocalCluster(folder=Path(folder), config_file=options.config_file(), clock=clock, state_dir=config.state)
        settings = msgspec.structs.replace(settings, run_dir=cluster.run_dir(settings.node), new_server=True)
        cluster.start_server("--listen", server, "--http", "")
        agent = cluster.start_agent(settings.node, "--server", server)
        try:
            code = launch(settings)
        finally:
            end(agent)
            cluster.stop()
    click.echo(f"what happened: eagle-eye incidents --state-dir {config.state}", err=True)
    raise SystemExit(code)
