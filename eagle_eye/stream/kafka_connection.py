"""One connection to the brokers: sends a request of the protocol, waits for the answer, knows who leads what.

kafka-python's consumer reads ahead and belongs to one thread. A reader of ours says where it reads and asks again:
one Fetch request is all that `read`, `wait`, `begin` and `end` need, and its answer carries the true end of the log
(some brokers answer ListOffsets wrongly).

Used beyond kafka-python's public API: `kafka.net` (manager, selector, inet, compat), `kafka.protocol`, `kafka.record`, and
`KafkaProducer._sender.force_close` in `kafka_producer`. All of it stands in the modules `kafka_*`.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from eagle_eye.clock import Clock
from eagle_eye.config import KafkaConfig
from eagle_eye.errors import StreamError, StreamUnavailable

from .kafka_errors import TopicGone, translated, translation
from .kafka_settings import why_unreachable

LARGEST_ANSWER = 100 << 20
SLACK_S = 1.0
"""Beyond the time-out that kafka-python itself keeps: then its loop is stuck."""
WAITS_S = (0.001, 0.01, 0.1, 1.0)
"""How long a broker may take to find what it has, asked once more each time."""
IDLE_CONNECTIONS = 8
LONGEST_BACK_OFF_S = 2.0
CLIENT = "eagle-eye"
EARLIEST, LATEST = -2, -1
_WRONG_LEADER = {3, 5, 6, 9, 74, 75}
"""Error codes after which the leaders are looked up anew: unknown topic, no or another leader, fenced epochs."""
_OUT_OF_RANGE = 1
_LOADING = {14, 15, 16}
"""Error codes of a coordinator that moves or loads."""


class Fetched(NamedTuple):
    """The answer to one Fetch."""

    data: bytes
    """Record batches as the broker keeps them; the first may begin before the offset asked for."""
    end: int
    """Offset that the next record gets; -1 if the broker does not report it."""
    outside: bool
    """No record has this offset: it lies before the begin or beyond the end."""


class KafkaConnection:
    """A connection to the brokers, used by one thread at a time. Made after a fork."""

    def __init__(self, options: Mapping[str, Any], brokers: str, timeout_s: float) -> None:
        """Connects. Raises StreamUnavailable."""
        from kafka.net.manager import KafkaConnectionManager
        from kafka.net.selector import NetworkSelector

        from .kafka_sockets import OwnedSockets

        self.brokers = brokers
        self._timeout_s = timeout_s
        self._leaders: dict[tuple[str, int], int] = {}
        self._coordinators: dict[str, int] = {}
        self._sockets = OwnedSockets()
        self._loop = NetworkSelector(client_id=CLIENT)
        self._manager = KafkaConnectionManager(
            self._loop, client_id=CLIENT, receive_message_max_bytes=LARGEST_ANSWER, proxy_url=self._sockets.proxy_url, **options
        )
        self._loop.start()
        try:
            with translated("connecting", brokers):
                if "sasl_mechanism" in options:
                    self._finish(self._manager.call_soon(self._sign_on))
                self._finish(self._manager.bootstrap_async(int(timeout_s * 1000)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the connection and its thread."""
        try:
            with translated("closing", self.brokers):
                self._finish(self._manager.call_soon(self._manager.close))
        finally:
            self._loop.stop(timeout_ms=int(SLACK_S * 1000))
            self._loop.close()
            self._sockets.close()

    async def _sign_on(self) -> None:
        """Once before kafka-python's own attempts, which are repeated until their time is over and give no reason."""
        from kafka.errors import KafkaConnectionError, NodeNotReadyError

        for broker in self._manager.cluster.bootstrap_brokers():
            try:
                await self._manager.get_connection(broker.node_id, refresh_metadata_on_err=False)
            except (KafkaConnectionError, NodeNotReadyError):
                continue  # a broker that is down; another one knows us

    # --- topics --------------------------------------------------------------------------------------------------

    def partitions(self, topic: str) -> int:
        """How many the topic has; 0 if there is no such topic."""
        from kafka.errors import for_code
        from kafka.protocol.metadata import MetadataRequest

        wanted = [MetadataRequest.MetadataRequestTopic(name=topic)]
        answer = self.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False, max_version=9))
        (found,) = answer.topics
        if found.error_code == 3:
            return 0
        if found.error_code:
            raise translation(for_code(found.error_code)(topic), f"topic {topic}", self.brokers)
        for each in found.partitions:
            self._leaders[topic, each.partition_index] = each.leader_id
        return len(found.partitions)

    def make_topic(self, topic: str, partitions: int, replication: int, settings: Mapping[str, str]) -> None:
        """Make it; one that another process has made meanwhile is as good. Raises StreamUnavailable."""
        from kafka.errors import for_code
        from kafka.protocol.admin import CreateTopicsRequest

        wanted = CreateTopicsRequest.CreatableTopic
        configs = [wanted.CreatableTopicConfig(name=name, value=value) for name, value in settings.items()]
        request = CreateTopicsRequest(
            topics=[wanted(name=topic, num_partitions=partitions, replication_factor=replication, assignments=[], configs=configs)],
            timeout_ms=int(self._timeout_s * 1000), validate_only=False, max_version=6,
        )  # fmt: skip
        controller = self._controller()
        (made,) = self.ask(request, controller).topics
        if made.error_code not in (0, 36):
            error = for_code(made.error_code)(getattr(made, "error_message", "") or "")
            raise translation(error, f"making topic {topic} with {partitions} partitions", self.brokers)

    def _controller(self) -> int:
        from kafka.protocol.metadata import MetadataRequest

        return int(self.ask(MetadataRequest(topics=[], allow_auto_topic_creation=False, max_version=9)).controller_id)

    # --- records -------------------------------------------------------------------------------------------------

    def fetch(self, topic: str, partition: int, offset: int, *, bytes_: int, wait_s: float = 0.0) -> Fetched:
        """Batches from `offset` on, at most about `bytes_` (but one whole batch), after at most `wait_s` seconds.

        Tansu answers a request that may not wait with nothing, even where there is something: then it is asked again
        and given longer.
        """
        for patience_s in WAITS_S:
            found = self._fetch_once(
                topic, partition, offset, bytes_, max(patience_s, wait_s), at_least=1 if wait_s else 0
            )
            if found is not None and (found.data or found.outside or offset >= found.end):
                return found
        raise StreamUnavailable(f"{topic}/{partition} holds records from {offset} on, but {self.brokers} do not hand them out")

    def _fetch_once(
        self, topic: str, partition: int, offset: int, bytes_: int, wait_s: float, at_least: int
    ) -> Fetched | None:
        from kafka.protocol.consumer import FetchRequest

        place = FetchRequest.FetchTopic.FetchPartition(
            partition=partition, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1, log_start_offset=-1,
            partition_max_bytes=bytes_,
        )  # fmt: skip
        request = FetchRequest(
            replica_id=-1, max_wait_ms=int(wait_s * 1000), min_bytes=at_least, max_bytes=bytes_, isolation_level=0,
            session_id=0, session_epoch=-1, topics=[FetchRequest.FetchTopic(topic=topic, partitions=[place])],
            forgotten_topics_data=[], rack_id="", min_version=4, max_version=11,
        )  # fmt: skip
        answer = self._ask_leader(topic, partition, request, self._timeout_s + wait_s)
        partitions = [each for answered in answer.responses for each in answered.partitions]
        if not partitions:
            return None
        (found,) = partitions
        if found.error_code == _OUT_OF_RANGE:
            return Fetched(b"", -1, outside=True)
        self._check(found.error_code, f"reading {topic}/{partition}", topic, partition)
        return Fetched(
            found.records or b"", found.high_watermark, outside=offset > found.high_watermark
        )  # Tansu's answer

    def offset_at(self, topic: str, partition: int, moment: int) -> int:
        """Offset at EARLIEST or LATEST. Some brokers answer LATEST with the beginning of the last batch."""
        from kafka.protocol.consumer import ListOffsetsRequest

        wanted = ListOffsetsRequest.ListOffsetsTopic
        place = wanted.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=moment)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[wanted(name=topic, partitions=[place])],
            min_version=1,
            max_version=5,
        )
        answer = self._ask_leader(topic, partition, request, self._timeout_s)
        (found,) = answer.topics[0].partitions
        self._check(found.error_code, f"the offsets of {topic}/{partition}", topic, partition)
        return int(found.offset)

    def _ask_leader(self, topic: str, partition: int, request: Any, timeout_s: float) -> Any:
        leader = self._leaders.get((topic, partition))
        if leader is None or leader < 0:
            if not self.partitions(topic):
                raise TopicGone(f"{self.brokers} do not know topic {topic} any more; it is made again at the next try")
            leader = self._leaders.get((topic, partition))
        if leader is None or leader < 0:
            raise StreamUnavailable(f"{topic}/{partition} has no leader now: is a broker of {self.brokers} down?")
        try:
            return self.ask(request, leader, timeout_s)
        except StreamUnavailable:
            self._leaders.clear()
            raise

    def _check(self, code: int, what: str, topic: str, partition: int) -> None:
        from kafka.errors import for_code

        if code in _WRONG_LEADER:
            self._leaders.pop((topic, partition), None)
        if code:
            raise translation(for_code(code)(f"{topic}/{partition}"), what, self.brokers)

    # --- committed offsets ---------------------------------------------------------------------------------------

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Remember a group's offset, as a member of nothing."""
        from kafka.protocol.consumer import OffsetCommitRequest

        wanted = OffsetCommitRequest.OffsetCommitRequestTopic
        place = wanted.OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None, retention_time_ms=-1,
            topics=[wanted(name=topic, partitions=[place])], min_version=2, max_version=7,
        )  # fmt: skip
        answer = self._ask_coordinator(group, request)
        self._check_group(answer.topics[0].partitions[0].error_code, group)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """A group's offset; None if there is none."""
        from kafka.protocol.consumer import OffsetFetchRequest

        wanted = OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=[partition])
        request = OffsetFetchRequest(
            group_id=group, topics=[wanted], require_stable=False, min_version=2, max_version=7
        )
        answer = self._ask_coordinator(group, request)
        self._check_group(answer.error_code, group)
        found = [each for each_topic in answer.topics for each in each_topic.partitions]
        if not found or found[0].committed_offset < 0:
            return None
        self._check_group(found[0].error_code, group)
        return int(found[0].committed_offset)

    def _ask_coordinator(self, group: str, request: Any) -> Any:
        if group not in self._coordinators:
            self._coordinators[group] = self._find_coordinator(group)
        try:
            return self.ask(request, self._coordinators[group])
        except StreamUnavailable:
            self._coordinators.clear()
            raise

    def _find_coordinator(self, group: str) -> int:
        from kafka.protocol.metadata import FindCoordinatorRequest

        found = self.ask(FindCoordinatorRequest(key=group, key_type=0, max_version=3))
        self._check_group(found.error_code, group)
        return int(found.node_id)

    def _check_group(self, code: int, group: str) -> None:
        from kafka.errors import for_code

        if code in _LOADING:
            self._coordinators.pop(group, None)
        if code:
            raise translation(for_code(code)(group), f"the offsets of group {group}", self.brokers)

    # --- asking --------------------------------------------------------------------------------------------------

    def ask(self, request: Any, node: int | None = None, timeout_s: float | None = None) -> Any:
        """Send a request and wait for its answer. Raises StreamUnavailable."""
        limit = timeout_s or self._timeout_s
        with translated(f"asking for {type(request).__name__.removesuffix('Request')}", self.brokers):
            return self._finish(self._manager.call_soon(self._manager.send, request, node, int(limit * 1000)), limit)

    def _finish(self, future: Any, timeout_s: float | None = None) -> Any:
        from kafka.errors import KafkaTimeoutError

        done = threading.Event()
        future.add_both(lambda _: done.set())
        if not done.wait((timeout_s or self._timeout_s) + SLACK_S):
            raise KafkaTimeoutError("the client's network loop does not answer")
        if future.exception is not None:
            raise future.exception
        return future.value


