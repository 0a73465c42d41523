"""`eagle-eye drill KIND`."""

import contextlib
import signal

import click

from eagle_eye.app import drills, options
from eagle_eye.app.agent_process import PID_FILE, running_pid
from eagle_eye.app.launcher_registry import run_dirs
from eagle_eye.app.termination import termination_event
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import EagleEyeError
from eagle_eye.stream.factory import open_embedded

DONE = "done; see the launcher's log, and `eagle-eye incidents` if a server watches the job"


KINDS_HELP = "\b\nKIND:\n" + "\n".join(f"  {kind:<10} {drills.DESCRIPTIONS[kind]}" for kind in drills.KINDS)


@click.command(short_help="inject a fault into a running job, after confirmation", epilog=KINDS_HELP)
@click.argument("kind", metavar="KIND", type=click.Choice(drills.KINDS))
@click.option("--job", default="", help="tenant/name/run, or a part of it. Default: the only job that runs here.")
@click.option("--rank", type=int, default=0, show_default=True, help="Rank of the worker, for a drill on one worker.")
@click.option("--seconds", type=float, default=30.0, show_default=True, help="How long a slow-down or a stopped stream lasts.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@options.deployment
def command(config: Config, kind: str, job: str, rank: int, seconds: float, yes: bool) -> None:
    """Inject a fault of one KIND into a job. Asks for confirmation first.

    It hits workers on this machine that run under your uid: those of every launcher with this state directory
    (--state-dir), or those of the launcher with the runtime directory --run-dir.

    \b
    Examples:
      eagle-eye drill kill
      eagle-eye drill kill --job team/gpt/7 --rank 3
      eagle-eye drill slow-node --seconds 60
    """
    if kind in drills.ON_STREAM:
        _on_stream(kind, config, seconds, yes)
        return
    places = [config.run] if options.run_dir_given() else [config.run, *run_dirs(config.state)]
    listed = drills.select_job(drills.running_workers(places), job)
    if kind in drills.ON_NODE:
        _on_node(kind, listed, seconds, yes)
    else:
        _on_worker(kind, listed, rank, yes)


def _on_stream(kind: str, config: Config, seconds: float, yes: bool) -> None:
    _ask(f"This will {drills.DESCRIPTIONS[kind]} for {seconds:g} s, under {config.state / 'stream'}.", yes)
    clock = SystemClock()
    with contextlib.closing(open_embedded(config, clock)) as stream:
        _hold(drills.hold_stream(stream, clock), seconds)


def _on_worker(kind: str, listed: list[drills.DrillTarget], rank: int, yes: bool) -> None:
    worker = next((worker for worker in listed if worker.rank == rank), None)
    if worker is None:
        raise EagleEyeError(f"no worker of rank {rank} on this node; there are {', '.join(str(worker.rank) for worker in listed)}")
    _ask(f"This will {drills.DESCRIPTIONS[kind]}: rank {rank}, {worker.name}, pid {worker.pid}.", yes)
    drills.ON_WORKER[kind](worker, SystemClock())
    click.echo(DONE)


def _on_node(kind: str, everywhere: list[drills.DrillTarget], seconds: float, yes: bool) -> None:
    """On the node of the first worker: a machine may run several nodes."""
    node, run_dir, clock = everywhere[0].node, everywhere[0].launcher_socket.parent, SystemClock()
    listed = [worker for worker in everywhere if worker.launcher_socket.parent == run_dir]
    lasts = kind == "slow-node"
    _ask(f"This will {drills.DESCRIPTIONS[kind]}: {node}, {len(listed)} workers" + (f", for {seconds:g} s." if lasts else "."), yes)
    if lasts:
        _hold(drills.slow_node(node, run_dir, clock, job=listed[0].job), seconds)
        return
    agent = running_pid(run_dir / PID_FILE)
    launchers = {worker.launcher_pid for worker in listed if worker.launcher_pid}
    drills.kill_node(node, [*([agent] if agent else []), *launchers, *(worker.pid for worker in listed)], clock)
    click.echo(DONE)


def _ask(what: str, yes: bool) -> None:
    click.echo(what)
    if not yes:
        click.confirm("Really?", abort=True)


def _hold(drill: drills.ActiveDrill, seconds: float) -> None:
    """Keep a lasting drill up for so many seconds; Ctrl-C and SIGTERM end it early."""
    over = termination_event([signal.SIGTERM])
    try:
        over.wait(seconds)
    except KeyboardInterrupt:
        click.echo("ending the drill")
    finally:
        drill.end()
    click.echo("the drill has ended")
