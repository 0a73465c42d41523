"""Drivers: a transition as commands to a job's coordinator."""

import msgspec
import pytest

from eagle_eye.clock import FakeClock
from eagle_eye.errors import ConfigError, PermanentError, TemporaryError
from eagle_eye.protocols import Framework
from eagle_eye.types import Transition
from fakes.elastic_members import layout_of, member
from fakes.fake_commander import FakeCommander, SentCommand
from remediation.frameworks import FRAMEWORKS, ElasticWorkers, Torchrun, Transformers, driver
from remediation.frameworks.coordinator_driver import TransitionMode
from remediation.transition import plan_transition

JOB = "team/gpt/r1"


def transition(*nodes: str, launchers: tuple[str, ...] = (), speeds: dict[str, float] | None = None) -> Transition:
    """To one worker on each node named."""
    held = [member(number, node=node, step=3) for number, node in enumerate(nodes)]
    target = layout_of([(each.worker, each.node) for each in held], epoch=6)
    target = msgspec.structs.replace(target, launchers=dict.fromkeys(launchers or nodes, "127.0.0.1:1"), plan="p7", resume_step=40)
    return plan_transition(JOB, 6, target, held, micro_batches=16, segments=2, layer_bytes=[4], speeds=speeds)


def test_an_elastic_job_is_resized_in_place() -> None:
    commander = FakeCommander(epochs={JOB: 5})
    outcome = ElasticWorkers(commander=commander, clock=FakeClock()).apply(transition("a", "a", "b", launchers=("a", "b", "c")))
    assert (outcome.state, outcome.plan) == ("done", "p7")
    assert [(sent.action, sent.arguments) for sent in commander.sent] == [("resize", {"workers": {"a": 2, "b": 1, "c": 0}})]
    assert [step.state for step in outcome.progress] == ["intended", "done"]


def test_uneven_shares_become_speeds() -> None:
    commander = FakeCommander(epochs={JOB: 5})
    ElasticWorkers(commander=commander, clock=FakeClock()).apply(transition("a", "b", "c", speeds={"w1": 0.25}))
    assert commander.sent[1].action == "rebalance"
    speeds = commander.sent[1].arguments["speeds"]
    assert speeds["w1"] < 0.5 < speeds["w0"] <= 1


def test_a_script_restarts_with_whole_nodes_from_where_it_is_told() -> None:
    commander = FakeCommander(epochs={JOB: 5})
    outcome = Torchrun(commander=commander, clock=FakeClock()).apply(transition("a", launchers=("a", "b")))
    (sent,) = commander.sent
    assert (sent.action, sent.arguments["exclude"], sent.arguments["release"]) == ("restart", ["b"], ["a"])
    assert sent.arguments["resume_step"] == 40
    assert outcome.state == "done"


def test_a_job_that_went_on_is_left_alone_and_a_refusal_is_told() -> None:
    later = FakeCommander(epochs={JOB: 9})
    outcome = Torchrun(commander=later, clock=FakeClock()).apply(transition("a"))
    assert (outcome.state, later.sent) == ("stale", [])
    refusing = FakeCommander(epochs={JOB: 5}, answers={"resize": PermanentError("3 workers, the job needs 4")})
    outcome = ElasticWorkers(commander=refusing, clock=FakeClock()).apply(transition("a"))
    assert (outcome.state, outcome.detail) == ("failed", "3 workers, the job needs 4")


def test_what_was_done_is_not_done_again_when_nobody_answered() -> None:
    silent = [True]

    def answer(sent: SentCommand) -> dict[str, int]:
        if silent.pop() if silent else False:
            raise TemporaryError("the coordinator cannot be reached")
        return {"epoch": 7}

    commander = FakeCommander(epochs={JOB: 5}, answers={"rebalance": answer})
    job = ElasticWorkers(commander=commander, clock=FakeClock())
    wanted = transition("a", "b", speeds={"w1": 0.25})
    with pytest.raises(TemporaryError):
        job.apply(wanted)
    assert job.apply(wanted).state == "done"
    assert [sent.action for sent in commander.sent] == ["resize", "rebalance"]


def test_a_trainer_refuses_a_part_of_a_model() -> None:
    wanted = transition("a", "b")
    places = tuple(msgspec.structs.replace(place, pp=place.rank) for place in wanted.target.placements)
    wanted = msgspec.structs.replace(wanted, target=msgspec.structs.replace(wanted.target, placements=places))
    with pytest.raises(PermanentError, match="holds all of it"):
        Transformers(commander=FakeCommander(), clock=FakeClock()).apply(wanted)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_each_says_what_it_can(name: str) -> None:
    made = driver(name)(commander=FakeCommander(), clock=FakeClock())
    assert isinstance(made, Framework)
    assert made.mode is (TransitionMode.RESTART if name == "torchrun" else TransitionMode.IN_PLACE)


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(ConfigError, match="torchrun suits any script"):
        driver("jax")
