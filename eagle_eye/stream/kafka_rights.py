"""What the brokers let this process do with each topic, and whose time its records have: for `eagle-eye doctor --kafka`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from eagle_eye.config import KafkaConfig
from eagle_eye.errors import StreamUnavailable

from .kafka import APPEND_TIME, TIMESTAMP_TYPE
from .kafka_connection import KafkaConnection
from .kafka_errors import translation
from .kafka_settings import client_options, why_unreachable

READ, WRITE = 3, 4
"""Operations of Kafka's protocol (AclOperation)."""
_TOPIC, _ALLOW, _MATCH = 2, 3, 2
"""Resource type, permission, and pattern type of a filter of access rules."""
_NO_RULES, _NOT_ALLOWED = 54, (29, 31)
"""Error codes: the brokers have no authorizer; we may not ask."""


class TopicRights(NamedTuple):
    """Of one topic. None: the brokers do not tell."""

    topic: str
    exists: bool
    reads: bool | None = None
    writes: bool | None = None
    append_time: bool | None = None
    """Its records have the time of the broker, not one that their writer chooses."""


class TopicWriters(NamedTuple):
    """Who may write to a topic by the brokers' access rules, as far as we may ask."""

    rules: bool
    """False: the brokers check nothing, whoever reaches them writes."""
    principals: tuple[str, ...] | None
    """`User:*` stands for everybody. None: we may not ask."""


class KafkaRights:
    """Asks the brokers; nothing is written."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection

    def of_topic(self, topic: str) -> TopicRights:
        """Raises StreamUnavailable."""
        from kafka.protocol.metadata import MetadataRequest

        wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False, include_topic_authorized_operations=True, max_version=9)
        (found,) = self._connection.ask(request).topics
        if found.error_code == 3:
            return TopicRights(topic, exists=False)
        if found.error_code in _NOT_ALLOWED:
            return TopicRights(topic, exists=True, reads=False, writes=False)
        self._raise(found.error_code, f"topic {topic}")
        operations: set[int] | None = found.authorized_operations
        reads, writes = (None if operations is None else operation in operations for operation in (READ, WRITE))
        return TopicRights(topic, exists=True, reads=reads, writes=writes, append_time=self._append_time(topic))

    def writers(self, topic: str) -> TopicWriters:
        """Raises StreamUnavailable."""
        from kafka.protocol.admin import DescribeAclsRequest

        request = DescribeAclsRequest(
            resource_type_filter=_TOPIC, resource_name_filter=topic, pattern_type_filter=_MATCH, principal_filter=None, host_filter=None,
            operation=WRITE, permission_type=_ALLOW,
        )  # fmt: skip
        answer = self._connection.ask(request)
        if answer.error_code == _NO_RULES:
            return TopicWriters(rules=False, principals=None)
        if answer.error_code in _NOT_ALLOWED:
            return TopicWriters(rules=True, principals=None)
        self._raise(answer.error_code, f"access rules of {topic}")
        return TopicWriters(rules=True, principals=tuple(sorted({rule.principal for each in answer.resources for rule in each.acls})))

    def _append_time(self, topic: str) -> bool | None:
        from kafka.protocol.admin import DescribeConfigsRequest

        wanted = DescribeConfigsRequest.DescribeConfigsResource(resource_type=_TOPIC, resource_name=topic, configuration_keys=[TIMESTAMP_TYPE])
        (found,) = self._connection.ask(DescribeConfigsRequest(resources=[wanted], include_synonyms=False, include_documentation=False)).results
        if found.error_code:
            return None
        return next((each.value == APPEND_TIME for each in found.configs if each.name == TIMESTAMP_TYPE), None)

    def _raise(self, code: int, what: str) -> None:
        from kafka.errors import for_code

        if code:
            raise translation(for_code(code)(what), what, self._connection.brokers)


@contextmanager
def kafka_rights(config: KafkaConfig) -> Iterator[KafkaRights]:
    """Connected. Raises StreamUnavailable with the reason, ConfigError."""
    try:
        connection = KafkaConnection(client_options(config), config.brokers, config.timeout_s)
    except StreamUnavailable as error:
        raise StreamUnavailable(why_unreachable(config) or str(error)) from error
    try:
        yield KafkaRights(connection)
    finally:
        connection.close()
