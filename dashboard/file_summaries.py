"""What single files of the history answer: asked once each, as a file never changes. A longer time, or a later one, reads only what is new."""

import threading
from collections import OrderedDict
from typing import Any

from eagle_eye.errors import HistoryError
from eagle_eye.history.file_names import HistoryFile
from eagle_eye.history.queries import History

KEPT_ROWS = 500_000
"""Of answers, about 100 bytes each; those that nobody has asked for longest go first."""
TRIES = 3


class Summaries:
    """Thread-safe: whoever asks while another's answer is made waits for it."""

    def __init__(self, history: History, *, kept_rows: int = KEPT_ROWS) -> None:
        self._history = history
        self._kept_rows = kept_rows
        self._lock = threading.Lock()
        self._answers: OrderedDict[tuple[str, HistoryFile], Any] = OrderedDict()

    def of(self, table: str, question: str, *, since: float, until: float) -> Any | None:
        """An Arrow table: the rows that each file of that time answers, below each other; of the whole time of a file. None: there is no file.

        question: SQL over {rows}, as of History.ask. Raises HistoryError.
        """
        import pyarrow as pa

        with self._lock:
            for _ in range(TRIES):
                files = self._history.files(table, since=since, until=until)
                answers = [self._answer(file, question) for file in files]
                if all(answer is not None for answer in answers):
                    self._forget(len(files))
                    return pa.concat_tables(answers, promote_options="permissive") if answers else None
            raise HistoryError(f"the files of {table!r} change faster than they can be read: is the disk or the network of the history slow?")

    def _answer(self, file: HistoryFile, question: str) -> Any | None:
        """None: the file is gone since it was listed."""
        key = (question, file)
        if key not in self._answers:
            made = self._history.ask_file(file, question)
            if made is None:
                return None
            self._answers[key] = made
        self._answers.move_to_end(key)
        return self._answers[key]

    def _forget(self, needed: int) -> None:
        rows = sum(answer.num_rows for answer in self._answers.values())
        while rows > self._kept_rows and len(self._answers) > needed:
            _, oldest = self._answers.popitem(last=False)
            rows -= oldest.num_rows
