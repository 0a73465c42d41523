"""What every guard and every action must keep to, whoever wrote it: found by name, built, asked, run."""

import copy
import dataclasses
import itertools
import typing

import msgspec
import pytest

from eagle_eye.clock import FakeClock
from eagle_eye.errors import PermanentError, TemporaryError
from eagle_eye.ledger import Ledger
from eagle_eye.plugins import available, build, describe, load
from eagle_eye.types import (
    Allow,
    Approval,
    Breaker,
    Hold,
    Incident,
    IncidentState,
    Layout,
    Mode,
    Outcome,
    Plan,
    RankPlacement,
    Refuse,
    Severity,
    Silence,
    Situation,
    Target,
    Telemetry,
    Topology,
    Window,
)
from fakes.fake_commander import FakeCommander
from remediation.guards import POLICY

NOW = 1_700_000_000.0
JOB = "tenant/gpt/run1"
INCIDENT = Incident(
    id="i1", revision=1, job=JOB, cause="slow node", culprits=(), severity=Severity.SEV1, findings=(), evidence=(),
    since=NOW - 5, time=NOW,
)
GUARDS = available("remediation.guards")
ACTIONS = available("remediation.actions")
OWN_OPTIONS = {"notify": {"url": "http://127.0.0.1:9/hook"}}


def plan(name="p1", *, action="evict_node", targets=1) -> Plan:
    aims = tuple(
        Target(
            job=f"{JOB}{number or ''}", epoch=3, basis="b", exclude=("node-b",), workers=("run1/node-b/0",), resume_step=10,
            skip=(12,),
        )
        for number in range(targets)
    )
    return Plan(
        id=name, incident="i1", action=action, targets=aims, made=NOW, expires=NOW + 60, severity=Severity.SEV1,
        reason="slow node",
    )


def situations():
    """A healthy and a crowded one, in every mode."""
    other = plan("p0", action="roll_back")
    outcome = Outcome(plan="p0", incident="i0", action="roll_back", state="done", time=NOW - 60)
    word = Approval(digest=plan().digest, person="Ada", approved=True, time=NOW - 1, expires=NOW + 60)
    empty = {"outcomes": (), "running": (), "plans": {}, "approvals": ()}
    crowded = {"outcomes": (outcome,), "running": (other,), "plans": {"p0": other}, "approvals": (word,), **in_the_way()}
    for mode, more in itertools.product(Mode, (empty, crowded)):
        yield Situation(mode=mode, incident=INCIDENT, open=(INCIDENT,), nodes=2, now=NOW, **more)


def in_the_way():
    """Whatever people, breakers and telemetry can put in the way of a plan."""
    said = {"person": "Ada", "reason": "benchmark", "since": NOW - 60, "until": NOW + 60}
    breaker = Breaker(id="b", job=JOB, action="evict_node", plan="p0", incident="i0", reason="50%", since=NOW - 60)
    places = tuple(RankPlacement(worker=f"run1/{node}/0", node=node, rank=rank, local_rank=0) for rank, node in enumerate(("node-a", "node-b")))
    layout = Layout(job=JOB, epoch=3, time=NOW - 60, coordinator="node-a", launchers={"node-a": "", "node-b": ""}, placements=places)
    return {
        "silences": (Silence(id="s", **said),), "windows": (Window(id="w", nodes=("*",), **said),), "breakers": (breaker,),
        "layouts": {JOB: layout}, "nodes_min": {JOB: 2}, "telemetry": {"node-b": Telemetry(node="node-b", heard=NOW - 60, skew_s=9.0)},
        "topology": Topology(nodes={"node-a": "leaf", "node-b": "leaf"}), "settled": NOW + 1,
    }  # fmt: skip


def flags(cls):
    """Every combination of the values of a plugin's flags."""
    names = [option.name for option in describe(cls) if option.type == "bool"]
    for values in itertools.product((False, True), repeat=len(names)):
        yield dict(zip(names, values, strict=True))


# --- guards ----------------------------------------------------------------------------------------------------------


