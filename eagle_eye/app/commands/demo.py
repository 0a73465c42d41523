"""`eagle-eye demo`."""

import os
import random
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from eagle_eye.app import options
from eagle_eye.app.printing import print_json
from eagle_eye.clock import SystemClock
from eagle_eye.errors import EagleEyeError

if TYPE_CHECKING:
    from eagle_eye.app.demo.demo import Demo
    from eagle_eye.app.demo.demo_dashboard import DemoDashboard
    from eagle_eye.app.demo.fault_verdict import FaultVerdict

PLAIN_WIDTH = 170
"""Characters of a line where the output is no terminal."""


@click.command(short_help="inject ten faults into a real job and watch it heal")
@click.option("--seed", type=int, default=None, help="Seed of the moments and targets, to repeat a run. Default: random; it is printed.")
@click.option("--only", multiple=True, help="Only these faults (kill, stop, hang, ...); may be given several times.")
@click.option("--dir", "folder", default="", type=click.Path(), help="Directory of state, logs and table. Default: a new temporary directory.")
@click.option("--keep", is_flag=True, help="Keep the dashboard running on the recorded run until Ctrl-C.")
@click.option("--record", default="", type=click.Path(), help="Write a compressed copy of the run to this directory, as `eagle-eye dashboard --demo` opens it.")
@click.option("--dashboard/--no-dashboard", "shown", default=True, help="Serve the dashboard during the run, if it is installed.")
@options.as_json
def command(seed: int | None, only: tuple[str, ...], folder: str, keep: bool, record: str, shown: bool, json_lines: bool) -> None:
    """Train a small GPT on 4 workers in 2 nodes of this machine, inject ten faults from outside, and let Eagle Eye heal it.

    Exits with 1 when a fault was missed, the wrong culprit was named, or the job was not healed.

    \b
    Examples:
      eagle-eye demo
      eagle-eye demo --seed 7 --only kill --only node
      eagle-eye demo --keep
    """
    from eagle_eye.app.demo.demo import Demo
    from eagle_eye.app.demo.demo_dashboard import DemoDashboard
    from eagle_eye.app.demo.scenario import FAULTS

    kinds = dict.fromkeys(fault.kind for fault in FAULTS)
    if unknown := [kind for kind in only if kind not in kinds]:
        raise EagleEyeError(f"unknown fault: {', '.join(unknown)}; known are {', '.join(kinds)}")
    chosen = tuple(fault for fault in FAULTS if not only or fault.kind in only)
    seed = random.randrange(1_000_000) if seed is None else seed  # noqa: S311 -- to repeat a run, not to keep a secret
    place = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="eagle-eye-demo-"))
    console = Console(stderr=json_lines)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PLAIN_WIDTH
    console.print(f"seed {seed}; everything is kept in {place}", soft_wrap=True)
    pages = DemoDashboard(folder=place, console=console, clock=SystemClock()) if shown else None
    demo = Demo(folder=place, seed=seed, console=console, clock=SystemClock(), faults=chosen, pages=pages)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell in the background has them ignored
        signal.signal(number, signal.default_int_handler)
    try:
        rows = demo.run()
        _finish(demo, rows, json_lines=json_lines, record=record)
        if keep:
            _keep(pages, console)
    except KeyboardInterrupt:
        console.print("interrupted; every process was ended")
        raise SystemExit(130) from None
    finally:
        if pages is not None:
            pages.close()
    if any(row.wrongs for row in rows):
        raise SystemExit(1)


def _finish(demo: "Demo", rows: "list[FaultVerdict]", *, json_lines: bool, record: str) -> None:
    """Print and keep the verdicts, and mark the run as ended."""
    from eagle_eye.app.demo import live_view, run_archive

    if json_lines:
        for row in rows:
            print_json(live_view.plain(row))
    live_view.print_verdicts(demo.console, rows)
    (demo.folder / "table.md").write_text(live_view.markdown(rows) + "\n")
    run_archive.mark(demo.state_dir, began=demo.began, ended=demo.ended, seed=demo.seed, command=f"eagle-eye demo --seed {demo.seed}")
    healed = sum(not row.wrongs for row in rows)
    demo.console.print(f"{healed} of {len(rows)} healed. Details: eagle-eye incidents --state-dir {demo.state_dir}", soft_wrap=True)
    if record:
        size = run_archive.pack(demo.state_dir, Path(record))
        demo.console.print(f"recorded in {record}, {size / 1000:.0f} kB", soft_wrap=True)


def _keep(pages: "DemoDashboard | None", console: Console) -> None:
    """Keep the dashboard running until Ctrl-C."""
    if pages is None or not pages.reopen():
        console.print("no dashboard is running")
        return
    console.print(f"the dashboard shows this run at {pages.url}; Ctrl-C ends it", highlight=False, soft_wrap=True)
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("the dashboard has ended")
