"""The writing side: kafka-python's producer, acknowledged by the brokers, and made anew when it is stuck.

Its producer can wedge after a broker's fault: futures that never resolve. No future is waited for longer than
`timeout_s`; then the whole producer is abandoned, its buffered records with it, and the next append makes another.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from eagle_eye.clock import Clock
from eagle_eye.errors import StreamError, StreamUnavailable

from .kafka_errors import translated

if TYPE_CHECKING:
    from .kafka_sockets import NetworkClients

BATCH_BYTES = 512 << 10
"""Half of what a topic takes by default as one batch."""
LINGER_MS = 50
"""Only a bound: every append flushes."""
IN_FLIGHT = 5
CLOSE_S = 1.0


class OutgoingRecord(NamedTuple):
    """One record on its way."""

    topic: str
    partition: int
    key: str
    value: bytes


class Producer:
    """Appends and waits. Safe for threads; made at the first append, so after a fork."""

    def __init__(
        self,
        options: Mapping[str, Any],
        brokers: str,
        *,
        compression: str,
        timeout_s: float,
        largest: int,
        clock: Clock,
    ) -> None:
        """largest: bytes of a record with its batch that are sent at all."""
        self._options = options
        self._brokers = brokers
        self._compression = None if compression == "none" else compression
        self._timeout_s = timeout_s
        self._largest = largest
        self._clock = clock
        self._lock = threading.Lock()
        self._current: Any = None
        self._waiting: dict[int, float] = {}
        """Append → since when it waits."""
        self._numbers = 0
        self.made = 0
        """How many producers there have been: more than one means that one was stuck or failed."""

    def append(self, records: Sequence[OutgoingRecord]) -> list[int]:
        """Send in order; returns the offsets once all are acknowledged.

        An acknowledgement without an offset (a retried batch that was taken for a known one) proves nothing: it counts
        as none, and what arrives twice is dropped by its reader. Raises StreamUnavailable (some of them may have arrived), StreamFull, or StreamRefused for one that never can be taken.
        """
        number, since = self._begin()
        producer = self._producer()
        try:
            with translated(f"appending {len(records)} records to {records[0].topic}", self._brokers):
                return self._send(producer, records, since + self._timeout_s)
        except StreamError:  # also after a refused record: an idempotent producer takes nothing after an error
            self._abandon(producer)
            raise
        finally:
            with self._lock:
                del self._waiting[number]

    def oldest_age_s(self) -> float:
        """For how long the oldest append has waited for its acknowledgement: above `timeout_s` never for long."""
        with self._lock:
            now = self._clock.monotonic()
            return now - min(self._waiting.values(), default=now)

    def close(self) -> None:
        """Release the producer; nothing is in its buffers but what nobody waits for any more."""
        with self._lock:
            producer, self._current = self._current, None
        if producer is not None:
            _close(producer, CLOSE_S)

    def _begin(self) -> tuple[int, float]:
        with self._lock:
            self._numbers += 1
            since = self._waiting[self._numbers] = self._clock.monotonic()
            return self._numbers, since

    def _send(self, producer: Any, records: Sequence[OutgoingRecord], deadline: float) -> list[int]:
        time_ms = int(self._clock.now() * 1000)
        futures = [
            producer.send(
                record.topic, record.value, record.key.encode(), partition=record.partition, timestamp_ms=time_ms
            )
            for record in records
        ]
        self._flush(producer, deadline)
        return [self._offset(future, deadline, records[0].topic) for future in futures]

    def _offset(self, future: Any, deadline: float, topic: str) -> int:
        from kafka.errors import KafkaTimeoutError

        try:
            offset = int(future.get(timeout=max(0.001, deadline - self._clock.monotonic())).offset)
        except KafkaTimeoutError as error:
            raise StreamUnavailable(
                f"appending to {topic}: {self._brokers} acknowledged nothing for {self._timeout_s:g} s "
                "(stream.kafka.timeout_s): are they overloaded, stopped or cut off?"
            ) from error
        if offset < 0:
            raise StreamUnavailable(f"appending to {topic}: {self._brokers} took a record for one that they have, and cannot say where")
        return offset

    def _flush(self, producer: Any, deadline: float) -> None:
        """Send now instead of lingering."""
        from kafka.errors import KafkaTimeoutError

        try:
            producer.flush(max(0.0, deadline - self._clock.monotonic()))
        except KafkaTimeoutError:
            return  # each future reports its own error

    # --- making one, and giving one up -------------------------------------------------------------------------------

    def _producer(self) -> Any:
        with self._lock:
            if self._current is None:
                self._current = self._make()
                self.made += 1
            return self._current

    def _make(self) -> Any:
        from kafka import KafkaProducer
        from kafka.errors import KafkaTimeoutError

        from .kafka_sockets import NetworkClients

        clients = NetworkClients()
        milliseconds = int(self._timeout_s * 1000)
        options = {**self._options, "request_timeout_ms": max(1, milliseconds // 2)}
        options.pop("socket_connection_setup_timeout_ms")
        try:
            with translated("connecting", self._brokers), _closing_on_failure(clients):
                return KafkaProducer(
                    client_id="eagle-eye-producer", enable_idempotence=True, acks="all", compression_type=self._compression,
                    batch_size=BATCH_BYTES, linger_ms=LINGER_MS, max_request_size=self._largest, max_block_ms=milliseconds,
                    delivery_timeout_ms=milliseconds + LINGER_MS, bootstrap_timeout_ms=milliseconds,
                    max_in_flight_requests_per_connection=IN_FLIGHT, allow_auto_create_topics=False,
                    metrics_enabled=False, kafka_client=clients, **options,
                )  # fmt: skip
        except AssertionError as error:  # a codec that is not installed
            raise StreamUnavailable(f"stream.kafka.compression {self._compression}: {error}") from error
        except KafkaTimeoutError as error:
            raise StreamUnavailable(f"{self._brokers} cannot be reached") from error

    def _abandon(self, producer: Any) -> None:
        with self._lock:
            if self._current is producer:
                self._current = None
        _close(producer, 0.0)


def _close(producer: Any, timeout_s: float) -> None:
    """Without waiting longer than that: what is in its buffers then is dropped, and not sent late."""
    from kafka.errors import KafkaError

    try:
        producer.close(timeout=timeout_s)
    except KafkaError:  # it cannot flush, and would go on trying
        producer._sender.force_close()


@contextmanager
def _closing_on_failure(clients: "NetworkClients") -> Iterator[None]:
    try:
        yield
    except BaseException:
        clients.close()
        raise
