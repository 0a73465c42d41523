"""Notifications arrive: again after failures, in order, at a bounded pace; given up only when it is of no use, and never in silence."""

import httpx
import msgspec
import pytest

from eagle_eye.ledger import AlertRecord
from eagle_eye.types import Severity
from fakes.receiver_rules import refusals
from remediation.alerts.alert import Alert, SentAlert, encode
from remediation.alerts.delivery_worker import KEPT_S, LONGEST_WAIT_S, PATIENCE, DeliveryWorker, RateLimit, wait_before
from remediation.alerts.http_post import is_signed
from remediation.alerts.receiver import Endpoint, Receiver

SECRET = b"of the operator"
KEY = "0123456789abcdef0123456789abcdef"
WORDS = {"t": "trigger", "u": "update", "r": "resolve"}


class Office:
    """One worker, and a receiver that answers as a test says."""

    def __init__(self, ledger, clock, kind="plain", **options):
        self.ledger, self.clock = ledger, clock
        self.answers = []
        """Statuses, responses or exceptions; when none is left: 200."""
        self.asked = []
        receiver = Receiver(kind=kind, name="pager", url="http://h/T0/token", **options)
        endpoint = Endpoint(receiver=receiver, url="http://h/T0/token", key=KEY, secret=SECRET)
        self.leads = self.well = True
        self.worker = DeliveryWorker(
            endpoint=endpoint, outbox=ledger, clock=clock, leads=lambda: self.leads, well=lambda: self.well, chance=lambda: 0.0
        )
        self.client = httpx.Client(transport=httpx.MockTransport(self._answer))

    def _answer(self, request):
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(answer)

    def post(self, *names, severity=Severity.SEV1):
        """Notifications like "i1t": the trigger of i1."""
        for name in names:
            alert = Alert(
                id=name[:-1], notification=name, event_action=WORDS[name[-1]], job="j", cause="c", severity=severity, state="open", summary="s",
                opened=self.clock.now(), time=self.clock.now(),
            )
            self.ledger.enqueue("pager", encode(alert), self.clock.now())

    def round(self, seconds=0.0):
        self.clock.advance(seconds)
        return self.worker.round(self.client)

    @property
    def heard(self):
        """The notifications that were asked for, in order."""
        return [request.headers.get("X-Eagle-Eye-Notification", "") for request in self.asked]

    @property
    def waiting(self):
        return len(self.ledger.undelivered("pager"))

    @property
    def notices(self):
        return [notice.name for notice in self.ledger.notices()]


@pytest.fixture
def office(ledger, clock):
    return Office(ledger, clock)


def test_a_letter_is_signed_numbered_and_taken_once(office):
    office.post("i1t")
    assert office.round() == 1
    assert office.round(1000) == 0
    [request] = office.asked
    assert request.headers["X-Eagle-Eye-Notification"] == "i1t"
    assert is_signed(SECRET, request.headers["X-Eagle-Eye-Signature"], request.content, office.clock.now() - 1000)
    assert request.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("failure", [500, 502, 503, 429, 408, 401, 403, 404, 301, httpx.ConnectError("refused"), httpx.ReadTimeout("slow")])
def test_what_may_pass_is_tried_again_with_the_same_number(office, failure):
    office.post("i1t")
    office.answers = [failure, failure]
    assert [office.round(), office.round(0.9), office.round(0.2), office.round(1.8), office.round(0.3)] == [0, 0, 0, 0, 1]
    assert office.heard == ["i1t"] * 3
    assert len({request.headers["X-Eagle-Eye-Notification"] for request in office.asked}) == 1
    assert office.notices == []


def test_what_can_never_be_taken_is_given_up_at_once_and_the_operator_is_told(office):
    office.post("i1t", "i2t")
    office.answers = [httpx.Response(400, text="'routing_key' is wrong\n see http://h/T0/token")]
    assert office.round() == 1
    assert office.heard == ["i1t", "i2t"]
    assert office.waiting == 0
    [notice] = office.ledger.notices()
    assert notice.name == "alerts.given_up"
    assert "i1 never reached alert receiver pager: status 400: 'routing_key' is wrong see" in notice.message
    assert "token" not in notice.message


def test_who_is_dead_for_a_day_is_given_up_and_not_before(office):
    office.post("i1t")
    office.answers = [httpx.ConnectError("connection refused to http://h/T0/token")] * 1000
    while office.clock.now() < 1_700_000_000.0 + KEPT_S - LONGEST_WAIT_S:
        office.round(LONGEST_WAIT_S / 3)
    assert office.waiting == 1
    assert office.notices == ["alerts.away"]
    assert len(office.asked) < KEPT_S / LONGEST_WAIT_S + 20
    for _ in range(3):
        office.round(LONGEST_WAIT_S)
    assert office.waiting == 0
    assert office.notices == ["alerts.given_up", "alerts.away"]
    assert not any("token" in notice.message for notice in office.ledger.notices())


