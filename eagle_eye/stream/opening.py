"""The stream of a deployment, as its configuration says."""

from eagle_eye.clock import Clock
from eagle_eye.config import Config

from . import OBSERVATIONS
from .embedded import EmbeddedStream


def open_stream(config: Config, clock: Clock) -> EmbeddedStream:
    """Open or make it under the state directory. Raises StreamError."""
    return EmbeddedStream(
        config.state / "stream",
        partitions={OBSERVATIONS: config.stream.partitions},
        retention_s=config.stream.retention_s,
        max_bytes=config.stream.max_bytes,
        fsync_interval_s=config.stream.fsync_interval_s,
        clock=clock,
    )
