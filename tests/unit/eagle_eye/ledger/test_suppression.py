"""Silences, windows, breakers and notes: whom they mean, and what the ledger keeps of them."""

import pytest
from msgspec.structs import replace

from eagle_eye.ledger import Ledger
from eagle_eye.types import Breaker, IncidentNote, IncidentState, Silence, Window
from fakes.sample_values import JOB, an_incident

SILENCE = Silence(id="s1", person="ada", reason="benchmark", since=100.0, until=200.0, job="tenant/gpt")
WINDOW = Window(id="w1", person="ada", reason="new cables", since=100.0, until=200.0, nodes=("rack-1-*",), jobs=("tenant/gpt/*",))
BREAKER = Breaker(
    id="b1", job=JOB, action="evict_node", plan="p1", incident="incident-1", reason="50% of the throughput", since=100.0
)


@pytest.mark.parametrize(("pattern", "job", "meant"), [
    ("tenant/gpt", "tenant/gpt/run1", True),
    ("tenant/gpt/run1", "tenant/gpt/run1", True),
    ("tenant/*", "tenant/gpt/run1", True),
    ("*", "tenant/gpt/run1", True),
    ("tenant/gp", "tenant/gpt/run1", False),
    ("tenant/GPT", "tenant/gpt/run1", False),
])  # fmt: skip
def test_a_job_may_be_named_without_its_run(pattern, job, meant):
    assert replace(SILENCE, job=pattern).covers(job, (), "slow node") is meant


def test_a_silence_needs_all_of_its_patterns():
    narrow = replace(SILENCE, node="rack-1-*", cause="slow *")
    assert narrow.covers(JOB, ("rack-2-a", "rack-1-b"), "slow worker")
    assert not narrow.covers(JOB, ("rack-2-a",), "slow worker")
    assert not narrow.covers(JOB, (), "slow worker")
    assert not narrow.covers(JOB, ("rack-1-b",), "python hang")


def test_a_window_expects_faults_of_its_nodes_and_of_its_jobs():
    assert WINDOW.expects("other/job/1", "rack-1-7")
    assert WINDOW.expects(JOB, "rack-9-1")
    assert not WINDOW.expects("other/job/1", "rack-9-1")
    assert [WINDOW.open_at(time) for time in (99.9, 100.0, 199.9, 200.0)] == [False, True, True, False]


def test_what_is_over_is_kept_and_no_longer_in_force(ledger: Ledger):
    for suppression in (SILENCE, WINDOW, BREAKER):
        ledger.save_suppression(suppression)
    assert (ledger.silences(at=150.0), ledger.windows(at=150.0), ledger.breakers(at=150.0)) == ((SILENCE,), (WINDOW,), (BREAKER,))
    assert (ledger.silences(at=200.0), ledger.windows(at=200.0), ledger.breakers(at=1e12)) == ((), (), (BREAKER,))
    closed = replace(BREAKER, until=300.0, person="ada")
    ledger.save_suppression(closed)
    assert (ledger.breakers(at=300.0), ledger.breakers()) == ((), (closed,))
    assert ledger.silences() == (SILENCE,)


def test_notes_and_breakers_are_part_of_the_story(ledger: Ledger):
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    ledger.save_suppression(replace(BREAKER, until=130.0, person="ada"))
    ledger.save_suppression(replace(BREAKER, id="b2", incident="another", since=110.0))
    ledger.save_note(IncidentNote(incident="incident-1", person="bob", time=120.0, text="the cable was loose"))
    entries = [(moment.time, moment.what, moment.text) for moment in ledger.timeline("incident-1") if moment.what in ("note", "breaker")]
    assert entries == [
        (100.0, "breaker", f"opened for evict_node on {JOB}: 50% of the throughput"),
        (120.0, "note", "bob: the cable was loose"),
        (130.0, "breaker", "closed by ada"),
    ]