def test_back_off_doubles_with_jitter_up_to_five_minutes():
    assert [wait_before(attempt, 0.0) for attempt in (1, 2, 3, 4, 30, 1000)] == [1, 2, 4, 8, 300, 300]
    assert [wait_before(3, chance) for chance in (0.0, 0.5, 1.0)] == [4, 3, 2]


@pytest.mark.parametrize("header", ["120", "Tue, 14 Nov 2023 22:15:20 GMT"])
def test_a_receiver_that_asks_for_time_gets_it(office, header):
    assert office.clock.now() == 1_700_000_000.0  # 22:13:20 GMT
    office.post("i1t")
    office.answers = [httpx.Response(429, headers={"Retry-After": header})]
    assert [office.round(), office.round(119), office.round(2)] == [0, 0, 1]


@pytest.mark.parametrize("tries", [0, 1, 3])
def test_a_clock_that_is_set_back_delays_no_letter(office, tries):
    """The server's was an hour ahead as they were written, and tried in vain."""
    office.clock.jump(3600.0)
    office.post("i1t", "i2t")
    office.answers = [503] * tries
    for _ in range(tries):
        office.round(10)
    office.clock.jump(-3600.0)
    assert office.round(10) == 2
    assert office.heard[tries:] == ["i1t", "i2t"]


def test_nor_those_that_a_leader_before_us_has_tried(ledger, clock):
    former = Office(ledger, clock)
    clock.jump(86_400.0)
    former.post("i1t")
    former.answers = [503]
    assert former.round() == 0
    clock.jump(-86_400.0)
    assert Office(ledger, clock).round(1) == 1


def test_a_clock_that_jumps_a_day_gives_no_letter_up(office):
    office.post("i1t")
    office.answers = [503] * 3
    assert office.round() == 0
    office.clock.jump(2 * KEPT_S)
    assert [office.round(10), office.round(10)] == [0, 0]
    office.clock.jump(-2 * KEPT_S)
    assert office.round(10) == 1
    assert office.notices == []


def test_twin_the_next_leader_waits_as_long_as_the_receiver_asked_for(ledger, clock):
    former = Office(ledger, clock)
    former.post("i1t")
    former.answers = [httpx.Response(429, headers={"Retry-After": "120"})]
    assert former.round() == 0
    assert [Office(ledger, clock).round(119), Office(ledger, clock).round(2)] == [0, 1]


@pytest.mark.parametrize("header", ["soon", "-1", "1e9", "nan", "Tue, 99 Nov 2023", "99999999999999999999"])
def test_nonsense_and_eternity_are_not_waited_for(office, header):
    office.post("i1t")
    office.answers = [httpx.Response(503, headers={"Retry-After": header})]
    assert [office.round(), office.round(3601)] == [0, 1]


# --- order ---------------------------------------------------------------------------------------------------------


def test_while_a_receiver_is_away_only_its_first_letter_is_tried(office):
    office.post("i1t", "i2t", "i3t")
    office.answers = [503] * 8
    for _ in range(8):
        office.round(300)
    assert office.heard == ["i1t"] * 8
    assert office.round(300) == 3
    assert office.heard[8:] == ["i1t", "i2t", "i3t"]


def test_a_letter_that_spoils_a_receiver_does_not_hold_the_others_for_ever(office):
    office.post("i1t", "i2t", "i1r")
    office.answers = [500] * PATIENCE
    for _ in range(PATIENCE):
        assert office.round(20) == 0 or office.heard[-1] == "i2t"
    office.round(0.1)
    assert office.heard == ["i1t"] * PATIENCE + ["i2t"]
    office.round(300)
    assert office.heard[-2:] == ["i1t", "i1r"]  # its own resolve never overtakes it


def test_what_was_superseded_before_it_was_taken_is_not_said(office):
    office.answers = [503, 503]
    office.post("i1t")
    office.round()
    office.post("i1u", "i1u", "i2t", "i1r")
    assert office.round(300) == 0
    assert office.round(300) == 3
    bodies = [msgspec.json.decode(request.content) for request in office.asked]
    assert [(body["event_action"], body["id"]) for body in bodies] == [("trigger", "i1")] * 3 + [("trigger", "i2"), ("resolve", "i1")]
    assert office.waiting == 0


