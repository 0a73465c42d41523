"""The delivery worker: sends notifications to one receiver, in a thread of its own, so that a dead receiver delays no other one.

Notifications about one incident never overtake each other; of several incidents the gravest comes first. A receiver that is away gets
nothing until its first notification was accepted; where it fails over one notification (status 500), the others go past it after a few attempts.
Some receivers get open alerts (Alertmanager) or a heartbeat again and again: RepeatedNotifications.
"""

import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import httpx
import msgspec

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import AlertRecord, Notification
from eagle_eye.types import Notice

from .alert import Alert, sent_alert_of
from .http_post import DeliveryResult, client_for, post
from .notification_merge import PendingNotification, merge
from .receiver import Endpoint
from .templates import template_of

SOON_S = 5.0
"""After a failure it is tried again this soon, or at the usual time if that is sooner."""
log = logging.getLogger(__name__)
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
LONGEST_ASKED_S = 3600.0
"""Of what a receiver may ask for with Retry-After."""
KEPT_S = 86_400.0
"""A notification that could not be delivered for a day, and in TRIES_LEAST tries, is given up: no day has passed that a clock has jumped over."""
TRIES_LEAST = 20
PATIENCE = 5
"""After so many tries a notification no longer keeps those about other incidents waiting, and the operator is notified."""
POLL_S = 1.0
STOP_S = 2.0


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
        self._repeated = template_of(endpoint.receiver.kind).repeated
        self._next = 0.0

    @property
    def due(self) -> bool:
        """Whether the time has come."""
        return self._repeated is not None and self._clock.monotonic() >= self._next

    def body(self) -> object | None:
        """The body to send now; None: nothing. Raises LedgerError."""
        self._next = self._clock.monotonic() + self._endpoint.receiver.every_s
        assert self._repeated is not None
        return self._repeated(self._alerts(), self._endpoint, self._clock.now(), self._well())

    def failed(self) -> None:
        """It did not arrive."""
        self._next = self._clock.monotonic() + min(SOON_S, self._endpoint.receiver.every_s)

    def _alerts(self) -> list[Alert]:
        """Those of which this receiver was notified."""
        if not self._endpoint.receiver.hears:
            return []
        found = []
        for record in self._open_alerts.alerts():
            try:
                sent = sent_alert_of(record.body)
            except msgspec.MsgspecError:
                continue  # of a newer version: its own leader repeats it
            if self._endpoint.name in sent.receivers:
                found.append(sent.alert)
        return found


class NotificationOutbox(Protocol):
    """The ledger's part that notifications need."""

    def undelivered(self, name: str) -> tuple[Notification, ...]: ...
    def delivered(self, notification: int, now: float, *, merged: Iterable[int] = ()) -> None: ...
    def failed(self, notification: int, next_try: float, error: str) -> None: ...
    def given_up(self, notification: int, now: float, error: str) -> None: ...
    def alerts(self) -> tuple[AlertRecord, ...]: ...
    def save_notice(self, notice: Notice) -> None: ...


def wait_before(attempt: int, chance: float) -> float:
    """Seconds before the next try, after so many: 1, 2, 4, ... up to 5 minutes, less up to a half; chance: 0 to 1."""
    return float(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(attempt - 1, 30))) * (1.0 - chance / 2.0)


