"""Caches of query results: one that expires by time, and one for each file of the history, which never changes."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eagle_eye.clock import Clock
from eagle_eye.errors import HistoryError
from eagle_eye.history.file_names import HistoryFile
from eagle_eye.history.queries import History

ENTRIES_MAX = 64
"""Results at most; the least recently used is dropped first."""
ROWS_MAX = 500_000
"""Rows of the results of files, about 100 bytes each; the least recently used are dropped first."""
TRIES = 3
Result = TypeVar("Result")


@dataclass(slots=True)
class _Slot:
    """One cached result. The first caller computes it while the lock is held; the others wait for the lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    computed: float | None = None
    until: float = math.inf
    result: Any = None


class ResultCache:
    """Thread-safe. An error is raised to the caller and not cached."""

    def __init__(self, clock: Clock, *, entries_max: int = ENTRIES_MAX) -> None:
        self._clock = clock
        self._entries_max = entries_max
        self._lock = threading.Lock()
        self._slots: OrderedDict[Hashable, _Slot] = OrderedDict()

    def get(self, key: Hashable, compute: Callable[[], Result], seconds: float) -> Result:
        """The result of that key if it is at most `seconds` old, else computed now. Raises what `compute` raises."""
        slot = self._slot(key)
        with slot.lock:
            now = self._clock.monotonic()
            if slot.computed is None or now - slot.computed > seconds:
                slot.result = compute()
                slot.computed = self._clock.monotonic()
                slot.until = slot.computed + seconds
            result: Result = slot.result
            return result

    def _slot(self, key: Hashable) -> _Slot:
        now = self._clock.monotonic()
        with self._lock:
            for old in [name for name, slot in self._slots.items() if slot.until < now and name != key]:
                del self._slots[old]
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            while len(self._slots) > self._entries_max:
                self._slots.popitem(last=False)
            return slot


class FileResultCache:
    """Results of queries over single files: a longer time, or a later one, reads only the new files. Thread-safe: one query at a time."""

    def __init__(self, history: History, *, rows_max: int = ROWS_MAX) -> None:
        self._history = history
        self._rows_max = rows_max
        self._lock = threading.Lock()
        self._results: OrderedDict[tuple[str, HistoryFile], Any] = OrderedDict()

    def of(self, table: str, question: str, *, since: float, until: float) -> Any | None:
        """An Arrow table: the result rows of each file of that time, one below the other; of the whole time of each file. None: there is no file.

        question: SQL over {rows}, as of History.ask. Raises HistoryError.
        """
        import pyarrow as pa

        with self._lock:
            for _ in range(TRIES):
                files = self._history.files(table, since=since, until=until)
                results = [self._result(file, question) for file in files]
                if all(result is not None for result in results):
                    self._drop_oldest(len(files))
                    return pa.concat_tables(results, promote_options="permissive") if results else None
            raise HistoryError(f"the files of {table!r} change faster than they can be read: is the disk or the network of the history slow?")

    def _result(self, file: HistoryFile, question: str) -> Any | None:
        """None: the file was deleted after it was listed."""
        key = (question, file)
        if key not in self._results:
            result = self._history.ask_file(file, question)
            if result is None:
                return None
            self._results[key] = result
        self._results.move_to_end(key)
        return self._results[key]

    def _drop_oldest(self, needed: int) -> None:
        rows = sum(result.num_rows for result in self._results.values())
        while rows > self._rows_max and len(self._results) > needed:
            _, oldest = self._results.popitem(last=False)
            rows -= oldest.num_rows
