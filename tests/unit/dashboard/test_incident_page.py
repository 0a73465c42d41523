"""The page of one incident: what it says of it, who may decide on it, and what is sent."""

import dataclasses
import doctest
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dashboard.errors import NothingToDecide
from dashboard.figures.colours import LIGHT
from dashboard.figures.evidence_figure import evidence
from dashboard.incident import decision_form, incident_html, summary
from dashboard.incident.incident_html import ViewTime
from dashboard.incident.stages import stages
from dashboard.queries.evidence import OTHERS, Plot
from dashboard.queries.incident import EvidenceRow, IncidentDetails, story
from dashboard.sources import VARIABLE, Sources
from dashboard.viewer import PERSON, TOKEN, Viewer
from eagle_eye.access import Person, Role
from eagle_eye.changes import ObservedChange
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config, CostConfig
from eagle_eye.errors import AccessDenied, ControlError
from eagle_eye.ledger import Ledger, TimelineEntry
from eagle_eye.rpc.control_messages import Decision
from eagle_eye.types import Allow, Entity, Evidence, Hold, IncidentNote, IncidentState, Kind, Outcome, Rival, Target
from fakes.dashboard_page import seek_components_once
from fakes.sample_values import a_finding, a_plan, a_step, an_incident

PLAN = a_plan(action="evict_node", targets=(Target(job="tenant/gpt/run1", epoch=1, basis="b", exclude=("node-a",)),), expires=4e9, cost=7200.0, benefit=36_000.0)
DETAIL = "98% of the throughput expected of 8 workers"


@pytest.fixture
def kept(ledger_path: Path) -> Iterator[Ledger]:
    """An incident that is open, with a finding and a rival."""
    opened = Ledger.open(ledger_path)
    proof = (Evidence(text="killed by SIGKILL", metric="age_s", value=7.5, threshold=5.0), Evidence(text="its last words: <b>boom</b>"))
    finding = a_finding(evidence=proof)
    opened.save_findings([finding])
    rival = Rival(cause="out of memory on the host", apart="the kernel's log")
    opened.save_incident(an_incident(evidence=proof, parts=(finding,), rivals=(rival,), bill_gpu_hours=0.25), IncidentState.OPEN)
    yield opened
    opened.close()


@pytest.fixture
def known(kept: Ledger, ledger_path: Path) -> Iterator[Sources]:
    sources = Sources(Config(state_dir=str(ledger_path.parent)), clock=FakeClock(200.0))
    yield sources
    sources.close()


def waits(ledger: Ledger) -> None:
    ledger.save_plan(PLAN)
    ledger.save_verdict(PLAN, Allow(guard="cooldown"), 103.5)
    ledger.save_verdict(PLAN, Hold(guard="approval", reason="the mode is recommend"), 103.6)


def done(ledger: Ledger) -> None:
    ledger.save_plan(PLAN)
    ledger.record_intent(PLAN, a_step("intended"))
    ledger.record_result(PLAN, a_step("done", 104.5))
    ledger.save_outcome(Outcome(plan=PLAN.id, incident=PLAN.incident, action=PLAN.action, state="done", time=110.0, predicted={"downtime_s": 5.0}, actual={"downtime_s": 4.5}, detail=DETAIL))
    ledger.move_incident("incident-1", IncidentState.HEALED, 110.0)


def told(sources: Sources) -> IncidentDetails:
    return story(sources, "incident-1")


def test_the_examples_in_the_texts_are_true():
    assert doctest.testmod(summary).failed == doctest.testmod(incident_html).failed == 0


def test_what_waits_is_said_first_with_its_digest_and_its_price(kept, known):
    waits(kept)
    found, view = told(known), ViewTime(zone=UTC, now=200.0)
    assert summary.state_badge(found) == ("Waits for your decision", "alarm")
    assert summary.title(found.incident) == "Worker killed: worker 0 on node-a"
    text = incident_html.action_summary(found, view)
    assert "Evict node-a" in text
    assert PLAN.digest in text
    assert "costs 2.000\u202fGPU-hours, saves 10\u202fGPU-hours" in text
    assert [stage.state for stage in stages(found)] == ["reached", "reached", "now", "ahead", "ahead"]


