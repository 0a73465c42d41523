"""Notifications that are still to be sent, as few as possible: what was superseded on the way is not said any more.

An update takes the place of the ones before it, also of a trigger that nobody has read (it is sent as the trigger); a
resolve takes the place of updates. A trigger is never swallowed by its resolve: they arrive as a pair, in order.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from eagle_eye.ledger import Notification

from .alert import Alert, alert_of
from .receiver import BY_SEVERITY


class DecodedNotification(NamedTuple):
    """A notification of the outbox, opened."""

    notification: Notification
    alert: Alert


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingNotification:
    """What is to be sent next about one incident."""

    alert: Alert
    notifications: tuple[int, ...]
    """Of the outbox, oldest first: the last one is sent, the others went into it."""
    made: float
    """When the oldest was written."""
    attempts: int
    next_try: float

    @property
    def id(self) -> int:
        return self.notifications[-1]

    @property
    def merged(self) -> tuple[int, ...]:
        return self.notifications[:-1]


def merge(notifications: Iterable[Notification]) -> tuple[list[PendingNotification], list[Notification]]:
    """(what is next of each incident, the gravest first and then in the order of their oldest notifications; notifications that cannot be read)."""
    by_incident: dict[str, list[DecodedNotification]] = {}
    unreadable = []
    for notification in notifications:
        try:
            alert = alert_of(notification.body)
        except msgspec.MsgspecError:
            unreadable.append(notification)
        else:
            by_incident.setdefault(alert.id, []).append(DecodedNotification(notification, alert))
    heads = [_head(run) for run in by_incident.values()]
    return sorted(heads, key=lambda head: -BY_SEVERITY.index(head.alert.severity)), unreadable


def _head(run: Sequence[DecodedNotification]) -> PendingNotification:
    taken = _together(run)
    first, last = taken[0], taken[-1]
    event_action = first.alert.event_action if last.alert.event_action == "update" else last.alert.event_action
    return PendingNotification(
        alert=msgspec.structs.replace(last.alert, event_action=event_action),
        notifications=tuple(each.notification.id for each in taken),
        made=first.notification.made,
        attempts=max(each.notification.attempts for each in taken),
        next_try=max(each.notification.next_try for each in taken),
    )


def _together(run: Sequence[DecodedNotification]) -> Sequence[DecodedNotification]:
    """The longest beginning of an incident's notifications that one notification can say."""
    first = run[0].alert.event_action
    if first not in ("trigger", "update"):
        return run[:1]
    end = next((index for index, each in enumerate(run) if index and each.alert.event_action != "update"), len(run))
    if first == "update" and end < len(run) and run[end].alert.event_action == "resolve":
        return run[: end + 1]
    return run[:end]
