"""Where a collector stopped in its logs, kept in a file of the agent's state directory over its restart."""

import logging
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from eagle_eye.errors import UNREADABLE
from eagle_eye.training import atomic_file

log = logging.getLogger(__name__)

Position = TypeVar("Position")
VERSION = 1


class PositionFile(Generic[Position]):
    """Name of a log → position. A position is saved by the call after the one that handed out its lines: a crash between repeats lines and loses none."""

    def __init__(self, state_dir: Path | None, collector: str, node: str, position: type[Position]) -> None:
        """`state_dir`: of the agent; None: nothing is kept. The file is that of one collector of one node."""
        self._path = state_dir / "agent" / f"{collector}-{node.replace('/', '_')}.json" if state_dir else None
        self._type = dict[str, position]  # type: ignore[valid-type]  # msgspec takes the type as a value
        self._positions: dict[str, Position] = self._load()
        self._saved = dict(self._positions)

    def get(self, name: str) -> Position | None:
        """Where the last agent stopped in this log; None: it is new."""
        return self._positions.get(name)

    def put(self, name: str, position: Position) -> None:
        self._positions[name] = position

    def drop(self, name: str) -> None:
        self._positions.pop(name, None)

    def save(self) -> None:
        """Write what has changed. A full disk is logged: an agent that is restarted then reads some lines again."""
        if self._path is None or self._positions == self._saved:
            return
        data = msgspec.json.encode({"version": VERSION, "positions": self._positions})
        self._saved = dict(self._positions)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(self._path, data, durable=False)
        except OSError as error:
            log.warning("where logs were read to cannot be saved in %s: %s", self._path, error)

    def _load(self) -> dict[str, Position]:
        if self._path is None:
            return {}
        try:
            saved = msgspec.json.decode(self._path.read_bytes(), type=dict[str, msgspec.Raw])
            if bytes(saved.get("version", b"")) != str(VERSION).encode():
                return {}
            return msgspec.json.decode(saved["positions"], type=self._type)
        except FileNotFoundError:
            return {}
        except (OSError, KeyError, *UNREADABLE) as error:
            log.warning("%s is ignored, so logs are read from now on: %s", self._path, error)
            return {}
