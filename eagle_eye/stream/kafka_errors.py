"""What kafka-python's errors mean to us; each message names what was asked for and the remedy."""

from collections.abc import Iterator
from contextlib import contextmanager

from eagle_eye.errors import EagleEyeError, StreamError, StreamFull, StreamRefused, StreamUnavailable


class TopicGone(StreamUnavailable):
    """The brokers do not know the topic (any more): the caller makes it again."""


@contextmanager
def translated(what: str, brokers: str) -> Iterator[None]:
    """Turn kafka-python's errors into ours. `what`: names what was tried."""
    from kafka.errors import KafkaError

    try:
        yield
    except EagleEyeError:
        raise
    except (KafkaError, RuntimeError, OSError) as error:  # RuntimeError: its network loop has ended
        raise translation(error, what, brokers) from error


def translation(error: BaseException, what: str, brokers: str) -> StreamError:
    """Our error for one of kafka-python's."""
    from kafka import errors as kafka

    details = f"{type(error).__name__.removesuffix('Error')}: {error}"
    if isinstance(error, kafka.SaslAuthenticationFailedError):
        return StreamUnavailable(
            f"{brokers} refuse the name or password ({error}): correct stream.kafka.user and its password "
            "(stream.kafka.password_file or EAGLE_EYE_KAFKA_PASSWORD), and check stream.kafka.mechanism"
        )
    if isinstance(error, kafka.UnsupportedSaslMechanismError):
        return StreamUnavailable(f"{brokers} do not offer this stream.kafka.mechanism ({error}): use one that they do")
    if isinstance(error, kafka.AuthorizationError):
        return StreamUnavailable(
            f"{what}: {brokers} do not allow it ({details}): grant it to stream.kafka.user (docs/kafka.md lists what is needed)"
        )
    if isinstance(error, kafka.UnknownTopicOrPartitionError | kafka.UnknownTopicIdError):
        return TopicGone(f"{what}: {brokers} do not know the topic; it is made again at the next try")
    if isinstance(error, kafka.MessageSizeTooLargeError | kafka.RecordListTooLargeError):
        return StreamRefused(f"{what}: the record is too large for the topic: raise its max.message.bytes, or split it")
    if isinstance(error, kafka.KafkaStorageError | kafka.ThrottlingQuotaExceededError):
        return StreamFull(f"{what}: {brokers} have no room ({details}): free their disks, or raise the quota")
    return StreamUnavailable(f"{what}: {brokers} do not do it now ({details})")
