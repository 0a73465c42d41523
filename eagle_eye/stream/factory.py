"""The stream of a deployment, as its configuration says."""

from collections.abc import Mapping
from pathlib import Path

from eagle_eye.access.stream_keys import SETTING, stream_key
from eagle_eye.clock import Clock
from eagle_eye.config import AccessConfig, Config, StreamConfig
from eagle_eye.errors import ConfigError

from . import OBSERVATIONS, RUNNER_GROUP, Stream
from .embedded import EmbeddedStream

UNSIGNED = AccessConfig()
"""No key is named."""


def open_stream(config: Config, clock: Clock, *, node: str = "", checked: bool = False) -> Stream:
    """Kafka if the configuration names brokers, else the embedded one in the state directory. Raises StreamError, ConfigError.

    `node`: of whom `access.stream_key_file` must be, where it is a node's. `checked`: for a process that acts on what it reads, which must
    be able to check signatures.
    """
    return open_stream_in(config.state, config.stream, clock, access=config.access, node=node, checked=checked)


def open_stream_in(
    state_dir: Path, settings: StreamConfig, clock: Clock, *, access: AccessConfig = UNSIGNED, node: str = "", checked: bool = False
) -> Stream:  # fmt: skip
    """The same for a caller that has no whole `Config`.

    Kafka is connected at the first use, and made for one process: open it after a fork.
    """
    key = stream_key(access, clock, node=node)
    if key is None:
        return _open(state_dir, settings, clock)
    if checked and key.root is None:
        raise ConfigError(f"{SETTING} is the key of {key.writer.identity}: a server needs one of `eagle-eye certs issue NAME --kind server`, else it cannot check others'")
    from .signed_stream import SignedStream

    return SignedStream(_open(state_dir, settings, clock), key, access, clock)


def _open(state_dir: Path, settings: StreamConfig, clock: Clock) -> Stream:
    if settings.kafka.brokers:
        return _open_kafka(settings, clock)
    return EmbeddedStream(
        state_dir / "stream",
        partitions={OBSERVATIONS: settings.partitions},
        retention_s=settings.retention_s,
        max_bytes=settings.max_bytes,
        fsync_interval_s=settings.fsync_interval_s,
        clock=clock,
    )


def open_embedded(config: Config, clock: Clock) -> EmbeddedStream:
    """For what only the embedded stream can do. Raises ConfigError where the configuration names brokers."""
    stream = _open(config.state, config.stream, clock)
    if not isinstance(stream, EmbeddedStream):
        raise ConfigError(
            f"the stream is Kafka at {config.stream.kafka.brokers}, and only the embedded stream can do this: stop a "
            "broker instead, or take stream.kafka.brokers out of the configuration"
        )
    return stream


def confirmed_by(settings: StreamConfig) -> Mapping[str, str]:
    """topic → group whose commits confirm a record, for a `SpooledWriter`: brokers may forget what they acknowledged."""
    return {OBSERVATIONS: RUNNER_GROUP} if settings.kafka.brokers else {}


def _open_kafka(settings: StreamConfig, clock: Clock) -> Stream:
    try:
        import kafka as _  # noqa: F401
    except ImportError as error:
        raise ConfigError("stream.kafka.brokers is set, but kafka-python is not installed: pip install 'eagle-eye[kafka]'") from error
    from .kafka import KafkaStream

    return KafkaStream(
        settings.kafka,
        partitions={OBSERVATIONS: settings.partitions},
        retention_s=settings.retention_s,
        max_bytes=settings.max_bytes,
        clock=clock,
    )