@pytest.mark.parametrize(("found_s", "said"), [(0.5, "found 500\u202fms after it began"), (None, "found after an unknown time: the clock jumped")])
def test_no_duration_is_shown_that_cannot_be(known, found_s, said):
    assert said in incident_html.facts(dataclasses.replace(told(known), found_s=found_s))
    lasted = incident_html.facts(dataclasses.replace(told(known), state="healed", lasted_s=found_s))
    assert ("over after an unknown time: the clock jumped" in lasted) == (found_s is None)


def test_what_the_accused_did_before_is_said(kept, known):
    kept.save_incident(an_incident(id="incident-0", since=50.0, time=50.0), IncidentState.OPEN)
    [sentence] = told(known).histories
    assert "2nd incident in 30 days" in sentence


def test_what_changed_before_is_said(kept, known):
    kept.save_changes([ObservedChange(entity=Entity(kind=Kind.NODE, name="node-a"), job=PLAN.id, what="kernel", before="6.1", after="6.8", known=30.0, seen=40.0)])
    assert told(known).changes == ("node-a: kernel 6.1 → 6.8, 1m before",)


def test_a_price_of_a_gpu_hour_makes_the_cost_an_amount(kept, ledger_path):
    sources = Sources(Config(state_dir=str(ledger_path.parent), cost=CostConfig(gpu_hour=8.0)), clock=FakeClock(200.0))
    assert "2.00 USD, until the job ended" in incident_html.facts(told(sources))
    sources.close()


def test_what_was_done_is_shown_with_what_came_of_it(kept, known):
    done(kept)
    found = told(known)
    assert summary.action_summary(found).lead == "Done"
    text = incident_html.action_summary(found, ViewTime(zone=UTC, now=200.0))
    assert DETAIL in text
    assert "4.5\u202fs" in text
    assert [stage.state for stage in stages(found)] == ["reached"] * 5
    assert [stage.time for stage in stages(found)] == [100.5, 102.0, 103.0, 104.5, 110.0]


def test_an_action_that_did_not_help_needs_a_person(kept, known):
    done(kept)
    kept.save_outcome(Outcome(plan=PLAN.id, incident=PLAN.incident, action=PLAN.action, state="failed", time=120.0, detail="no step within 30 s"))
    found = told(known)
    assert summary.action_summary(found).tone == "alarm"
    assert summary.action_summary(found).why == "No step within 30 s"
    assert stages(found)[-1].state == "failed"


def test_a_repair_that_came_back_as_another_incident_leads_there(kept, known):
    done(kept)
    kept.save_outcome(Outcome(plan=PLAN.id, incident=PLAN.incident, action=PLAN.action, state="failed", time=120.0, detail="it came back as incident 3336dcb6e25e4ee8; <b>"))
    for text in (incident_html.action_summary(told(known), ViewTime(zone=UTC, now=200.0)), incident_html.track(told(known))):
        assert 'href="incident?incident=3336dcb6e25e4ee8"' in text
        assert "<b>" not in text


def test_when_a_claim_ended_is_a_time_of_the_readers():
    over = EvidenceRow(text="over: it reports again", finding="node.lost", entity="node node-a", time=0.0, metric="over", value=3661.0, threshold=None)
    assert "01:01:01" in incident_html.proofs([over], ViewTime(zone=UTC, now=200.0))


def test_without_a_plan_the_page_says_that_there_is_none(known):
    assert summary.action_summary(told(known)).what == "No repair was planned"
    assert "Eagle Eye still looks" in incident_html.action_summary(told(known), ViewTime(zone=UTC, now=200.0))


