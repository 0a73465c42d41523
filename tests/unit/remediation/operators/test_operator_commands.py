"""What a person orders: silences, planned work, notes; what they stop, and what they say when they cannot be meant."""

import pytest

from eagle_eye.errors import ControlError
from eagle_eye.rpc.control_messages import BreakerCommand, MaintenanceCommand, NoteCommand, SilenceCommand
from eagle_eye.types import Entity, Hold, Kind, Severity

WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")


def broken_part(world, name="i1"):
    died = world.job.die(WORKER.name)
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=died, name=name)


def held_by(world, incident="i1") -> set[str]:
    return {kept.verdict.guard for kept in world.ledger.verdicts(incident=incident) if isinstance(kept.verdict, Hold)}


def silence(world, **more):
    return world.engine.order(SilenceCommand(**{"person": "ada", "job": "tenant/gpt", "seconds": 30.0, "reason": "benchmark", **more}))


def maintain(world, **more):
    return world.engine.order(MaintenanceCommand(**{"person": "ada", "nodes": ("node-b",), "seconds": 30.0, "reason": "cables", **more}))


# --- silence ---------------------------------------------------------------------------------------------------------


def test_a_silence_holds_every_plan_until_it_is_over_and_then_it_is_done(make_world):
    world = make_world()
    silence(world)
    broken_part(world)
    world.run(25)
    assert world.sent == []
    assert held_by(world) == {"silence"}
    world.run(10)
    assert world.sent == ["restart"]


def test_a_silence_may_be_ended_before_its_time(make_world):
    world = make_world()
    made = silence(world, seconds=3600.0)
    broken_part(world)
    world.run(5)
    assert world.sent == []
    world.engine.order(SilenceCommand(person="bob", id=made["id"][:6]))
    world.run(3)
    assert world.sent == ["restart"]
    [over] = world.ledger.silences()
    assert over.ended_by == "bob"


def test_a_silence_of_another_cause_stops_nothing(make_world):
    world = make_world()
    silence(world, cause="slow *")
    broken_part(world)
    world.run(5)
    assert world.sent == ["restart"]


def test_what_the_job_does_to_itself_is_not_silenced(make_world):
    world = make_world()
    silence(world)
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(5)
    assert world.sent == ["dump", "restart"]


@pytest.mark.parametrize(("order", "said"), [
    ({"job": "tenant/gpd"}, r"there is no job 'tenant/gpd'; there are: tenant/gpt/run1.*--ahead"),
    ({"node": "node-x"}, r"there is no node 'node-x'; there are: node-a, node-b"),
    ({"cause": "slow nod"}, "no repair exists for a cause like 'slow nod'; causes: collective mismatch, collective timeout"),
    ({"seconds": 0.0}, "give a duration, e.g. --for 2h"),
    ({"reason": " "}, "give a reason"),
    ({"job": ""}, "name a job, a node or a cause"),
    ({"person": ""}, "needs the name of the operator"),
    ({"id": "nothing"}, "nothing of the id 'nothing' is in force; there are: none"),
])  # fmt: skip
def test_a_silence_that_cannot_be_meant_is_told_what_is_wrong(make_world, order, said):
    world = make_world()
    with pytest.raises(ControlError, match=said):
        silence(world, **order)
    assert world.ledger.silences() == ()


def test_a_job_that_has_yet_to_begin_can_be_silenced_ahead(make_world):
    world = make_world()
    silence(world, job="tenant/tomorrow", ahead=True)
    assert world.ledger.silences()[0].job == "tenant/tomorrow"


# --- planned work ----------------------------------------------------------------------------------------------------


def test_a_fault_of_a_node_that_is_worked_on_is_called_expected(make_world):
    world = make_world(receiver="http://127.0.0.1:9/hook")
    maintain(world)
    for number, node in enumerate(("node-b", "node-a")):
        world.find("unknown", Entity(kind=Kind.NODE, name=node), name=f"i{number}", severity=Severity.SEV1)
    told = [world.ledger.plans(incident=name)[0].reason for name in ("i0", "i1")]
    assert told == ["no action is taken: no repair is known for this cause (expected: ada works on node-b: cables)", "no action is taken: no repair is known for this cause"]


def test_within_a_window_nobody_is_isolated(make_world):
    world = make_world()
    maintain(world)
    broken_part(world)
    world.run(20)
    assert world.sent == []
    assert held_by(world) == {"maintenance"}
    world.run(15)
    assert world.sent == ["restart"]


def test_work_that_has_yet_to_begin_stops_nothing_and_is_listed(make_world):
    world = make_world()
    maintain(world, begins_in_s=60.0)
    broken_part(world)
    world.run(5)
    assert world.sent == ["restart"]
    assert [window.reason for window in world.engine.status()["windows"]] == ["cables"]


def test_work_may_be_done_before_its_time(make_world):
    world = make_world()
    made = maintain(world, seconds=3600.0)
    broken_part(world)
    world.run(5)
    world.engine.order(MaintenanceCommand(person="ada", id=made["id"]))
    world.run(3)
    assert world.sent == ["restart"]


def test_work_on_nodes_that_nobody_knows_is_refused(make_world):
    with pytest.raises(ControlError, match="there is no node 'rack-9-'"):
        maintain(make_world(), nodes=("node-b", "rack-9-"))


# --- notes and breakers ----------------------------------------------------------------------------------------------


def test_a_note_becomes_part_of_the_story(make_world):
    world = make_world()
    broken_part(world)
    world.engine.order(NoteCommand(incident="i", person="ada", text=" the GPU was warm "))
    assert ("note", "ada: the GPU was warm") in [(moment.what, moment.text) for moment in world.ledger.timeline("i1")]
    with pytest.raises(ControlError, match="no incidents begin with 'x'"):
        world.engine.order(NoteCommand(incident="x", person="ada", text="what?"))
    with pytest.raises(ControlError, match="needs a text"):
        world.engine.order(NoteCommand(incident="i1", person="ada", text=" "))


def test_a_breaker_that_is_not_open_cannot_be_closed(make_world):
    with pytest.raises(ControlError, match="nothing of the id 'b' is open; there are: none"):
        make_world().engine.order(BreakerCommand(id="b", person="ada"))


# --- what is counted -------------------------------------------------------------------------------------------------


def test_every_kind_of_verdict_is_counted_per_guard_once_per_plan(make_world):
    world = make_world()
    silence(world)
    broken_part(world)
    world.run(20)
    counts = world.engine.guard_counts()
    assert counts["silence", "hold"] == 1
    assert counts["approval", "allow"] == 1
    assert ("silence", "allow") not in counts
    world.run(15)
    assert world.engine.guard_counts()["silence", "allow"] == 1
    assert world.engine.status()["verdicts"]["silence hold"] == 1
