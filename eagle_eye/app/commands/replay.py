"""`eagle-eye replay`: a recorded stream again, and what differs from the record."""

from pathlib import Path

import click

from eagle_eye.app import options
from eagle_eye.app.replay_run import replay
from eagle_eye.config import Config


@click.command(short_help="run detectors and diagnosis over a record; print what differs")
@click.argument("record", default="", type=click.Path())
@options.as_json
@options.deployment
def command(config: Config, record: str, json_lines: bool) -> None:
    """Read RECORD (a file of records/<incident>, default: the stream of the state directory) through the detectors and
    the diagnosis of this configuration. Acts on nothing. Exits with 1 when findings or incidents differ.

    \b
    Examples:
      eagle-eye replay --state-dir /tmp/eagle-eye-demo-x/gpt/state
      eagle-eye replay records/4f1c9a02 --config tomorrow.toml
    """
    replayed = replay(config, Path(record) if record else None)
    for difference in replayed.differences:
        click.echo(difference.json if json_lines else str(difference))
    click.echo(replayed.summary, err=True)
    raise SystemExit(int(bool(replayed.differences)))
