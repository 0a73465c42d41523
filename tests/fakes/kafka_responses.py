"""How a fake broker answers each request of the protocol that our clients send."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from .kafka_log import NO_ERROR, OUT_OF_RANGE, UNKNOWN_TOPIC, FakeMemory

POLL_S = 0.002
EARLIEST = -2
Answering = Callable[["Situation", Any, int], Any | Awaitable[Any]]


class Situation(NamedTuple):
    """What an answer may depend on."""

    memory: FakeMemory
    host: str
    port: int
    passwords: dict[str, str]


class Api(NamedTuple):
    """One kind of request."""

    name: str
    request: Any
    lowest: int
    highest: int
    answer: Answering


def _metadata(at: Situation, request: Any, version: int) -> Any:
    from kafka.protocol.metadata import MetadataResponse as Response

    topic_class = Response.MetadataResponseTopic
    names = [topic.name for topic in request.topics] if request.topics is not None else list(at.memory.topics)
    topics = []
    for name in names:
        held = at.memory.topics.get(name)
        partitions = [
            topic_class.MetadataResponsePartition(
                version=version, error_code=0, partition_index=number, leader_id=1, leader_epoch=0,
                replica_nodes=[1], isr_nodes=[1], offline_replicas=[],
            )
            for number in range(len(held or []))
        ]  # fmt: skip
        code = UNKNOWN_TOPIC if held is None else NO_ERROR
        asked = version >= 8 and request.include_topic_authorized_operations
        allowed = set(range(3, 12)) - at.memory.denied.get(name, set()) if asked else None
        topics.append(topic_class(version=version, error_code=code, name=name, is_internal=False, partitions=partitions, authorized_operations=allowed))
    broker = Response.MetadataResponseBroker(version=version, node_id=1, host=at.host, port=at.port, rack=None)
    return Response(version=version, brokers=[broker], cluster_id="fake", controller_id=1, topics=topics)


def _create_topics(at: Situation, request: Any, version: int) -> Any:
    from kafka.protocol.admin import CreateTopicsResponse as Response

    for topic in request.topics:
        at.memory.configs.setdefault(topic.name, {each.name: each.value for each in topic.configs})
    made = [
        Response.CreatableTopicResult(
            version=version, name=topic.name, error_code=at.memory.make(topic.name, topic.num_partitions), error_message=None
        )
        for topic in request.topics
    ]
    return Response(version=version, topics=made)


def _init_producer(at: Situation, _request: Any, version: int) -> Any:
    from kafka.protocol.producer import InitProducerIdResponse as Response

    at.memory.next_producer += 1
    return Response(version=version, error_code=0, producer_id=at.memory.next_producer, producer_epoch=0)


def _produce(at: Situation, request: Any, version: int) -> Any:
    from kafka.protocol.producer import ProduceResponse as Response

    topic_class = Response.TopicProduceResponse
    topics = []
    for topic in request.topic_data:
        partitions = []
        for each in topic.partition_data:
            held = at.memory.partition(topic.name, each.index)
            code, offset = (UNKNOWN_TOPIC, -1) if held is None else held.append(bytes(each.records))
            partitions.append(
                topic_class.PartitionProduceResponse(
                    version=version, index=each.index, error_code=code, base_offset=offset, log_append_time_ms=-1, log_start_offset=0
                )
            )
        topics.append(topic_class(version=version, name=topic.name, partition_responses=partitions))
    return Response(version=version, responses=topics)


async def _fetch(at: Situation, request: Any, version: int) -> Any:
    left = request.max_wait_ms / 1000
    while True:
        answer, size = _fetched(at, request, version)
        if size >= request.min_bytes or left <= 0:
            return answer
        await asyncio.sleep(POLL_S)
        left -= POLL_S


def _fetched(at: Situation, request: Any, version: int) -> tuple[Any, int]:
    from kafka.protocol.consumer import FetchResponse as Response

    topic_class = Response.FetchableTopicResponse
    topics, size = [], 0
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            held = at.memory.partition(topic.topic, each.partition)
            code, end, data = UNKNOWN_TOPIC, -1, b""
            if held is not None:
                inside = held.begin <= each.fetch_offset <= held.end
                code, end = (NO_ERROR, held.end) if inside else (OUT_OF_RANGE, -1)
                data = held.read(each.fetch_offset, each.partition_max_bytes) if inside else b""
            size += len(data) if code == NO_ERROR else request.min_bytes
            partitions.append(
                topic_class.PartitionData(
                    version=version, partition_index=each.partition, error_code=code, high_watermark=end, last_stable_offset=end,
                    log_start_offset=held.begin if held else -1, aborted_transactions=[], records=data,
                )
            )  # fmt: skip
        topics.append(topic_class(version=version, topic=topic.topic, partitions=partitions))
    return Response(version=version, error_code=0, session_id=0, responses=topics), size


def _list_offsets(at: Situation, request: Any, version: int) -> Any:
    from kafka.protocol.consumer import ListOffsetsResponse as Response

    topic_class = Response.ListOffsetsTopicResponse
    topics = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            held = at.memory.partition(topic.name, each.partition_index)
            offset = -1 if held is None else held.begin if each.timestamp == EARLIEST else held.end
            partitions.append(
                topic_class.ListOffsetsPartitionResponse(
                    version=version, partition_index=each.partition_index, error_code=UNKNOWN_TOPIC if held is None else NO_ERROR,
                    timestamp=-1, offset=offset, leader_epoch=0,
                )
            )  # fmt: skip
        topics.append(topic_class(version=version, name=topic.name, partitions=partitions))
    return Response(version=version, topics=topics)


def _find_coordinator(at: Situation, _request: Any, version: int) -> Any:
    from kafka.protocol.metadata import FindCoordinatorResponse as Response

    return Response(version=version, error_code=0, error_message=None, node_id=1, host=at.host, port=at.port)


def _commit(at: Situation, request: Any, version: int) -> Any:
    from kafka.protocol.consumer import OffsetCommitResponse as Response

    topic_class = Response.OffsetCommitResponseTopic
    topics = []
    for topic in request.topics:
        partitions = []
        for each in topic.partitions:
            at.memory.committed[request.group_id, topic.name, each.partition_index] = each.committed_offset
            partitions.append(
                topic_class.OffsetCommitResponsePartition(version=version, partition_index=each.partition_index, error_code=0)
            )
        topics.append(topic_class(version=version, name=topic.name, partitions=partitions))
    return Response(version=version, topics=topics)


def _committed(at: Situation, request: Any, version: int) -> Any:
    from kafka.protocol.consumer import OffsetFetchResponse as Response

    topic_class = Response.OffsetFetchResponseTopic
    topics = []
    for topic in request.topics or []:
        partitions = [
            topic_class.OffsetFetchResponsePartition(
                version=version, partition_index=number, metadata="", error_code=0, committed_leader_epoch=-1,
                committed_offset=at.memory.committed.get((request.group_id, topic.name, number), -1),
            )
            for number in topic.partition_indexes
        ]  # fmt: skip
        topics.append(topic_class(version=version, name=topic.name, partitions=partitions))
    return Response(version=version, topics=topics, error_code=0)


def _configs(at: Situation, request: Any, version: int) -> Any:
    from kafka.protocol.admin import DescribeConfigsResponse as Response

    result_class = Response.DescribeConfigsResult
    results = []
    for each in request.resources:
        kept = at.memory.configs.get(each.resource_name, {})
        configs = [
            result_class.DescribeConfigsResourceResult(
                version=version, name=name, value=kept.get(name, "CreateTime"), read_only=False, is_sensitive=False, config_source=5, synonyms=[]
            )
            for name in each.configuration_keys
        ]
        results.append(result_class(version=version, error_code=0, error_message=None, resource_type=2, resource_name=each.resource_name, configs=configs))
    return Response(version=version, results=results)


def _acls(at: Situation, request: Any, version: int) -> Any:
    from kafka.protocol.admin import DescribeAclsResponse as Response

    if at.memory.rules is None:
        return Response(version=version, error_code=54, error_message="no authorizer", resources=[])
    topic = request.resource_name_filter
    resource = Response.DescribeAclsResource
    rules = [
        resource.AclDescription(version=version, principal=principal, host="*", operation=request.operation, permission_type=3)
        for principal in at.memory.rules.get(topic, ())
    ]
    return Response(version=version, error_code=0, error_message=None, resources=[resource(version=version, resource_type=2, resource_name=topic, pattern_type=3, acls=rules)])


def _handshake(_at: Situation, request: Any, version: int) -> Any:
    from kafka.protocol.sasl import SaslHandshakeResponse as Response

    return Response(version=version, error_code=0 if request.mechanism == "PLAIN" else 33, mechanisms=["PLAIN"])


def _authenticate(at: Situation, request: Any, version: int) -> Any:
    from kafka.protocol.sasl import SaslAuthenticateResponse as Response

    _, user, password = bytes(request.auth_bytes).decode().split("\0")
    good = at.passwords.get(user) == password
    return Response(
        version=version, error_code=0 if good else 58, error_message=None if good else "invalid credentials", auth_bytes=b"",
        session_lifetime_ms=0,
    )  # fmt: skip


def apis() -> dict[int, Api]:
    """Key of the protocol → what is answered. Imports kafka-python."""
    from kafka.protocol.admin import CreateTopicsRequest, DescribeAclsRequest, DescribeConfigsRequest
    from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetCommitRequest, OffsetFetchRequest
    from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
    from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
    from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

    return {
        0: Api("Produce", ProduceRequest, 3, 7, _produce),
        1: Api("Fetch", FetchRequest, 4, 6, _fetch),
        2: Api("ListOffsets", ListOffsetsRequest, 1, 4, _list_offsets),
        3: Api("Metadata", MetadataRequest, 0, 8, _metadata),
        8: Api("OffsetCommit", OffsetCommitRequest, 2, 7, _commit),
        9: Api("OffsetFetch", OffsetFetchRequest, 2, 5, _committed),
        10: Api("FindCoordinator", FindCoordinatorRequest, 0, 2, _find_coordinator),
        17: Api("SaslHandshake", SaslHandshakeRequest, 0, 1, _handshake),
        19: Api("CreateTopics", CreateTopicsRequest, 0, 4, _create_topics),
        22: Api("InitProducerId", InitProducerIdRequest, 0, 1, _init_producer),
        29: Api("DescribeAcls", DescribeAclsRequest, 0, 1, _acls),
        32: Api("DescribeConfigs", DescribeConfigsRequest, 0, 2, _configs),
        36: Api("SaslAuthenticate", SaslAuthenticateRequest, 0, 1, _authenticate),
    }
