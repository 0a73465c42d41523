"""Alerts of the site's own monitoring as findings that inform."""

from detectors.diagnosis import Diagnosis
from detectors.site_alerts import SiteAlerts
from eagle_eye.frames import Frame
from eagle_eye.types import Event, Finding, Severity, Topology
from fakes.synthetic_events import claims_of, cut_frame, event, node
from fakes.synthetic_frames import BEGAN


def firing(alert: str = "GpuHot", time: float = BEGAN, where: str = "node-0", **more: str) -> Event:
    told = {"alert": alert, "id": f"{alert}-1", "severity": "critical", "summary": "at 95"}
    return event("alert.firing", node(where), time, **(told | more))


def resolved(alert: str = "GpuHot", time: float = BEGAN + 60, where: str = "node-0") -> Event:
    return event("alert.resolved", node(where), time, id=f"{alert}-1")


def tick(time: float) -> Frame:
    return Frame(job="t/n/r", number=round(time), generation=1, time=time, tick=True)


def test_fault_an_alert_is_claimed_until_it_is_resolved() -> None:
    began, ended = claims_of(SiteAlerts(), [cut_frame(BEGAN, firing()), cut_frame(BEGAN + 60, resolved())])
    assert (began.kind, began.entity, began.active, began.since) == ("site.alert", node("node-0"), True, BEGAN)
    assert "GpuHot: at 95 (critical)" in began.evidence[0].text
    assert (ended.active, ended.evidence[-1].text) == (False, "over: the alert is resolved")


def test_twin_an_alert_that_is_told_twice_or_resolved_without_having_fired_says_nothing_new() -> None:
    frames = [cut_frame(BEGAN, firing()), cut_frame(BEGAN + 1, firing(time=BEGAN + 1)), cut_frame(BEGAN + 2, resolved("Other"))]
    assert len(claims_of(SiteAlerts(), frames)) == 1
    assert claims_of(SiteAlerts(), [cut_frame(BEGAN, resolved())]) == []


def test_several_alerts_about_one_node_are_one_claim_that_ends_with_the_last() -> None:
    claims = claims_of(SiteAlerts(), [cut_frame(BEGAN, firing(), firing("FanBroken")), cut_frame(BEGAN + 60, resolved()), cut_frame(BEGAN + 61, resolved("FanBroken"))])
    assert [(claim.active, len(claim.evidence)) for claim in claims] == [(True, 1), (True, 2), (True, 1), (False, 2)]


def test_an_alert_that_nobody_resolves_is_forgotten() -> None:
    detector = SiteAlerts(withdraw_after_s=100.0)
    claims = claims_of(detector, [cut_frame(BEGAN, firing()), tick(BEGAN + 99), tick(BEGAN + 101)])
    assert [claim.active for claim in claims] == [True, False]


def test_a_flood_of_alerts_is_bounded() -> None:
    detector = SiteAlerts()
    claims_of(detector, [cut_frame(BEGAN, *(firing(f"A{number}") for number in range(1000)))])
    claims = claims_of(detector, [cut_frame(BEGAN, *(firing(where=f"n{number}") for number in range(5000)))])
    assert len(claims) < 1100
    assert max(len(claim.evidence) for claim in claims) <= 16


def test_the_incident_informs_and_accuses_nobody() -> None:
    (claim,) = claims_of(SiteAlerts(), [cut_frame(BEGAN, firing())])
    finding = Finding(
        id="f", revision=1, detector="site_alerts", digest="d", job="t/n/r", entity=claim.entity, kind=claim.kind, score=claim.score,
        since=claim.since, time=BEGAN, evidence=claim.evidence, active=True,
    )  # fmt: skip
    (incident,) = Diagnosis().diagnose((), [finding], Topology())
    assert (incident.cause, incident.severity, incident.culprits) == ("site alert", Severity.INFO, ())
