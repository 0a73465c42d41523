"""A test alert to each receiver, at once and beside the ledger: is the address right, the key, the way there?"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import httpx

from eagle_eye.clock import Clock
from eagle_eye.types import Severity, digest_of

from .alert import Alert, EventAction
from .http_post import DeliveryResult, client_for, post
from .receiver import Endpoint
from .templates import template_of

STEPS: dict[str, tuple[EventAction, ...]] = {"pagerduty": ("test", "resolve")}
"""Kind → what is sent; PagerDuty keeps an alert until it is resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverTestResult:
    """What one receiver answered."""

    receiver: str
    kind: str
    where: str
    """Scheme and host."""
    sent: str
    answer: DeliveryResult
    seconds: float


def send_test_alerts(
    endpoints: Iterable[Endpoint], clock: Clock, host: str, client: Callable[[Endpoint], httpx.Client] = client_for
) -> Iterator[ReceiverTestResult]:
    """One line per message, as the answers come."""
    for endpoint in endpoints:
        with client(endpoint) as connection:
            for event_action in STEPS.get(endpoint.receiver.kind, ("test",)):
                began = clock.monotonic()
                alert = test_alert(event_action, clock.now(), host)
                body = template_of(endpoint.receiver.kind).body([alert], endpoint, clock.now())
                answer = post(connection, endpoint, body, clock, notification=alert.notification)
                yield ReceiverTestResult(
                    receiver=endpoint.name, kind=endpoint.receiver.kind, where=endpoint.shown, sent=event_action, answer=answer,
                    seconds=clock.monotonic() - began,
                )  # fmt: skip
                if not answer.taken:
                    break


def test_alert(event_action: EventAction, now: float, host: str) -> Alert:
    """Says that it is only a test. Known by its minute, so that what resolves it finds it."""
    name = f"test-{digest_of(host, int(now // 60))}"
    return Alert(
        id=name, notification=f"{name}/{now:.3f}", event_action=event_action, job="test/eagle-eye/test", cause="test", severity=Severity.SEV3, state="open",
        summary=f"Test alert of Eagle Eye on {host}: nothing is wrong", opened=now, time=now,
    )  # fmt: skip
