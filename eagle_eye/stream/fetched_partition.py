"""One partition of a stream, read by fetchers where it brings many records: the same messages in the same order as the stream's own.

Whoever reads goes on from the last message that it has, as a `Tailer` does. Where the last answer was full, the spans behind it are asked for
ahead, of each fetcher one, and each begins with the last message of the one before. What nobody answers in time is read here: a fetcher may be
away, or be killed at any moment, and no message is missing or comes twice for it, since the offset that is asked for alone says what is read.
"""

import logging
import socket
from collections.abc import Callable
from functools import partial

from eagle_eye.clock import Clock
from eagle_eye.types import Notice
from eagle_eye.writable_text import words_of

from . import Message, Stream
from .fetcher import NOBODY, ChildProcess, FetcherDied, FetcherProcess
from .fetcher_demand import FetcherDemand
from .record_span import decode_span

FEW = 64
"""A look at so few messages is not worth the way."""
ANSWER_S = 2.0
"""So long an answer is waited for: then the ticks go on without it."""
HUNG_S = 60.0
"""A fetcher that has answered nothing for so long is killed; while brokers are away it may take as long as its stream does ..."""
BEGIN_S = 300.0
"""... and one that begins for so long: on a machine that has no processor for it, another one would not be there sooner."""
FIRST_S, LONGEST_S = 1.0, 60.0
"""Before another fetcher takes the place of one that died: doubled each time, until one answers."""
log = logging.getLogger(__name__)


