"""`eagle-eye demo`."""

import random
import signal
import tempfile
from pathlib import Path

import click
from rich.console import Console

from eagle_eye.app import options
from eagle_eye.app.printing import print_json
from eagle_eye.clock import SystemClock
from eagle_eye.errors import EagleEyeError

PLAIN_WIDTH = 170
"""Characters of a line where the output is no terminal."""


@click.command(short_help="break a real job again and again, and watch it being healed")
@click.option("--seed", type=int, default=None, help="Repeats the moments and targets of a run. Default: drawn, and printed.")
@click.option("--only", multiple=True, help="Only these faults (kill, stop, hang, ...); may be given several times.")
@click.option("--dir", "folder", default="", type=click.Path(), help="Where to keep state, logs and truth. Default: a new directory under the temporary one.")
@options.as_json
def command(seed: int | None, only: tuple[str, ...], folder: str, json_lines: bool) -> None:
    """Train a small GPT on 4 workers in 2 nodes of this machine, break it ten times from outside, let Eagle Eye heal it.

    Exits with 1 when a fault was missed, blamed wrongly or not healed.

    \b
    Examples:
      eagle-eye demo
      eagle-eye demo --seed 7 --only kill --only node
    """
    from eagle_eye.app.demo import view
    from eagle_eye.app.demo.faults import FAULTS
    from eagle_eye.app.demo.run import Demo

    kinds = dict.fromkeys(fault.kind for fault in FAULTS)
    if unknown := [kind for kind in only if kind not in kinds]:
        raise EagleEyeError(f"no fault is called {', '.join(unknown)}; there are {', '.join(kinds)}")
    chosen = tuple(fault for fault in FAULTS if not only or fault.kind in only)
    seed = random.randrange(1_000_000) if seed is None else seed  # noqa: S311 -- to repeat a run, not to keep a secret
    place = Path(folder) if folder else Path(tempfile.mkdtemp(prefix="eagle-eye-demo-"))
    console = Console(stderr=json_lines)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(f"seed {seed}; everything is kept in {place}")
    demo = Demo(folder=place, seed=seed, console=console, clock=SystemClock(), faults=chosen)
    for number in (signal.SIGINT, signal.SIGTERM):  # also where a shell in the background has them ignored
        signal.signal(number, signal.default_int_handler)
    try:
        rows = demo.run()
    except KeyboardInterrupt:
        console.print("interrupted; every process was ended")
        raise SystemExit(130) from None
    if json_lines:
        for row in rows:
            print_json(view.plain(row))
    console.print(view.table(rows))
    (place / "table.md").write_text(view.markdown(rows) + "\n")
    wrong = [row for row in rows if row.wrongs]
    console.print(f"{len(rows) - len(wrong)} of {len(rows)} healed. Look again: eagle-eye incidents --state-dir {demo.state_dir}")
    if wrong:
        raise SystemExit(1)
