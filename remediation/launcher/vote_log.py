"""What a launcher of a node remembers of its run, so that a restarted one joins again and does not begin anew."""

import threading
from pathlib import Path

import msgspec

from eagle_eye.rpc.command_fence import write_whole
from eagle_eye.types import Layout


class VoteRecord(msgspec.Struct, kw_only=True):
    """The votes that were given. On disk before they are sent."""

    promised: int = 0
    """The highest epoch that this launcher has voted for."""
    last: Layout | None = None
    """The last valid layout that it knows."""
    over: bool = False
    """The run ended properly; a new start of the same name begins anew, above the old epochs."""


class VoteLog:
    """One file per run and node. Thread-safe: what is on disk is never older than what was sent."""

    def __init__(self, state_dir: Path, run: str, node: str) -> None:
        self._lock = threading.Lock()
        self._path = state_dir / "votes" / f"{run}-{node}.json"
        self.record = self._read()

    def promise(self, epoch: int) -> bool:
        """Vote for an epoch; False if an equal or higher one has our vote."""
        with self._lock:
            if epoch <= self.record.promised:
                return False
            self.record.promised = epoch
            self._write()
            return True

    def valid(self, layout: Layout) -> None:
        """An epoch became valid."""
        with self._lock:
            if self.record.last is not None and layout.epoch < self.record.last.epoch and not self.record.over:
                return  # a newer one was written meanwhile
            self.record.last = layout
            self.record.promised = max(self.record.promised, layout.epoch)
            self.record.over = False
            self._write()

    def end(self) -> None:
        """The run is over."""
        with self._lock:
            self.record.over = True
            self._write()

    def _write(self) -> None:
        write_whole(self._path, msgspec.json.encode(self.record))

    def _read(self) -> VoteRecord:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=VoteRecord)
        except (FileNotFoundError, msgspec.MsgspecError):
            return VoteRecord()