class RateLimit:
    """At most so many messages a minute, however they are spread. 0: no bound."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._clock = clock
        self._sent: deque[float] = deque(maxlen=per_minute or None)
        self._bounded = per_minute > 0

    @property
    def free(self) -> bool:
        full = self._bounded and len(self._sent) == self._sent.maxlen
        return not full or self._clock.monotonic() - self._sent[0] >= 60.0

    @property
    def last(self) -> bool:
        """Only one more for now."""
        return self._bounded and len(self._sent) >= (self._sent.maxlen or 0) - 1

    def take(self) -> None:
        if self._bounded:
            self._sent.append(self._clock.monotonic())


class DeliveryWorker:
    """`leads`: False as soon as this leader's lease is over; then nothing is sent. `chance`: for the jitter."""

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        outbox: NotificationOutbox,
        clock: Clock,
        leads: Callable[[], bool] = lambda: True,
        well: Callable[[], bool] = lambda: True,
        chance: Callable[[], float] = random.random,
        client: Callable[[Endpoint], httpx.Client] = client_for,
    ) -> None:
        self._endpoint = endpoint
        self._outbox = outbox
        self._clock = clock
        self._leads = leads
        self._chance = chance
        self._client = client
        self._template = template_of(endpoint.receiver.kind)
        self._repeated = RepeatedNotifications(open_alerts=outbox, endpoint=endpoint, clock=clock, well=well)
        self._rate_limit = RateLimit(endpoint.receiver.per_minute, clock)
        self._away = False
        self._due: dict[str, float] = {}
        """Alert → monotonic time of the next try of what this worker could not deliver: a clock that is set back delays none."""
        self._wake = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"alerts to {endpoint.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """There may be a new notification."""
        self._wake.set()

    def request_stop(self) -> None:
        """Finish the notification under way; the others stay in the outbox."""
        self._over.set()
        self._wake.set()

    def join(self) -> None:
        """Wait a moment until it has ended; a receiver that hangs does not hold us: its notification is sent again later."""
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def _run(self) -> None:
        with self._client(self._endpoint) as client:
            while not self._over.is_set():
                self._wake.clear()
                try:
                    self.round(client)
                except EagleEyeError as error:
                    log.warning("alerts to %s: %s", self._endpoint.name, error)
                except Exception:  # boundary: whatever is wrong with one notification, the thread must live for the next
                    log.exception("alerts to %s", self._endpoint.name)
                self._wake.wait(POLL_S)

    # --- one round -----------------------------------------------------------------------------------------------

    def round(self, client: httpx.Client) -> int:
        """Send what is due; returns how many notifications were taken. Raises LedgerError."""
        taken = 0
        if self._leads() and self._repeated.due:
            self._repeat(client)
        while self._leads() and not self._over.is_set():
            ready, waiting = self._ready()
            if not ready:
                break
            sent = self._send(client, ready, waiting - len(ready))
            taken += sent
            if not sent and self._away:
                break
        return taken

    def _repeat(self, client: httpx.Client) -> None:
        body = self._repeated.body()
        if body is None:
            return
        answer = post(client, self._endpoint, body, self._clock)
        if not answer.taken:
            self._repeated.failed()
            log.info("%s did not take what is repeated: %s", self._endpoint.name, answer)

    def _ready(self) -> tuple[list[PendingNotification], int]:
        """(what may be sent now: one, or all of it to a receiver that takes several; how many incidents have notifications)."""
        now = self._clock.now()
        found, unreadable = merge(self._outbox.undelivered(self._endpoint.name))
        for notification in unreadable:
            self._give_up(notification.id, "it was written by another version of Eagle Eye, and cannot be read", notification.name)
        ready: list[PendingNotification] = []
        for head in found:
            if self._is_due(head, now):
                ready.append(head)
                if not self._template.batch:
                    break
            elif self._away or head.attempts < PATIENCE:
                break
        return (ready if self._rate_limit.free else []), len(found)

    def _is_due(self, head: PendingNotification, now: float) -> bool:
        """By the time that has passed since it failed; where a leader before us has tried it, by that one's clock as far as it can be right."""
        if head.alert.id in self._due:
            return self._clock.monotonic() >= self._due[head.alert.id]
        return not head.attempts or not 0.0 < head.next_try - now <= LONGEST_ASKED_S

    def _send(self, client: httpx.Client, ready: Sequence[PendingNotification], others: int) -> int:
        """One message. Returns how many notifications it took to the receiver."""
        more = others if self._rate_limit.last else 0
        alerts = [msgspec.structs.replace(head.alert, more_pending=more) for head in ready]
        self._rate_limit.take()
        notification = alerts[0].notification if len(alerts) == 1 else ""
        answer = post(client, self._endpoint, self._template.body(alerts, self._endpoint, self._clock.now()), self._clock, notification=notification)
        if answer.refused and len(ready) > 1:  # one of them spoils it: find out which
            return sum(self._send(client, [head], others) for head in ready)
        self._away = not (answer.taken or answer.refused or answer.about_the_notification)
        for head in ready:
            self._write(head, answer)
        return len(ready) if answer.taken else 0

    # --- what became of it ---------------------------------------------------------------------------------------

    def _write(self, head: PendingNotification, answer: DeliveryResult) -> None:
        now = self._clock.now()
        self._due.pop(head.alert.id, None)
        if answer.taken:
            self._outbox.delivered(head.id, now, merged=head.merged)
        elif answer.refused:
            self._give_up(head.id, str(answer), head.alert.id, head.merged)
        elif now - head.made >= KEPT_S and head.attempts >= TRIES_LEAST:
            self._give_up(head.id, f"{answer}, for a day", head.alert.id, head.merged)
        else:
            attempts = head.attempts + 1
            wait_s = max(min(answer.retry_after_s, LONGEST_ASKED_S), wait_before(attempts, self._chance()))
            self._due[head.alert.id] = self._clock.monotonic() + wait_s
            self._outbox.failed(head.id, now + wait_s, str(answer))
            if attempts == PATIENCE:
                self._notice("alerts.away", f"alert receiver {self._endpoint.name} ({self._endpoint.shown}) does not take notifications: {answer}")

    def _give_up(self, notification: int, why: str, subject: str, merged: Iterable[int] = ()) -> None:
        now = self._clock.now()
        for each in (*merged, notification):
            self._outbox.given_up(each, now, why)
        self._notice("alerts.given_up", f"notification {notification} about {subject} never reached alert receiver {self._endpoint.name}: {why}")

    def _notice(self, name: str, message: str) -> None:
        log.warning("%s", message)
        self._outbox.save_notice(Notice(name=name, time=self._clock.now(), message=message))
