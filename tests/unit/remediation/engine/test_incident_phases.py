"""The state machine of the engine: every phase has handlers, every edge is listed once, and the drawing in the docs shows them."""

import re
from pathlib import Path

import pytest

from remediation.engine.incident_loop import HANDLERS
from remediation.engine.incident_phase import (
    DIRECT,
    EDGES,
    PLANNED,
    PLANNING,
    Due,
    IncidentFact,
    IncidentPhase,
    JobEnded,
    Revised,
    Withdrawn,
)

DOC = Path(__file__).resolve().parents[4] / "docs" / "architecture.md"
OPEN = set(IncidentPhase) - {IncidentPhase.NEEDS_OPERATOR, IncidentPhase.ENDED}


def drawn_edges() -> set[tuple[str, str]]:
    """Planning is drawn as a choice, whose ways out are the same from wherever it began."""
    edges = {("planning", phase.name.lower()) for phase in PLANNED} | {(phase.name.lower(), "planning") for phase in PLANNING}
    return edges | {(phase.name.lower(), follower.name.lower()) for phase, followers in DIRECT.items() for follower in followers}


@pytest.mark.parametrize("phase", IncidentPhase)
def test_every_phase_has_handlers_and_edges(phase):
    assert HANDLERS[phase]
    assert EDGES[phase]
    assert set(HANDLERS[phase]) <= set(IncidentFact.__args__)


def test_every_phase_is_reached_and_every_fact_is_handled():
    assert set().union(*EDGES.values()) == set(IncidentPhase)
    assert {fact for facts in HANDLERS.values() for fact in facts} == set(IncidentFact.__args__)


def test_what_ends_a_job_ends_every_open_incident():
    assert {phase for phase in IncidentPhase if JobEnded in HANDLERS[phase]} == OPEN | {IncidentPhase.NEEDS_OPERATOR}


def test_nothing_is_due_while_an_action_or_an_operator_is_waited_for():
    due = {phase for phase in IncidentPhase if Due in HANDLERS[phase]}
    assert due == {IncidentPhase.SELF_HEALING, IncidentPhase.SETTLING, IncidentPhase.HELD, IncidentPhase.RETRYING}
    assert {phase for phase in IncidentPhase if Withdrawn in HANDLERS[phase]} == due | {IncidentPhase.EXECUTING, IncidentPhase.NEEDS_OPERATOR}
    assert {phase for phase in IncidentPhase if Revised in HANDLERS[phase]} == set(IncidentPhase) - OPEN


def test_the_drawing_shows_the_edges():
    section = re.search(r"^#+ The engine\n(.*?)(?=^#+ |\Z)", DOC.read_text(), re.MULTILINE | re.DOTALL)
    drawing = re.search(r"```mermaid\nstateDiagram-v2\n(.*?)```", section[1], re.DOTALL) if section is not None else None
    assert drawing is not None
    arrows = re.findall(r"^\s*(\w+) --> (\w+)", drawing[1], re.MULTILINE)
    assert set(arrows) == drawn_edges()