def test_nothing_that_came_over_a_wire_becomes_markup(kept, known):
    kept.save_note(IncidentNote(incident="incident-1", person="<i>eve</i>", time=150.0, text="<script>alert(1)</script>"))
    found, view = told(known), ViewTime(zone=UTC, now=200.0)
    text = "".join([incident_html.head(found, view), incident_html.timeline(found, view), incident_html.logs(found.log_lines), incident_html.people(found, view), incident_html.proofs(found.evidence, view)])
    assert "&lt;b&gt;boom" in text
    assert "<b>boom" not in text
    assert "<script>" not in text
    assert "<i>eve" not in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('restart t/g/r done: {"epoch":3}', "restart t/g/r done: epoch 3"),
        ('restart t/g/r intended: {"exclude":["node-a"],"resume_step":-1,"own":true}', "restart t/g/r intended: exclude node-a"),
        ('dump t/g/r done: {"stacks":[{"workers":[],"stack":"x"}]}', "dump t/g/r done: 1 different stack"),
        ("restart t/g/r failed: {broken", "restart t/g/r failed: {broken"),
    ],
)
def test_a_commands_json_becomes_words(text, said):
    assert incident_html.timeline_text(TimelineEntry(time=0.0, what="step", text=text)) == said


def test_the_accused_stand_out_from_the_others_and_the_fault_is_marked():
    times = np.array([0.0, 1.0, 2.0])
    figure = evidence(Plot(title="Power", unit="W", times=times, series={"node-c": np.array([1.0, np.nan, 3.0]), OTHERS: times}, mark=1.0), LIGHT)
    accused, others = figure.data
    assert (accused.name, accused.line.color) == ("node-c", LIGHT.series[0])
    assert list(accused.y) == [1.0, None, 3.0], "a gap is a gap"
    assert others.line.color == LIGHT.muted
    assert figure.layout.shapes[0].x0 == "1970-01-01 00:00:01.000"


# --- deciding --------------------------------------------------------------------------------------------------------


@dataclass
class Leader:
    """Stands for the sources: what was sent, and what is answered."""

    answer: Any
    heard: list[Any] = field(default_factory=list)

    def order(self, what, message, token=""):
        self.heard.append((what, message, token))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


OPERATOR = Viewer(Person(name="ada", role=Role.OPERATOR), "eet_token", UTC, LIGHT)
WORD = Decision(plan="plan-1", person="", digest=PLAN.digest)


def test_a_word_goes_out_with_the_digest_that_was_seen_and_the_persons_own_token():
    leader = Leader({"message": "approved by ada"})
    assert decision_form.sent(leader, OPERATOR, "approve", WORD) == ("approved by ada.", "good")
    assert leader.heard == [("approve", WORD, "eet_token")]


def test_without_tokens_a_person_says_who_they_are():
    nobody = Viewer(Person(name="anybody", role=Role.ADMIN), "", UTC, LIGHT)
    leader = Leader({"message": "done"})
    assert decision_form.sent(leader, nobody, "approve", WORD)[1] == "warning"
    assert leader.heard == []
    assert decision_form.sent(leader, nobody, "approve", msgspec.structs.replace(WORD, person="ada"))[1] == "good"


@pytest.mark.parametrize(
    ("error", "said", "tone"),
    [
        (AccessDenied("eve has the role viewer"), "Nothing was done: eve has the role viewer.", "warning"),
        (ControlError("the plan has changed"), "Nothing was done: the plan has changed", "alarm"),
        (NothingToDecide("it is over"), "This is a recorded run: it is over", "accent"),
    ],
)
def test_why_nothing_was_done_is_said(error, said, tone):
    assert decision_form.sent(Leader(error), OPERATOR, "approve", WORD) == (said, tone)


# --- the page, run by Streamlit --------------------------------------------------------------------------------------


