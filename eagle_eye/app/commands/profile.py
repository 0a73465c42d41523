"""`eagle-eye profile MODEL`."""

import json

import click

from eagle_eye.app import options
from eagle_eye.app.profile_run import print_profile, run
from eagle_eye.config import Config


@click.command(short_help="time and memory of each layer of a model, for the planner")
@click.argument("model")
@click.option("--micro-batch", type=click.IntRange(min=1), default=1, show_default=True, help="Samples, handed to batch().")
@click.option("--processes", type=click.IntRange(min=1), default=2, show_default=True, help="Largest number of local processes that an all-reduce is measured with.")
@click.option("--device", default="", help="cpu, cuda or cuda:N. Default: a GPU if there is one.")
@click.option("--warm-up", type=click.IntRange(min=0), default=3, show_default=True, help="Runs that are not measured.")
@click.option("--repeats", type=click.IntRange(min=1), default=10, show_default=True, help="Runs of which the median counts.")
@click.option("--python", default="", help="The interpreter that trains the model; eagle_eye is installed there. Default: this one.")
@click.option("--fresh", is_flag=True, help="Measure again even if nothing changed.")
@options.as_json
@options.wide
@options.deployment
def command(config: Config, model: str, micro_batch: int, processes: int, device: str, warm_up: int, repeats: int, python: str, fresh: bool, json_lines: bool, wide: bool) -> None:
    """Measure forward, backward, all-reduce and memory of each layer of MODEL, a Python file or module with

    \b
      layers()      the layers in order: modules, (name, module) pairs, or a mapping
      batch(size)   the input of the first layer for so many samples

    The profile is kept under the state directory until the model, the hardware or a version changes. Pipeline templates
    and `eagle-eye plan` (a job's `profile`) read it.

    \b
    Examples:
      eagle-eye profile examples/profile_gpt.py
      eagle-eye profile my_package.model --micro-batch 4 --processes 8
      eagle-eye profile examples/profile_gpt.py --fresh --json
    """
    arguments = [model, "--cache", str(config.state / "profiles"), "--micro-batch", str(micro_batch), "--processes", str(processes)]
    arguments += ["--device", device, "--warm-up", str(warm_up), "--repeats", str(repeats), *(["--fresh"] if fresh else [])]
    path, cached = run(python, arguments)
    record = json.loads(path.read_text())
    if json_lines:
        click.echo(json.dumps({**record, "file": str(path), "cached": cached}))
    else:
        print_profile(record, path, cached, wide=wide)
