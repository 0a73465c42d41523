"""All of it together, as the leader runs it: what the engine shows becomes notifications, and each receiver has its worker."""

import logging
from collections.abc import Callable, Mapping

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Ledger
from eagle_eye.types import Notice, Plan
from remediation.actions.notify import Notify
from remediation.engine.tracked_incident import TrackedIncident

from .alert_lifecycle import AlertLifecycle
from .alert_storm import AlertStorms
from .receiver import endpoints_of

log = logging.getLogger(__name__)

STALLED_S = 10.0
"""An engine that has not shown its cases for so long stands still: no heartbeat."""


class AlertService:
    """For one term of a leader. Raises ConfigError for a receiver that cannot be reached as it is configured, LedgerError."""

    def __init__(
        self,
        notify: Notify,
        ledger: Ledger,
        clock: Clock,
        *,
        page: str,
        leads: Callable[[], bool] = lambda: True,
        ticking: Callable[[], bool] = lambda: True,
        approval_link: Callable[[Plan], str] = lambda _plan: "",
    ) -> None:
        """`page`: address of an incident's page, where the configuration names none. `ticking`: whether all runners tick.
        `approval_link`: where a plan that waits is approved or refused; '' where nowhere."""
        endpoints = endpoints_of(notify.everybody)
        self._ledger = ledger
        self._clock = clock
        self._leads = leads
        self._ticking = ticking
        self._looked = clock.monotonic()
        self._broken = False
        if endpoints:  # httpx takes a tenth of the time in which a server starts, and is needed by none without a receiver
            from .delivery_worker import DeliveryWorker
        self._workers = [DeliveryWorker(endpoint=endpoint, outbox=ledger, clock=clock, leads=leads, well=self.well) for endpoint in endpoints]
        self._lifecycle = AlertLifecycle(
            ledger=ledger,
            receivers=[endpoint.receiver for endpoint in endpoints],
            clock=clock,
            storms=AlertStorms(separate=notify.storm_alerts, within_s=notify.storm_s),
            link=notify.link or page,
            approval_link=approval_link,
            update_s=notify.update_s,
            delay_s=notify.delay_s,
            written=self._wake,
        )
        self._names = {endpoint.name for endpoint in endpoints}

    def update(self, cases: Mapping[str, TrackedIncident]) -> None:
        """The incidents that the engine tracks, at each of its ticks. Raises LedgerError."""
        self._looked = self._clock.monotonic()
        try:
            self._lifecycle.update(cases)
            self._broken = False
        except EagleEyeError:
            raise
        except Exception:  # boundary: a mistake in what is said must not stop the engine from healing
            if not self._broken:
                log.exception("alerts cannot be written; the heartbeat stops until they can")
            self._broken = True

    def well(self) -> bool:
        """A leader leads, its engine goes round and can say what it sees, its runners tick: what the heartbeat says."""
        return self._leads() and not self._broken and self._clock.monotonic() - self._looked < STALLED_S and self._ticking()

    def start(self) -> None:
        """Begin to deliver. Notifications to receivers that are configured no more are given up, and said to be. Raises RuntimeError where the process may have no further thread."""
        self._give_up_strangers()
        try:
            for worker in self._workers:
                worker.start()
        except BaseException:
            self.stop()  # who started us does not know that some have begun
            raise

    def stop(self) -> None:
        """Finish the notifications under way; the others stay in the ledger."""
        for worker in self._workers:
            worker.request_stop()
        for worker in self._workers:
            worker.join()

    def _wake(self) -> None:
        for worker in self._workers:
            worker.wake()

    def _give_up_strangers(self) -> None:
        now = self._clock.now()
        for name, (count, _, _) in self._ledger.undelivered_by_receiver().items():
            if name in self._names:
                continue
            while notifications := self._ledger.undelivered(name):
                for notification in notifications:
                    self._ledger.given_up(notification.id, now, "its receiver is configured no more")
            message = f"{count} notifications to alert receiver {name!r} are given up: the configuration names it no more"
            log.warning("%s", message)
            self._ledger.save_notice(Notice(name="alerts.given_up", time=now, message=message))