class KafkaConnectionPool:
    """Connections of one stream: as many as threads use at the same time, idle ones are reused."""

    def __init__(self, config: KafkaConfig, options: Mapping[str, Any], clock: Clock) -> None:
        self._config = config
        self._options = options
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[KafkaConnection] = []
        self._closed = False
        self._failures = 0
        self._failed = ""
        self._again_at = 0.0

    @contextmanager
    def borrow(self) -> Iterator[KafkaConnection]:
        """A connection for this block; one that failed is not borrowed again. Raises StreamUnavailable if none can be made."""
        connection = self._take()
        try:
            yield connection
        except TopicGone:
            self._put_back(connection)
            raise
        except BaseException:
            self._drop(connection)
            raise
        self._put_back(connection)

    def why(self, error: StreamError) -> StreamError:
        """The same with the reason that a look at the brokers finds."""
        reason = why_unreachable(self._config)
        return StreamUnavailable(f"the stream at {self._config.brokers} cannot be reached: {reason}") if reason else error

    def check_open(self) -> None:
        """StreamError once closed."""
        if self._closed:
            raise StreamError(f"the stream at {self._config.brokers} was closed in this process; make a new one")

    def close(self) -> None:
        """No more; those that are borrowed are closed when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        _close_all(idle)

    def _take(self) -> KafkaConnection:
        with self._lock:
            self.check_open()
            if self._idle:
                return self._idle.pop()
            if self._clock.monotonic() < self._again_at:
                raise StreamUnavailable(self._failed)
        try:
            self._look()
            connection = KafkaConnection(self._options, self._config.brokers, self._config.timeout_s)
        except StreamError as error:
            reason = self.why(error)
            self._back_off(str(reason))
            raise reason from error
        self._failures = 0
        return connection

    def _look(self) -> None:
        """A refused connection is reported at once, not after the time that kafka-python tries again."""
        reason = why_unreachable(self._config)
        if reason:
            raise StreamUnavailable(reason)

    def _back_off(self, reason: str) -> None:
        with self._lock:
            self._failed = reason
            self._again_at = self._clock.monotonic() + min(LONGEST_BACK_OFF_S, 0.1 * 2**self._failures)
            self._failures = min(self._failures + 1, 10)

    def _drop(self, failed: KafkaConnection) -> None:
        """The others were made when it was, and have failed with it."""
        with self._lock:
            idle, self._idle = self._idle, []
        _close_all((failed, *idle))

    def _put_back(self, connection: KafkaConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()


def _close_all(connections: Iterable[KafkaConnection]) -> None:
    """Each of them, also where another one cannot say goodbye to its broker."""
    for connection in connections:
        with suppress(StreamError):
            connection.close()