def test_who_leads_no_more_sends_nothing(office):
    office.post("i1t")
    office.leads = False
    assert office.round() == 0
    assert office.asked == []
    assert office.waiting == 1


def test_a_letter_of_another_version_is_set_aside_and_told(office):
    office.ledger.enqueue("pager", '{"version": 9}', office.clock.now())
    office.post("i1t")
    assert office.round() == 1
    assert office.notices == ["alerts.given_up"]


# --- pace ----------------------------------------------------------------------------------------------------------


def test_the_pace_is_bounded_and_the_last_letter_says_how_many_wait(ledger, clock):
    office = Office(ledger, clock, per_minute=5)
    office.post(*(f"i{number}t" for number in range(12)))
    assert office.round() == 5
    assert office.round(30) == 0
    assert [msgspec.json.decode(request.content)["more_pending"] for request in office.asked] == [0, 0, 0, 0, 7]
    office.post(*(f"i{number}r" for number in range(12)))
    assert office.round(31) == 5
    assert sum(office.round(60) for _ in range(10)) == 24 - 10
    assert office.waiting == 0


def test_the_gravest_waits_behind_no_storm(ledger, clock):
    office = Office(ledger, clock, per_minute=2)
    office.post(*(f"i{number}t" for number in range(40)), severity=Severity.SEV3)
    office.post("j1t", "j2t")
    office.round()
    office.post("i0u", severity=Severity.SEV2)
    office.round(61)
    assert office.heard == ["j1t", "j2t", "i0u", "i1t"]


def test_no_bound_is_none(clock):
    pace = RateLimit(0, clock)
    for _ in range(1000):
        assert pace.free
        assert not pace.last
        pace.take()


# --- Alertmanager, heartbeat ---------------------------------------------------------------------------------------


def labels(request):
    assert refusals("alertmanager", request.content) == []
    return [(alert["labels"]["alertname"], alert["labels"].get("eagle_eye_incident", "")) for alert in msgspec.json.decode(request.content)]


def told(office, name):
    alert = Alert(id=name, job="j", cause="c", severity=Severity.SEV1, state="open", summary="s", opened=office.clock.now(), time=office.clock.now())
    office.ledger.save_alert(AlertRecord(id=name, number=1, opened=1.0, changed=1.0, body=encode(SentAlert(alert=alert, receivers=("pager",)))), [], 1.0)


def test_an_alertmanager_takes_all_that_is_due_at_once_and_hears_it_again(ledger, clock):
    office = Office(ledger, clock, kind="alertmanager", every_s=60.0)
    office.post("i1t", "i2t", "i1r")
    assert office.round() == 3
    assert [labels(request) for request in office.asked] == [
        [("EagleEyeWatchdog", "")],
        [("EagleEyeIncident", "i1"), ("EagleEyeIncident", "i2")],
        [("EagleEyeIncident", "i1")],
    ]
    told(office, "i2")
    office.round(30)
    assert len(office.asked) == 3
    office.round(31)
    assert labels(office.asked[-1]) == [("EagleEyeIncident", "i2"), ("EagleEyeWatchdog", "")]


def test_one_bad_alert_does_not_spoil_the_others(ledger, clock):
    office = Office(ledger, clock, kind="alertmanager")
    office.post("i1t", "i2t")
    office.answers = [200, 400, 400, 200]
    assert office.round() == 1
    assert office.waiting == 0
    assert office.notices == ["alerts.given_up"]


def test_the_watchdog_stops_when_something_stands_still(ledger, clock):
    office = Office(ledger, clock, kind="alertmanager", every_s=60.0)
    told(office, "i1")
    office.well = False
    office.round()
    assert labels(office.asked[-1]) == [("EagleEyeIncident", "i1")]


def test_the_heart_beats_while_all_is_well_and_only_then(ledger, clock):
    office = Office(ledger, clock, kind="heartbeat", every_s=30.0)
    for well, leads, beats in ((True, True, 1), (True, True, 2), (False, True, 2), (True, False, 2), (True, True, 3)):
        office.well, office.leads = well, leads
        office.round()
        clock.advance(31)
        assert len(office.asked) == beats
    assert msgspec.json.decode(office.asked[0].content) == {"version": 1, "event_action": "heartbeat", "time": 1_700_000_000.0, "every_s": 30.0}


def test_a_beat_that_did_not_arrive_is_sent_again_soon(ledger, clock):
    office = Office(ledger, clock, kind="heartbeat", every_s=60.0)
    office.answers = [503]
    office.round()
    office.round(6)
    assert len(office.asked) == 2
