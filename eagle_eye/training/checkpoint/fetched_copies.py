"""What another node has kept for this worker: its launcher fetches it into a segment here, once, when nothing in the own memory can be used."""

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from eagle_eye.errors import WireError
from eagle_eye.training import messages

from .memory_layout import Shard
from .memory_segment import MemorySegment

ASK_S = 0.05
"""How often the launcher is asked whether it is done."""
ANSWER_S = 30.0
"""A launcher that does not answer for so long is not asked again: its machine may be busy, since all workers have just begun."""
_log = logging.getLogger("eagle_eye.checkpoint")


class FetchedCopies:
    """Of one load. Without a launcher there are none."""

    def __init__(self, path: Path | None, shard: Shard, at_most: int, *, replicated: bool) -> None:
        self._path, self._shard, self._at_most, self._replicated = path, shard, at_most, replicated
        self._segment: MemorySegment | None = None
        self.was_asked = False
        self.source = ""
        """Node that had them."""
        self.passed_over: list[str] = []
        """Copies in memory, here and on other nodes, that cannot be used, and why."""

    def fetch(self, newer_from: int = 0) -> MemorySegment | None:
        """Wait until they are here. None if there is nothing, or this was called before. Does not raise.

        `newer_from`: above 0 the newest that any node has is wanted, if it is of this step or a newer one; else what the likeliest node has.
        """
        launcher = os.environ.get("EAGLE_EYE_SOCKET", "")
        if self.was_asked or self._path is None or not launcher:
            self.was_asked = True
            return None
        self.was_asked = True
        asked = messages.encode(
            "fetch_memory_checkpoint", worker=os.environ.get("EAGLE_EYE_WORKER", ""), pid=os.getpid(), epoch=int(os.environ.get("EAGLE_EYE_EPOCH") or 0),
            rank=self._shard.rank, world=self._shard.world, at_most=self._at_most, replicated=self._replicated, newer_from=newer_from,
        )  # fmt: skip
        try:
            while (answer := messages.answer_of(messages.ask(launcher, asked, ANSWER_S)))["state"] == "busy":
                threading.Event().wait(ASK_S)
            self.source, why = str(answer["source"]), str(answer["why"])
            self.passed_over += [why] if why not in ("", messages.NO_COPY) else []
            if answer["state"] == "done":
                self._segment = MemorySegment.open(Path(str(answer["path"])), shared=True)
        except (OSError, WireError, KeyError, ValueError) as error:
            _log.warning("the launcher could not be asked for copies on other nodes: %s", error)
        return self._segment

    def tell(self, step: int, tier: str, further: Sequence[str] = ()) -> None:
        """The launcher, for the job's events. `step` -1: none could be used, which is no news where there was none. `further`: what else was passed over."""
        if step >= 0 or self.passed_over:
            why = "; ".join((*self.passed_over, *further))
            messages.tell_launcher("memory_checkpoint_loaded", pid=os.getpid(), step=step, tier=tier, source=self.source if tier == "neighbour" else "", why=why)

    def close(self) -> None:
        """Give the memory back."""
        if self._segment is not None:
            self._segment.path.unlink(missing_ok=True)
            self._segment.close()
            self._segment = None