@pytest.fixture
def page(kept: Ledger, ledger_path: Path, monkeypatch: pytest.MonkeyPatch):
    """(role, name of a page, query) → the page after its first run."""
    import streamlit
    from streamlit.testing.v1 import AppTest

    monkeypatch.setenv(VARIABLE, msgspec.json.encode(Config(state_dir=str(ledger_path.parent))).decode())
    streamlit.cache_resource.clear()
    seek_components_once()

    def script(name: str) -> None:
        from importlib import import_module

        import_module(f"dashboard.pages.{name}").show()

    def load(role: Role, name: str = "incident", tenant: str = "", **query: str):
        test = AppTest.from_function(script, default_timeout=120, kwargs={"name": name})
        test.session_state[PERSON], test.session_state[TOKEN] = Person(name="eve", role=role, tenant=tenant), "eet_x"
        for key, value in query.items():
            test.query_params[key] = value
        return test.run()

    yield load
    streamlit.cache_resource.clear()


def html(test) -> str:
    assert not test.exception
    return "\n".join(element.proto.body for element in test.get("html"))


def test_a_viewer_who_tries_is_told_kindly_and_has_no_button_to_press(kept, page):
    waits(kept)
    test = page(Role.VIEWER, incident="incident-1")
    text = html(test)
    assert "To approve takes the role operator" in text
    assert "To silence takes the role operator" in text
    assert [button.label for button in test.button] == []


@pytest.mark.parametrize("label", ["Approve now", "Refuse now", "Silence", "Keep"])
def test_an_operator_whom_no_server_answers_is_told_so(kept, page, label):
    waits(kept)
    test = page(Role.OPERATOR, incident="incident-1")
    pressed = next(button for button in test.button if button.label == label)
    text = html(pressed.click().run())
    assert "Nothing was done: no server answered" in text
    assert "is <code>eagle-eye server</code> running" in text, "and no backticks"


@pytest.mark.parametrize("label", ["Approve now", "Refuse now", "Silence", "Keep"])
def test_a_click_is_sent_once_though_the_page_is_drawn_again_meanwhile(kept, page, monkeypatch, label):
    """As when the page draws itself anew, or the reader leaves a field, while the leader has not answered: the new run has the button pressed, too."""
    from streamlit.proto.WidgetStates_pb2 import WidgetStates
    from streamlit.runtime.scriptrunner import RerunData, get_script_run_ctx

    heard: list[str] = []

    def leader(_address, what, _message, **_):
        heard.append(what)
        context = get_script_run_ctx()
        if len(heard) == 1:
            context.script_requests.request_rerun(RerunData(context.query_string, WidgetStates(widgets=context.session_state.get_widget_states())))
        return {"message": f"message {len(heard)} is kept"}

    monkeypatch.setattr("dashboard.sources.call", leader)
    waits(kept)
    test = page(Role.OPERATOR, incident="incident-1")
    text = html(next(button for button in test.button if button.label == label).click().run())
    assert (len(heard), "message 1 is kept" in text) == (1, True)
    next(button for button in test.button if button.label == label).click().run()
    assert len(heard) == 2, "a second click is sent"


def test_the_beginning_of_an_id_is_enough_and_an_unknown_one_leads_to_the_list(page):
    assert "Worker killed: worker 0 on node-a" in html(page(Role.VIEWER, incident="incid"))
    assert "the list" in html(page(Role.VIEWER, incident="nonsense"))
    assert "No incident is chosen" in html(page(Role.VIEWER))


def test_incidents_of_another_tenant_are_not_shown(page):
    text = html(page(Role.OPERATOR, tenant="other", incident="incident-1"))
    assert "of another tenant" in text
    assert "SIGKILL" not in text
    assert "Worker killed" not in html(page(Role.OPERATOR, "incidents", tenant="other"))


def test_the_list_puts_what_waits_before_what_is_newer(kept, page):
    waits(kept)
    kept.save_incident(an_incident(id="incident-2", cause="slow node", since=150.0, time=152.0), IncidentState.OPEN)
    text = html(page(Role.VIEWER, "incidents"))
    assert text.index("Waits for your decision") < text.index("Slow node")
    assert "Proposed: evict node" in text


def test_an_empty_list_says_what_to_do(kept, page):
    text = html(page(Role.VIEWER, "incidents", job="tenant/other/run"))
    assert "No incident so far" in text
    assert "eagle-eye drill" in text
