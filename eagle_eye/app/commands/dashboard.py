"""`eagle-eye dashboard`."""

import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import click

from eagle_eye.app import options
from eagle_eye.app.dashboard_process import LISTEN, Dashboard
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError


@click.command(short_help="serve the web pages for on-call engineers")
@click.option("--listen", default=LISTEN, show_default=True, help="host:port. Beyond loopback only where people have tokens (`eagle-eye token add`).")
@click.option("--demo", is_flag=True, help="Open a recorded run with ten faults instead; needs no server.")
@options.deployment
def command(config: Config, listen: str, demo: bool) -> None:
    """Show incidents, jobs and nodes in a browser, and let operators approve plans. Ends with Ctrl-C.

    Reads the ledger and the history of the deployment; decisions go to the server.

    \b
    Examples:
      eagle-eye dashboard
      eagle-eye dashboard --demo
      eagle-eye dashboard --listen 0.0.0.0:8501 --config /etc/eagle-eye/config.toml
    """
    with ExitStack() as stack:
        if demo:
            from eagle_eye.app.demo.run_archive import unpack

            config = unpack(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eagle-eye-recorded-"))))
        _serve(Dashboard(config, listen, SystemClock()))


def _serve(dashboard: Dashboard) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell in the background has them ignored
        signal.signal(number, _interrupt)
    try:
        dashboard.start()
        dashboard.wait()
        click.echo(f"Eagle Eye's dashboard: {dashboard.url}\nCtrl-C ends it.")
        assert dashboard.process is not None
        code = dashboard.process.wait()
    except KeyboardInterrupt:
        return
    finally:
        dashboard.stop()
    raise ConfigError(f"the dashboard exited with code {code}; its output is above")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
