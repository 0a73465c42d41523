"""Notifications that wait are merged to the newest, but a trigger and its resolve arrive as a pair."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle_eye.ledger import Notification
from eagle_eye.types import Severity
from remediation.alerts.alert import Alert, encode
from remediation.alerts.notification_merge import merge

WORDS = {"t": "trigger", "u": "update", "r": "resolve", "x": "test"}


def outbox(*names):
    """Notifications "i1t": the trigger of incident i1."""
    notifications = []
    for number, name in enumerate(names, 1):
        alert = Alert(
            id=name[:-1], event_action=WORDS[name[-1]], job="j", cause="c", severity=Severity.SEV1, state="open", summary="s", opened=0.0, time=float(number)
        )
        notifications.append(Notification(id=number, name="pager", body=encode(alert), made=float(number), attempts=0, next_try=0.0))
    return notifications


def sent(notifications):
    """What is sent, notification by notification, when every one is taken: (what, incident, the time it was written)."""
    order = []
    while notifications:
        found, _ = merge(notifications)
        head = found[0]
        order.append((head.alert.event_action, head.alert.id, head.alert.time))
        notifications = [notification for notification in notifications if notification.id not in head.notifications]
    return order


@pytest.mark.parametrize(
    ("waiting", "order"),
    [
        (["at"], [("trigger", "a", 1)]),
        (["at", "au", "au"], [("trigger", "a", 3)]),
        (["au", "au"], [("update", "a", 2)]),
        (["at", "au", "ar"], [("trigger", "a", 2), ("resolve", "a", 3)]),
        (["au", "au", "ar"], [("resolve", "a", 3)]),
        (["ar", "at"], [("resolve", "a", 1), ("trigger", "a", 2)]),
        (["au", "ar", "at", "au", "ar"], [("resolve", "a", 2), ("trigger", "a", 4), ("resolve", "a", 5)]),
        (["at", "bt", "au", "ar"], [("trigger", "a", 3), ("trigger", "b", 2), ("resolve", "a", 4)]),
        (["ax", "at"], [("test", "a", 1), ("trigger", "a", 2)]),
    ],
)
def test_the_newest_is_said_and_pairs_stay_in_order(waiting, order):
    assert sent(outbox(*waiting)) == order


@given(st.lists(st.sampled_from(["a", "b"]).flatmap(lambda name: st.sampled_from("tur").map(lambda event_action: name + event_action)), max_size=20))
def test_every_trigger_and_every_resolve_arrives_and_in_order(waiting):
    notifications = outbox(*waiting)
    order = sent(notifications)
    for name in ("a", "b"):
        mine = [WORDS[each[-1]] for each in waiting if each[0] == name]
        told = [event_action for event_action, incident, _ in order if incident == name]
        assert told.count("resolve") == mine.count("resolve")
        assert [event_action for event_action in told if event_action == "resolve" or told[0] == event_action][:1] == told[:1]
        times = [time for _, incident, time in order if incident == name]
        assert times == sorted(times)


def test_a_merged_letter_keeps_the_patience_of_those_in_it():
    notifications = outbox("at", "au")
    notifications[0] = msgspec.structs.replace(notifications[0], attempts=3, next_try=50.0)
    [head], _ = merge(notifications)
    assert (head.id, head.merged, head.attempts, head.next_try, head.made) == (2, (1,), 3, 50.0, 1.0)


def test_what_cannot_be_read_is_set_aside():
    notifications = outbox("at")
    strange = msgspec.structs.replace(notifications[0], id=9, body='{"version": 9}')
    found, unreadable = merge([strange, *notifications])
    assert ([head.id for head in found], unreadable) == ([1], [strange])
