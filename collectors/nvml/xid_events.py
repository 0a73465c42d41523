"""Xid events of all GPUs, through one event set of NVML."""

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from eagle_eye.gpu_devices import text_of

from .driver import LOST, NvmlDriver

log = logging.getLogger(__name__)

MOST_XIDS = 64
"""Taken in one run: a broken GPU can produce very many."""


class XidEvent(NamedTuple):
    """The driver reported an error of a GPU."""

    uuid: str
    """'' if the GPU no longer says."""
    handle: Any
    code: int


class XidEvents:
    """The event set; made anew with each opening of the driver, and without a GPU that was lost."""

    def __init__(self, driver: NvmlDriver) -> None:
        self._driver = driver
        self._events: Any = None

    def forget(self) -> None:
        """The driver was closed, and the set with it."""
        self._events = None

    def subscribe(self, gpus: Iterable[tuple[str, Any]]) -> None:
        """Register these GPUs (name, handle); one that has no such events is logged."""
        nvml = self._driver.nvml
        try:
            self._events = self._driver.call("nvmlEventSetCreate")
        except nvml.NVMLError as error:
            self._events = None
            log.info("no Xid events: %s", error)
            return
        for whom, handle in gpus:
            self.register(whom, handle)

    def register(self, whom: str, handle: Any) -> None:
        """One GPU more."""
        if self._events is None:
            return
        try:
            self._driver.call("nvmlDeviceGetUUID", whom, handle)  # a lost GPU must not get into the set
            self._driver.call("nvmlDeviceRegisterEvents", whom, handle, self._driver.nvml.nvmlEventTypeXidCriticalError, self._events)
        except self._driver.nvml.NVMLError as error:
            log.info("%s gives no Xid events: %s", whom, error)

    def poll(self, gpus: Iterable[tuple[str, Any]]) -> Iterator[XidEvent]:
        """Those that wait; `gpus`: registered anew if the set broke with a lost one."""
        nvml = self._driver.nvml
        for _ in range(MOST_XIDS if self._events is not None else 0):
            try:
                data = self._driver.call("nvmlEventSetWait_v2", "", self._events, 0)
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_TIMEOUT:
                    self._resubscribe(error, gpus)
                return
            if data.eventType & nvml.nvmlEventTypeXidCriticalError:
                yield XidEvent(self._uuid(data.device), data.device, int(data.eventData))

    def _resubscribe(self, error: Exception, gpus: Iterable[tuple[str, Any]]) -> None:
        """An event set with a lost GPU only returns errors: create one with the remaining GPUs."""
        lost = self._driver.is_one_of(error, LOST)
        log.log(logging.DEBUG if lost else logging.WARNING, "Xid events cannot be read: %s", error)
        with contextlib.suppress(self._driver.nvml.NVMLError):  # nothing to be done about a set that will not go
            self._driver.call("nvmlEventSetFree", "", self._events)
        self._events = None
        if lost:
            self.subscribe(gpus)

    def _uuid(self, handle: Any) -> str:
        try:
            return text_of(self._driver.call("nvmlDeviceGetUUID", "", handle))
        except self._driver.nvml.NVMLError:
            return ""
