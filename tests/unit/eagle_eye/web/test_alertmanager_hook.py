"""A site's own alerts: what Alertmanager posts, and which events it becomes."""

import copy
import json
import re

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from eagle_eye.config import HooksConfig
from eagle_eye.errors import LedgerUnavailable, StreamUnavailable
from eagle_eye.types import Entity, Event, Kind, RankPlacement
from eagle_eye.web.alertmanager_hook import PATH, AlertmanagerHook, route
from fakes.sample_values import JOB, a_layout
from fakes.web_request import Asking

GPU = "GPU-5f2c"
LAYOUT = msgspec.structs.replace(a_layout(), placements=(RankPlacement(worker="run1/node-a/0", node="node-a", rank=0, local_rank=0, gpu=GPU),))
OTHER = msgspec.structs.replace(a_layout(coordinator="node-b"), job="tenant/bert/run2")
BODY = {
    "receiver": "hook",
    "status": "firing",
    "alerts": [
        {
            "status": "firing",
            "labels": {"alertname": "GpuHot", "instance": "node-a:9400", "job": "gpu", "severity": "critical"},
            "annotations": {"summary": "GPU 3 on node-a at 95"},
            "startsAt": "2026-11-20T08:39:15.841Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "http://vm:19490/graph",
            "fingerprint": "cb6a1dba70381f9e",
        }
    ],
    "groupLabels": {},
    "commonLabels": {},
    "commonAnnotations": {},
    "externalURL": "http://vm:19493",
    "version": "4",
    "groupKey": '{}:{alertname="GpuHot"}',
    "truncatedAlerts": 0,
}
"""As Alertmanager 0.25 posts it."""
STARTED = 1795163955.841


class Site:
    """The hook, what it wrote, and what it answers to a body."""

    def __init__(self, layouts=(LAYOUT, OTHER), max_bytes: int = 100_000, **config) -> None:
        self.events: list[Event] = []
        self.layouts = list(layouts)
        self.away = False
        self.hook = AlertmanagerHook(HooksConfig(**config), layouts=self.known, write=self.write, incarnation="incarnation")
        opened = route(self.hook, max_bytes=max_bytes)
        self.app = Starlette(routes=[Route(opened.path, opened.answer, methods=["POST"])])

    def known(self):
        if not self.layouts:
            raise LedgerUnavailable("the ledger does not answer")
        return self.layouts

    def write(self, events):
        if self.away:
            raise StreamUnavailable("the stream does not answer")
        self.events += events

    def post(self, body) -> httpx.Response:
        return Asking(self.app).post(PATH, content=body if isinstance(body, bytes) else json.dumps(body).encode())


def body(*, ends: str = "", fingerprint: str = "", **labels: str) -> dict:
    made = copy.deepcopy(BODY)
    alert = made["alerts"][0]
    if labels:
        alert["labels"] = {"alertname": "GpuHot", **labels}
    if ends:
        alert |= {"status": "resolved", "endsAt": ends}
    if fingerprint:
        alert["fingerprint"] = fingerprint
    return made


def test_an_alert_becomes_an_event_of_the_job_on_its_node() -> None:
    site = Site()
    answer = site.post(BODY)
    assert (answer.status_code, answer.json()) == (200, {"events": 1, "repeated": 0, "unknown": 0, "own": 0})
    (event,) = site.events
    assert (event.name, event.job, event.entity) == ("alert.firing", JOB, Entity(kind=Kind.NODE, name="node-a"))
    assert event.time == pytest.approx(STARTED)
    assert event.attributes["summary"] == "GPU 3 on node-a at 95"
    assert event.attributes["severity"] == "critical"


def test_an_alert_that_is_sent_again_makes_one_event_and_its_end_another() -> None:
    site = Site()
    answers = [site.post(each).json() for each in (BODY, BODY, body(ends="2026-11-20T08:45:00Z", instance="node-a"), body(ends="2026-11-20T08:45:00Z", instance="node-a"))]
    assert [answer["repeated"] for answer in answers] == [0, 1, 0, 1]
    assert [event.name for event in site.events] == ["alert.firing", "alert.resolved"]
    assert site.events[0].attributes["id"] == site.events[1].attributes["id"]
    assert site.events[0].id != site.events[1].id


