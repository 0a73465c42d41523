"""What became of an incident after it was over: one bill wherever it is told, and whoever came back as another one calls nobody."""

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path

import pytest

from dashboard.figures.colours import LIGHT
from dashboard.incident import incident_html, summary
from dashboard.incident.incident_html import ViewTime
from dashboard.incident.stages import stages
from dashboard.pages import incidents as page
from dashboard.pages.actions import bills, table
from dashboard.queries import actions, cluster, incident, incidents
from dashboard.sources import Sources
from dashboard.viewer import Viewer
from eagle_eye.access import Person, Role
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config, ServerConfig
from eagle_eye.ledger import Ledger, Throughput
from eagle_eye.types import Culprit, Entity, IncidentState, Kind, Outcome, Plan
from fakes.sample_values import JOB, a_finding, a_layout, a_plan, a_step, an_incident

NOW = 1000.0
NODE = (Culprit(entity=Entity(kind=Kind.NODE, name="node-c"), confidence=0.9),)
VIEW = ViewTime(zone=UTC, now=NOW)


@pytest.fixture
def sources(tmp_path: Path, ledger: Ledger) -> Iterator[Sources]:
    made = Sources(Config(state_dir=str(tmp_path), server=ServerConfig(http="")), clock=FakeClock(NOW))
    yield made
    made.close()


def opened(ledger: Ledger, name: str, state: IncidentState, time: float = 900.0, **changes) -> None:
    ledger.save_incident(an_incident(id=name, cause="slow node", culprits=NODE, since=time - 1, time=time, **changes), IncidentState.OPEN)
    if state is not IncidentState.OPEN:
        ledger.move_incident(name, state, time + 20)


def acted(ledger: Ledger, name: str, state: str, *, detail: str = "", bill: float = 0.0, plan: str = "", **changes) -> Plan:
    made = a_plan(plan or f"plan of {name}", incident=name, made=905.0, expires=1500.0, **changes)
    ledger.save_plan(made)
    actual = {"bill_gpu_hours": bill} if bill else {}
    ledger.save_outcome(Outcome(plan=made.id, incident=name, action=made.action, state=state, time=920.0, detail=detail, actual=actual))
    return made


def running(ledger: Ledger) -> None:
    ledger.save_job(JOB, a_layout(), "127.0.0.1:7001", "restart:3", 3)


def test_a_bill_is_one_number_on_every_page(sources: Sources, ledger: Ledger) -> None:
    opened(ledger, "acted on", IncidentState.FAILED, bill_gpu_hours=0.001)
    acted(ledger, "acted on", "failed", bill=0.006, plan="first")
    acted(ledger, "acted on", "failed", bill=0.007, plan="second")
    opened(ledger, "not acted on", IncidentState.OPEN, time=950.0, bill_gpu_hours=0.002)
    listed = {line.id: line.bill_gpu_hours for line in incidents.listed(sources)}
    assert listed == {"acted on": 0.007, "not acted on": 0.002}
    assert {line.id: line.bill_gpu_hours for line in incidents.listed(sources, open_only=True)} == listed
    assert {name: incident.story(sources, name).bill_gpu_hours for name in listed} == listed
    assert [line.bill_gpu_hours for line in incident.story(sources, "not acted on").similar] == [0.007]
    assert bills(actions.done(sources, since=0.0)) == {"acted on": 0.007}, "two actions against one fault do not cost it twice"
    assert "0.007" in incident_html.facts(incident.story(sources, "acted on"))


