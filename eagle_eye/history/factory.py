"""The history that a deployment's configuration names."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from eagle_eye.clock import Clock
from eagle_eye.config import Config
from eagle_eye.stream import Stream
from eagle_eye.types import Notice

from .history_service import HistoryService

if TYPE_CHECKING:
    from .object_store import ObjectStore
    from .queries import History


def object_store_of(config: Config) -> "ObjectStore":
    """The place where its files are. Raises ConfigError for a place that cannot be used."""
    from .object_store import ObjectStore

    return ObjectStore.of(config.history.location or config.state / "history")


def open_history(config: Config) -> "History":
    """To ask. Raises ConfigError."""
    from .queries import History

    return History(object_store_of(config))


def history_service(config: Config, stream: Stream, partition: int, clock: Clock, on_notice: Callable[[Notice], None]) -> HistoryService:
    """To write one partition; a place that cannot be used is reported as a notice."""
    return HistoryService(stream, partition, partial(object_store_of, config), config.history, clock=clock, on_notice=on_notice)
