"""What is sent again and again while it holds: open alerts to an Alertmanager, and the signal that we are alive."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.ledger import AlertRecord

from .alert import Alert, sent_alert_of
from .receiver import Endpoint
from .templates import template_of

SOON_S = 5.0
"""After a failure it is tried again this soon, or at the usual time if that is sooner."""


class OpenAlerts(Protocol):
    """The ledger's part that is needed here."""

    def alerts(self) -> tuple[AlertRecord, ...]: ...


class RepeatedNotifications:
    """`well`: whether a leader leads and its runners tick."""

    def __init__(self, *, open_alerts: OpenAlerts, endpoint: Endpoint, clock: Clock, well: Callable[[], bool]) -> None:
        self._open_alerts = open_alerts
        self._endpoint = endpoint
        self._clock = clock
        self._well = well
        self._say = template_of(endpoint.receiver.kind).repeated
        self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether the time has come."""
        return self._say is not None and self._clock.monotonic() >= self._next

    def body(self) -> object | None:
        """What has to be said, None: nothing. Raises LedgerError."""
        self._next = self._clock.monotonic() + self._endpoint.receiver.every_s
        assert self._say is not None
        return self._say(self._alerts(), self._endpoint, self._clock.now(), self._well())

    def failed(self) -> None:
        """It did not arrive."""
        self._next = self._clock.monotonic() + min(SOON_S, self._endpoint.receiver.every_s)

    def _alerts(self) -> list[Alert]:
        """Those that this receiver has heard of."""
        if not self._endpoint.receiver.hears:
            return []
        found = []
        for record in self._open_alerts.alerts():
            try:
                told = sent_alert_of(record.body)
            except msgspec.MsgspecError:
                continue  # of a newer version: its own leader repeats it
            if self._endpoint.name in told.receivers:
                found.append(told.alert)
        return found