def test_the_same_alert_that_starts_anew_is_news() -> None:
    site = Site()
    later = body()
    later["alerts"][0]["startsAt"] = "2026-11-20T09:00:00Z"
    site.post(BODY)
    site.post(later)
    assert len(site.events) == 2


@pytest.mark.parametrize(
    ("labels", "jobs", "entity"),
    [
        ({"UUID": GPU, "gpu": "3"}, [JOB], Entity(kind=Kind.GPU, name=GPU)),
        ({"Hostname": "node-b.cluster.example"}, ["tenant/bert/run2"], Entity(kind=Kind.NODE, name="node-b")),
        ({"instance": "node-z:9100"}, ["idle/node-z"], Entity(kind=Kind.NODE, name="node-z")),
        ({"eagle_eye_job": JOB}, [JOB], Entity(kind=Kind.JOB, name=JOB)),
        ({"eagle_eye_job": JOB, "node": "node-a"}, [JOB], Entity(kind=Kind.NODE, name="node-a")),
        ({"UUID": "GPU-unknown", "node": "node-a"}, [JOB], Entity(kind=Kind.NODE, name="node-a")),
    ],
)
def test_labels_say_what_an_alert_is_about(labels, jobs, entity) -> None:
    site = Site()
    site.post(body(**labels))
    assert [(event.job, event.entity) for event in site.events] == [(job, entity) for job in jobs]


def test_the_labels_are_configurable() -> None:
    site = Site(node_labels=("machine",))
    site.post(body(machine="node-b", instance="node-a:9400"))
    assert [event.entity.name for event in site.events] == ["node-b"]


def test_an_alert_about_nothing_in_particular_is_told_to_every_job() -> None:
    site = Site()
    site.post(body(severity="warning"))
    assert [event.entity for event in site.events] == [Entity(kind=Kind.JOB, name=job) for job in (JOB, "tenant/bert/run2")]


def test_our_own_alerts_do_not_come_back_as_evidence() -> None:
    site = Site()
    answer = site.post(body(alertname="EagleEyeLeaderAbsent", instance="node-a"))
    answer_of_incident = site.post(body(eagle_eye_incident="i1", node="node-a"))
    assert [answer.json()["own"], answer_of_incident.json()["own"], site.events] == [1, 1, []]


def wrong_status() -> dict:
    made = body()
    made["alerts"][0]["status"] = "burning"
    return made


def no_start() -> dict:
    made = body()
    del made["alerts"][0]["startsAt"]
    return made


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b'{"version": "\xff\xfe"}', "no JSON"),
        (b'{"version": "4", "x": ' + b"[" * 5000, "no JSON"),
        ([], "Expected `object`"),
        ({}, "missing required field `version`"),
        (BODY | {"version": "3"}, "version '3'"),
        (BODY | {"alerts": {}}, r"\$.alerts"),
        (wrong_status(), r"'burning' - at `\$.alerts\[0\].status`"),
        (no_start(), "missing required field `startsAt`"),
    ],
)
def test_a_malformed_body_is_refused_with_what_is_wrong(content, says) -> None:
    site = Site()
    answer = site.post(content)
    assert answer.status_code == 400
    assert re.search(says, answer.json()["error"])
    assert site.events == []


def test_a_body_that_is_too_long_is_refused_before_it_is_read_to_its_end() -> None:
    site = Site(max_bytes=1000)
    answer = site.post(b" " * 100_000)
    assert answer.status_code == 413
    assert "hooks.max_bytes" in answer.json()["error"]


def test_while_nobody_knows_the_jobs_alertmanager_is_asked_to_come_again() -> None:
    assert Site(layouts=()).post(BODY).status_code == 503


def test_what_could_not_be_written_is_taken_when_it_comes_again() -> None:
    site = Site()
    site.away = True
    assert site.post(BODY).status_code == 503
    site.away = False
    assert site.post(BODY).json()["events"] == 1


def test_long_texts_are_cut() -> None:
    site = Site()
    made = body()
    made["alerts"][0]["annotations"]["summary"] = "x" * 10_000
    site.post(made)
    assert len(site.events[0].attributes["summary"]) == 500


def test_alerts_are_counted_by_what_became_of_them() -> None:
    site = Site()
    site.post(BODY)
    site.post(BODY)
    (family,) = site.hook.collect()
    assert {sample.labels["result"]: sample.value for sample in family.samples} == {"events": 1, "repeated": 1, "unknown": 0, "own": 0}
