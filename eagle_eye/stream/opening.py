"""The stream of a deployment, as its configuration says."""

from pathlib import Path

from eagle_eye.clock import Clock
from eagle_eye.config import Config, StreamConfig

from . import OBSERVATIONS
from .embedded import EmbeddedStream


def open_stream(config: Config, clock: Clock) -> EmbeddedStream:
    """Open or make it under the state directory. Raises StreamError."""
    return open_under(config.state, config.stream, clock)


def open_under(state_dir: Path, settings: StreamConfig, clock: Clock) -> EmbeddedStream:
    """The same for who has been handed no more than it needs. Raises StreamError."""
    return EmbeddedStream(
        state_dir / "stream",
        partitions={OBSERVATIONS: settings.partitions},
        retention_s=settings.retention_s,
        max_bytes=settings.max_bytes,
        fsync_interval_s=settings.fsync_interval_s,
        clock=clock,
    )
