"""How a new owner takes up a partition: what it warms up on.

Where ten minutes are more than can be seen again at once, judging begins with the newest part of them; a second watch
sees all of it meanwhile, and takes the first one's place when it has caught up.
"""

import threading
from collections.abc import Callable, Collection

import msgspec

from eagle_eye import wire
from eagle_eye.errors import StreamUnavailable, WireError
from eagle_eye.stream import OBSERVATIONS, Stream
from eagle_eye.stream.start_offset import offset_before
from eagle_eye.types import Baseline, ConfigChange, Layout, SchemaRecord

from .evaluator import Evaluator
from .hot_window import KEPT_SECONDS

BOOTSTRAP = "eagle-eye.bootstrap"
"""Group whose commit is the offset of the newest set of bootstrap records."""
AT_ONCE = 8_000
"""Records that are seen again before judging begins: a fraction of a second of work, also for several partitions at once."""
NEAR = 2048
"""So few records behind, the second watch takes over."""
_READ = 2048
_PAUSE_S = 0.001
"""After each read of the second watch: whoever judges comes first."""
_RETRY_S = 0.5
_STANDING: tuple[type[msgspec.Struct], ...] = (SchemaRecord, Layout, Baseline, ConfigChange)


class CatchUp:
    """Lets a watch see the past unheard: what it would say about that was said before."""

    def __init__(self, stream: Stream, partition: int, watch: Evaluator, offset: int) -> None:
        self.watch = watch
        self.reader = wire.Reader()
        self.offset = offset
        """Of the next message to see."""
        self._stream = stream
        self._partition = partition
        watch.muted = True

    def see(self, end: int, *, only: Collection[type[msgspec.Struct]] = ()) -> bool:
        """Some of what lies before `end`; False when there is no more. `only`: records of these kinds. Raises StreamUnavailable."""
        if self.offset >= end:
            return False
        messages = self._stream.read(OBSERVATIONS, self._partition, self.offset, min(_READ, end - self.offset))
        messages = [message for message in messages if message.offset < end]
        for message in messages:
            self.offset = message.offset + 1
            if only and wire.OTHERS.get(message.value[3]) not in only:
                continue
            try:
                self.watch.take(self.reader.read(message.value))
            except WireError:
                continue  # it is in the dead-letter topic already
        return bool(messages)

    def done(self) -> None:
        """From here on it is heard."""
        self.watch.muted = False


def catch_up(stream: Stream, partition: int, watch: Evaluator, end: int, stopped: Callable[[], bool]) -> tuple[wire.Reader, int | None]:
    """Let the watch see what lies before `end`: the last ten minutes, or where they are too many records the newest of them.

    Returns the reader to go on with, and where the ten minutes begin if they were not seen whole.
    """
    begin = offset_before(stream, OBSERVATIONS, partition, end, KEPT_SECONDS)
    bootstrap = stream.committed(BOOTSTRAP, OBSERVATIONS, partition)
    whole = end - begin <= AT_ONCE or bootstrap is None or not begin <= bootstrap <= end
    seen = CatchUp(stream, partition, watch, begin if whole or bootstrap is None else bootstrap)
    newest = seen.offset if whole else max(seen.offset, end - AT_ONCE)
    while not stopped() and seen.see(newest, only=_STANDING):
        pass
    while not stopped() and seen.see(end):
        pass
    seen.done()
    return seen.reader, None if whole else begin


class BackgroundCatchUp:
    """A second watch that sees the whole ten minutes, in a thread of its own, and then stands in for the first."""

    def __init__(self, stream: Stream, partition: int, watch: Evaluator, begin: int, goal: Callable[[], int]) -> None:
        """`watch`: a fresh one. `goal`: offset up to which the first watch has seen everything, now."""
        self._seen = CatchUp(stream, partition, watch, begin)
        self._goal = goal
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"deepening-{partition}", daemon=True)
        self._thread.start()

    @property
    def near(self) -> bool:
        """It is so close that the rest takes a moment."""
        return not self._thread.is_alive() and not self._stop.is_set()

    def take_over(self, first: Evaluator) -> tuple[Evaluator, wire.Reader]:
        """See the rest and stand where the first one stands: the watch and reader to go on with. Raises StreamUnavailable."""
        while self._seen.see(self._goal()):
            pass
        self._seen.watch.reopen(first.open_findings(), tuple(first.incidents.values()))
        self._seen.done()
        return self._seen.watch, self._seen.reader

    def stop(self) -> None:
        """Give it up."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set() and self._goal() - self._seen.offset > NEAR:
            try:
                self._seen.see(self._goal())
                self._stop.wait(_PAUSE_S)
            except StreamUnavailable:
                self._stop.wait(_RETRY_S)