class FetchedPartition:
    """Reads one partition. Used by one thread; `close` may be called by any."""

    def __init__(
        self, stream: Stream, topic: str, partition: int, start_child: Callable[[socket.socket], ChildProcess], demand: FetcherDemand, *,
        clock: Clock, on_notice: Callable[[Notice], None], answer_s: float = ANSWER_S,
    ) -> None:  # fmt: skip
        """Nothing is started before there is a demand. `start_child`: with the child's end of a socket; raises OSError. `answer_s`: how long an answer is waited for."""
        self.fetchers: tuple[FetcherProcess, ...] = ()
        """Those that run, or begin to."""
        self.fetched = 0
        """Messages that fetchers have read."""
        self._stream, self._topic, self._partition = stream, topic, partition
        self._start_child = start_child
        self._demand = demand
        self._clock = clock
        self._on_notice = on_notice
        self._answer_s = answer_s
        self._offset = 0
        """Of the last read."""
        self._more = False
        """The last answer was full."""
        self._start_at = clock.monotonic()
        self._pause_s = FIRST_S
        self._failing = self._closed = False

    def read(self, topic: str, partition: int, offset: int, limit: int = 1024) -> list[Message]:
        """As the stream's own. Raises StreamUnavailable."""
        self._keep()
        messages = self._fetch(offset, limit) if limit > FEW else None
        if messages is None:
            self._more = False
            messages = self._stream.read(topic, partition, offset, limit)
        self._demand.count(len(messages))
        return messages

    def begin(self, topic: str, partition: int) -> int:
        return self._stream.begin(topic, partition)

    def end(self, topic: str, partition: int) -> int:
        return self._stream.end(topic, partition)

    def wait(self, topic: str, partition: int, offset: int, timeout: float) -> bool:
        return self._stream.wait(topic, partition, offset, timeout)

    def close(self) -> None:
        """End the fetchers; what is read from now on is read here."""
        self._closed = True
        self._end_all()

    # --- what is asked for -------------------------------------------------------------------------------------------

    def _fetch(self, offset: int, limit: int) -> list[Message] | None:
        """None where no fetcher has read it."""
        if offset < self._offset - 1:  # the stream may have begun anew, and fetchers may have read ahead before it did
            self._end_all()
        self._offset = offset
        for fetcher in self.fetchers:
            self._guarded(fetcher, self._put_in_order)
        self._ask_ahead(offset, limit, len(self.fetchers) if self._more else 1)
        asked = self._asked_for(offset, limit)
        return self._guarded(asked, self._receive) if asked is not None else None

    def _asked_for(self, offset: int, limit: int) -> FetcherProcess | None:
        return next((each for each in self.fetchers if each.asked is not None and each.asked[0] == offset and each.asked[1] <= limit), None)

    def _ask_ahead(self, offset: int, limit: int, count: int) -> None:
        """The span at an offset and those behind it, as far as nobody was asked for them and somebody has nothing to do."""
        for place in range(count):
            at = offset + place * (limit - 1)
            if self._asked_for(at, limit) is not None:
                continue
            idle = next((each for each in self.fetchers if each.asked is None), None)
            if idle is None:
                return
            self._guarded(idle, partial(_ask, (at, limit)))

    def _receive(self, fetcher: FetcherProcess) -> list[Message] | None:
        asked = fetcher.asked
        answer = fetcher.receive(self._answer_s)
        if answer is None or asked is None:
            fetcher.asked = NOBODY
            return None
        if not answer.read:
            log.info("a fetcher of partition %d has read nothing: %s", self._partition, bytes(answer.data).decode(errors="replace"))
            return None
        try:
            span = decode_span(self._topic, self._partition, answer.data)
        except ValueError as error:
            raise FetcherDied(f"it answers what cannot be read: {words_of(error)}") from error
        self._well()
        self.fetched += len(span.messages)
        offset, limit = asked
        self._more = span.more and len(span.messages) == limit
        if self._more:
            self._ask_ahead(offset + limit - 1, limit, len(self.fetchers))
        return span.messages

    def _put_in_order(self, fetcher: FetcherProcess) -> None:
        """Take what nobody will ask for any more. Raises FetcherDied for one that does not answer."""
        if fetcher.asked is None or fetcher.asked[0] >= self._offset:
            return
        longest = BEGIN_S if fetcher.begins else HUNG_S
        if fetcher.receive(0.0) is None and self._clock.monotonic() - fetcher.asked_at > longest:
            raise FetcherDied(f"it has answered nothing for {longest:g} s")

    # --- who is there ------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """As many as there is a demand for."""
        wanted = 0 if self._closed else self._demand.fetchers
        for fetcher in self.fetchers[wanted:]:
            fetcher.end()
        self.fetchers = self.fetchers[:wanted]
        if len(self.fetchers) == wanted or self._clock.monotonic() < self._start_at:
            return
        try:
            self.fetchers += (FetcherProcess(self._start_child, self._clock),)
        except OSError as error:  # no process or descriptor is left
            self._failed(words_of(error))

    def _guarded(self, fetcher: FetcherProcess, act: Callable[[FetcherProcess], list[Message] | None]) -> list[Message] | None:
        """One that has died is left out."""
        try:
            return act(fetcher)
        except FetcherDied as error:
            fetcher.end()
            self.fetchers = tuple(each for each in self.fetchers if each is not fetcher)
            if not self._closed:
                self._failed(str(error))
            return None

    def _failed(self, why: str) -> None:
        self._start_at = self._clock.monotonic() + self._pause_s
        self._pause_s = min(2.0 * self._pause_s, LONGEST_S)
        if not self._failing:
            self._failing = True
            self._tell("fetcher.failing", f"a process that reads records of partition {self._partition} has ended ({why}): they are read here until another one does")

    def _well(self) -> None:
        self._pause_s = FIRST_S
        if self._failing:
            self._failing = False
            self._tell("fetcher.recovered", f"a process reads records of partition {self._partition} again")

    def _tell(self, name: str, message: str) -> None:
        log.warning("%s: %s", name, message)
        self._on_notice(Notice(name=name, time=self._clock.now(), message=message))

    def _end_all(self) -> None:
        for fetcher in self.fetchers:
            fetcher.end()
        self.fetchers = ()


def _ask(asked: tuple[int, int], fetcher: FetcherProcess) -> None:
    fetcher.ask(*asked)
