"""`eagle-eye replay`: run detectors and diagnosis over a recorded stream, and print what differs from the record."""

from pathlib import Path

import click

from detectors.diagnosis import Diagnosis
from detectors.runtime.incident_recorder import read_records
from detectors.runtime.replay import ReplayResult, recorded_messages, replay
from eagle_eye.app import options, plugin_wiring
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.factory import open_stream


@click.command(short_help="run detectors and diagnosis over a recorded stream; print what differs")
@click.argument("record", default="", type=click.Path())
@options.as_json
@options.deployment
def command(config: Config, record: str, json_lines: bool) -> None:
    """Read RECORD (a file of records/<incident>, default: the stream of the state directory) through the detectors and
    the diagnosis of this configuration. It takes no action. Exits with 1 when findings or incidents differ.

    \b
    Examples:
      eagle-eye replay --state-dir /tmp/eagle-eye-demo-x/gpt/state
      eagle-eye replay records/4f1c9a02 --config tomorrow.toml
    """
    replayed = _replay(config, Path(record) if record else None)
    for difference in replayed.differences:
        click.echo(difference.json if json_lines else str(difference))
    click.echo(replayed.summary, err=True)
    raise SystemExit(int(bool(replayed.differences)))


def _replay(config: Config, record: Path | None) -> ReplayResult:
    """Replays a file of records/<incident>; None: the stream of the state directory. Raises ConfigError when it does not exist."""
    found = plugin_wiring.detectors(config)
    if record is not None:
        if not record.is_file():
            raise ConfigError(f"there is no record at {record}; the server keeps one for each incident under {config.state / 'records'}")
        return replay(read_records(record), found, Diagnosis())
    if not config.stream.kafka.brokers and not (config.state / "stream").is_dir():
        raise ConfigError(f"there is no stream under {config.state}: name the --state-dir of a server that ran")
    stream = open_stream(config, SystemClock())
    try:
        whole = not any(stream.begin(OBSERVATIONS, partition) for partition in range(stream.partitions(OBSERVATIONS)))
        return replay(recorded_messages(stream), found, Diagnosis(), from_start=whole)
    finally:
        stream.close()
