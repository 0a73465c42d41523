"""Replays a record with the parts of a configuration."""

from pathlib import Path

from detectors.diagnosis import Diagnosis
from detectors.runtime.incident_recorder import read_records
from detectors.runtime.replay import ReplayResult, recorded_messages
from detectors.runtime.replay import replay as replayed
from eagle_eye.app import plugin_wiring
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.factory import open_stream


def replay(config: Config, record: Path | None) -> ReplayResult:
    """A file of records/<incident>, or else the stream of the state directory. Raises ConfigError when it is not there."""
    found = plugin_wiring.detectors(config)
    if record is not None:
        if not record.is_file():
            raise ConfigError(f"there is no record at {record}; the server keeps one for each incident under {config.state / 'records'}")
        return replayed(read_records(record), found, Diagnosis())
    if not config.stream.kafka.brokers and not (config.state / "stream").is_dir():
        raise ConfigError(f"there is no stream under {config.state}: name the --state-dir of a server that ran")
    stream = open_stream(config, SystemClock())
    try:
        whole = not any(stream.begin(OBSERVATIONS, partition) for partition in range(stream.partitions(OBSERVATIONS)))
        return replayed(recorded_messages(stream), found, Diagnosis(), from_start=whole)
    finally:
        stream.close()
