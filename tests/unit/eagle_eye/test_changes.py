"""What counts as a change, and who is believed that tells one."""

import doctest

import pytest

from eagle_eye import changes
from eagle_eye.changes import (
    CLOCKS_S,
    JOB_CHANGED,
    KEPT_S,
    LONGEST,
    NODE_CHANGED,
    ValueDifference,
    change_attributes,
    change_told,
    differences,
)
from eagle_eye.types import SNAPSHOT_EVENTS, Entity, Event, Kind

JOB, NOW = "team/gpt/r1", 1_700_000_000.0
NODE, RUN = Entity(kind=Kind.NODE, name="n1"), Entity(kind=Kind.JOB, name=JOB)


def told(name: str = NODE_CHANGED, entity: Entity = NODE, **attributes: str) -> Event:
    given = change_attributes(ValueDifference("kernel", "6.1", "6.8"), known=NOW - 600.0, seen=NOW) | attributes
    return Event(name=name, job=JOB, entity=entity, time=NOW, node="n1", incarnation="i", number=1, attributes=given)


def test_the_examples_in_the_texts_are_true() -> None:
    assert doctest.testmod(changes).failed == 0


def test_the_leader_gets_both() -> None:
    assert {NODE_CHANGED, JOB_CHANGED} <= SNAPSHOT_EVENTS


def test_what_one_side_alone_has_differs_only_where_both_were_read_whole() -> None:
    assert differences({"a": "1"}, {"b": "2"}) == []
    assert differences({"a": "1"}, {"b": "2"}, absent=True) == [ValueDifference("a", "1", ""), ValueDifference("b", "", "2")]


def test_the_change_of_a_node_is_one_for_all_jobs_and_that_of_a_job_belongs_to_all_of_its_runs() -> None:
    of_node, of_job = change_told(told()), change_told(told(JOB_CHANGED, RUN))
    assert of_node is not None
    assert of_job is not None
    assert (of_node.entity, of_node.what, of_node.before, of_node.after, of_node.known, of_node.seen) == (NODE, "kernel", "6.1", "6.8", NOW - 600.0, NOW)
    assert (of_job.entity.name, of_job.job) == ("team/gpt", JOB)
    other = change_told(Event(name=NODE_CHANGED, job="team/bert/7", entity=NODE, time=NOW, node="n1", incarnation="i", number=9, attributes=told().attributes))
    assert other is not None
    assert other.id == of_node.id


@pytest.mark.parametrize(
    "event",
    [
        told(entity=Entity(kind=Kind.NODE, name="n2")),
        told(JOB_CHANGED, Entity(kind=Kind.JOB, name="other/gpt/r1")),
        told(JOB_CHANGED),
        told(NODE_CHANGED, RUN),
        told("exit"),
        told(seen=str(NOW + 2 * CLOCKS_S)),
        told(seen=str(NOW - 3 * KEPT_S), known="5"),
        told(known=str(NOW + 1.0)),
        told(seen="nan"),
        told(what=""),
        told(after="6.1"),
        told(after="x" * (LONGEST + 1)),
        told(after="\0"),
    ],
)
def test_twin_of_another_node_or_job_or_what_cannot_be_is_not_believed(event: Event) -> None:
    assert change_told(event) is None


def test_no_secret_leaves_the_node() -> None:
    attributes = change_attributes(ValueDifference("command", "--api-token abc", "--api-token " + "x" * 1000), known=0.0, seen=1.0)
    assert (attributes["before"], len(attributes["after"]) <= LONGEST) == ("--api-token [redacted]", True)
    assert "xxx" not in attributes["after"]