def test_what_came_back_as_another_incident_calls_nobody_any_more(sources: Sources, ledger: Ledger) -> None:
    for place, name in enumerate(("first", "second")):
        opened(ledger, name, IncidentState.FAILED, time=900.0 + place)
        acted(ledger, name, "failed", detail=f"it came back as incident {('second', 'third')[place]}; a restart cannot be undone")
    opened(ledger, "third", IncidentState.HEALED, time=902.0)
    assert incidents.listed(sources, open_only=True) == ()
    lines = {line.id: line for line in incidents.listed(sources)}
    assert [lines[name].superseded_by for name in ("first", "second", "third")] == ["third", "third", ""]
    assert lines["first"].over
    seen = cluster.overview(sources, since=0.0, until=NOW)
    assert [line.health for line in seen.nodes] == [], "and no node is suspect"
    told = incident.story(sources, "first")
    assert summary.state_badge(told) == summary.SUPERSEDED
    assert summary.action_summary(told).tone == "quiet"
    assert 'by <a class="ee-link" href="incident?incident=third"' in incident_html.head(told, VIEW)
    text = page.table(tuple(lines.values()), VIEW)
    assert "needs an operator" not in text
    assert 'superseded by <a class="ee-link" href="incident?incident=third"' in text


def test_the_one_that_it_came_back_as_calls_alone_while_it_is_not_healed(sources: Sources, ledger: Ledger) -> None:
    opened(ledger, "first", IncidentState.FAILED)
    acted(ledger, "first", "failed", detail="it came back as incident second")
    opened(ledger, "second", IncidentState.FAILED, time=930.0)
    acted(ledger, "second", "failed", detail="no step within 30 s")
    assert [line.id for line in incidents.listed(sources, open_only=True)] == ["second"]
    assert [(line.node, line.incident) for line in cluster.overview(sources, since=0.0, until=NOW).nodes] == [("node-c", "second")]


@pytest.mark.parametrize(
    ("state", "runs", "said"),
    [
        (IncidentState.OPEN, True, "and it goes on"),
        (IncidentState.FAILED, True, "not healed"),
        (IncidentState.FAILED, False, "until the job ended"),
        (IncidentState.OPEN, False, "until the job ended"),
        (IncidentState.HEALED, False, "over after 21"),
    ],
)
def test_costs_go_on_only_while_the_job_does(sources: Sources, ledger: Ledger, state: IncidentState, runs: bool, said: str) -> None:
    opened(ledger, "one", state)
    if runs:
        running(ledger)
    text = incident_html.facts(incident.story(sources, "one"))
    assert said in text
    assert ("it goes on" in text) == (said == "and it goes on")


def test_a_job_that_helped_itself_before_it_was_found_out_is_said_to_have(sources: Sources, ledger: Ledger) -> None:
    opened(ledger, "one", IncidentState.HEALED, time=901.62, parts=(a_finding(since=900.0, time=901.62),))
    plan = a_plan("own", incident="one", made=901.7, expires=1500.0, own=True)
    ledger.save_plan(plan)
    ledger.record_intent(plan, a_step("intended", 901.29))
    signal, _, planned, *_ = stages(incident.story(sources, "one"))
    assert (signal.time, planned.time) == (901.62, 901.29)
    assert planned.text == "the job itself, before it was found: restart the workers"


def test_a_throughput_says_of_what(sources: Sources, ledger: Ledger) -> None:
    opened(ledger, "one", IncidentState.HEALED)
    plan = a_plan("p", incident="one", made=905.0)
    ledger.save_plan(plan)
    ledger.save_outcome(Outcome(plan="p", incident="one", action=plan.action, state="done", time=920.0, predicted={"throughput_per_s": 9770.0}, actual={"throughput_per_s": 9500.0}))
    text = table(actions.done(sources, since=0.0), Viewer(Person(name="eve", role=Role.VIEWER), "", UTC, LIGHT), NOW)
    assert "9.5\u202fk\u202ftokens/s" in text
    assert "expected 9.77\u202fk\u202ftokens/s" in text
    told = incident.story(sources, "one")
    assert "9.5\u202fk\u202ftokens/s" in incident_html.plan(told.plans[0], VIEW, told.work)


def test_a_job_whose_size_changes_counts_steps(sources: Sources, ledger: Ledger) -> None:
    opened(ledger, "one", IncidentState.HEALED)
    acted(ledger, "one", "done", bill=0.1)
    ledger.save_throughputs((Throughput(job="tenant/gpt", workers=2, steps_per_s=5.0, time=1.0),))
    assert [line.work for line in actions.done(sources, since=0.0)] == ["steps/s"]
    assert incident.story(sources, "one").work == "steps/s"