def test_the_written_out_order_names_guards_alone_and_each_once():
    assert set(POLICY) <= set(GUARDS)
    assert len(POLICY) == len(set(POLICY))


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_is_frozen_and_every_option_has_a_default(name):
    cls = load("remediation.guards", name)
    assert cls.__dataclass_params__.frozen
    assert build(cls, {}, {}) == build(cls, {}, {})


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_is_pure_and_gives_its_name_and_reason(name):
    cls = load("remediation.guards", name)
    for options in flags(cls):
        for asked in situations():
            before = copy.deepcopy((plan(), asked))
            verdict = build(cls, options, {})(plan(), asked)
            assert isinstance(verdict, Allow | Hold | Refuse)
            assert verdict.guard == name
            assert verdict.reason
            assert build(cls, options, {})(plan(), asked) == verdict
            assert (plan(), asked) == before


@pytest.mark.parametrize("name", GUARDS)
def test_a_verdict_can_be_written_down_and_read(name):
    verdict = build(load("remediation.guards", name), {}, {})(plan(), next(situations()))
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Allow | Hold | Refuse) == verdict


# --- actions ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def commander():
    return FakeCommander(answers={"dump": {"run1/node-b/0": {"stack": "sleep", "flight_recorder": None}}})


@pytest.fixture
def services(ledger_path, commander):
    ledger = Ledger.open(ledger_path)
    ledger.save_incident(INCIDENT, IncidentState.OPEN)
    yield {"commander": commander, "clock": FakeClock(NOW), "ledger": ledger}
    ledger.close()


def make(name, services, options=None):
    return build(load("remediation.actions", name), {**OWN_OPTIONS.get(name, {}), **(options or {})}, services)


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_is_frozen_and_is_handed_its_services_by_name(name, services):
    cls = load("remediation.actions", name)
    assert cls.__dataclass_params__.frozen
    options = {option.name for option in describe(cls)}
    handed = {field.name for field in dataclasses.fields(cls)} - options
    assert handed <= set(services)
    assert typing.get_type_hints(cls)
    make(name, services)


@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.parametrize("targets", [1, 2])
def test_every_step_is_intended_before_it_is_done(name, targets, services):
    for options in flags(load("remediation.actions", name)):
        steps = list(make(name, services, options).run(plan(f"p{options}", action=name, targets=targets)))
        assert steps
        assert [step.state for step in steps] == ["intended", "done"] * (len(steps) // 2)
        for before, after in zip(steps[::2], steps[1::2], strict=True):
            assert before.step == after.step
            assert before.time <= after.time


@pytest.mark.parametrize("name", ACTIONS)
def test_nothing_is_done_before_it_was_said(name, services, commander):
    steps = make(name, services).run(plan(action=name))
    assert commander.sent == []
    assert next(iter(steps)).state == "intended"
    assert commander.sent == []
    assert services["ledger"].alert("i1") is None
    assert services["ledger"].cordoned() == ()


@pytest.mark.parametrize("name", ACTIONS)
def test_doing_it_again_does_nothing_new(name, services, commander):
    action = make(name, services)
    first = list(action.run(plan(action=name)))
    sent, cordons = list(commander.sent), services["ledger"].cordoned()
    assert [step.step for step in action.run(plan(action=name))] == [step.step for step in first]
    assert commander.sent == sent
    assert services["ledger"].cordoned() == cordons


@pytest.mark.parametrize("error", [TemporaryError("not now", delay=2.0), PermanentError("never")])
@pytest.mark.parametrize("name", [name for name in ACTIONS if name != "notify"])
def test_what_the_coordinator_answers_is_not_hidden(name, error, services, commander):
    for action in ("restart", "reattempt", "dump", "release", "resize", "rebalance"):
        commander.answers[action] = error
    with pytest.raises(type(error)):
        list(make(name, services).run(plan(action=name)))


@pytest.mark.parametrize("name", [name for name in ACTIONS if name != "notify"])
def test_every_command_is_fenced_and_bounded_in_time(name, services, commander):
    list(make(name, services).run(plan(action=name)))
    assert commander.sent
    for sent in commander.sent:
        assert (sent.plan, sent.epoch, sent.job) == ("p1", 3, JOB)
        assert 0 < sent.timeout <= 60
        assert sent.step
    assert len({sent.step for sent in commander.sent}) == len(commander.sent)
