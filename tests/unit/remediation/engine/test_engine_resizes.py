"""Resizes of the engine's own initiative: how many, and what becomes of one whose answer is lost."""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from eagle_eye.errors import TemporaryError
from eagle_eye.ledger import Ledger
from eagle_eye.rpc.control_messages import BreakerCommand
from eagle_eye.types import Mode, Plan
from fakes.fake_commander import SentCommand
from fakes.fake_elastic_job import ElasticJob, commands
from fakes.live_cluster import Cluster


@pytest.fixture
def make(ledger_path: Path) -> Iterator[Callable[..., Cluster]]:
    ledger = Ledger.open(ledger_path)
    yield lambda mode=Mode.AUTO, **policy: Cluster(ledger, mode, **policy)
    ledger.close()


# --- a limit of its own ----------------------------------------------------------------------------------------------------------


def resizes(world: Cluster) -> list[Plan]:
    return [plan for plan in world.ledger.plans(limit=1000) if plan.action == "resize" and plan.undoes]


def released_in_vain(world: Cluster) -> None:
    """The light job gave a worker, the node was released, and the light job cannot start one there."""
    world.kill(world.heavy)
    world.run(20)
    world.light.refuses = True
    world.engine.release("n1", "ada")
    world.run(140)


def test_one_release_does_not_make_one_resize_after_the_other(make):
    world = make()
    released_in_vain(world)
    assert len(resizes(world)) == world.settings.restore_attempts
    begun = sorted(plan.made for plan in resizes(world))
    assert [later - earlier for earlier, later in pairwise(begun)] == pytest.approx([5, 10, 20, 40], abs=0.5)
    [breaker] = world.ledger.breakers(at=world.clock.now())
    assert (breaker.job, breaker.action) == ("t/light/l1", "resize")
    assert "5 resizes in a row did not give the returned workers to jobs; the last one: t/light/l1 cannot start a worker" in breaker.reason
    told = [plan.reason for plan in world.ledger.plans(incident="i1", limit=100) if plan.action == "notify"]
    assert any(f"eagle-eye breaker close {breaker.id}" in reason for reason in told)


def test_the_workers_are_given_back_once_an_operator_has_closed_the_breaker(make):
    world = make()
    released_in_vain(world)
    world.light.refuses = False
    world.run(30)
    assert world.light.workers_per_node == {"n1": 2}
    [breaker] = world.ledger.breakers(at=world.clock.now())
    world.engine.order(BreakerCommand(id=breaker.id, person="ada"))
    world.run(10)
    assert world.light.workers_per_node == {"n1": 3}


def test_many_releases_that_each_help_open_no_breaker(make):
    world = make()
    for number in range(8):
        world.kill(world.light, name=f"i{number}")
        world.run(15)
        world.engine.release("n1", "ada")
        world.run(15)
        assert world.light.workers_per_node == {"n1": 3}
    assert world.ledger.breakers(at=world.clock.now()) == ()


# --- a lost answer ---------------------------------------------------------------------------------------------------------------


def sizes(world: Cluster) -> tuple[int, int]:
    return sum(world.heavy.workers_per_node.values()), sum(world.light.workers_per_node.values())


def lose(world: Cluster, job: ElasticJob, *workers: int) -> None:
    """The answers of a job to its next resizes to so many workers are lost."""
    left = list(workers)

    def loses(sent: SentCommand) -> bool:
        mine = sent.job == job.name and sum(sent.arguments.get("workers", {}).values()) in left
        if mine:
            left.remove(sum(sent.arguments["workers"].values()))
        return mine

    world.commander.loses = loses


@pytest.mark.parametrize("lost", [("light", 2), ("heavy", 3), ("light", 2, 3), ("heavy", 3, 2)])
def test_a_node_never_runs_more_workers_than_it_has_room_for(make, lost):
    world = make()
    job, *workers = lost
    lose(world, world.heavy if job == "heavy" else world.light, *workers)
    world.kill(world.heavy)
    most = 0
    for _ in range(400):
        world.run(0.1)
        most = max(most, sum(sizes(world)))
    assert most <= 5, "one of six died"
    assert sum(sizes(world)) == 5, "and nobody has lost a worker for good"


def test_an_answer_that_is_lost_while_workers_are_given_back_gives_them_back_all_the_same(make):
    world = make()
    world.heavy.refuses = True
    lose(world, world.light, 3)
    world.kill(world.heavy)
    world.run(20)
    assert sizes(world) == (2, 3)
    assert world.outcome(world.plan()).state == "failed"
    assert world.outcome(world.plan("undo")).state == "done"


def test_a_leader_that_dies_while_workers_are_given_back_does_not_have_them_given_again(make):
    world = make()
    world.heavy.refuses = True
    world.commander.loses = lambda sent: sent.job == world.light.name and sent.epoch == 0 and world.die()
    world.kill(world.heavy)
    world.run(2)
    assert not world.leads
    world.heavy.refuses, world.leads = False, True
    world.commander.loses = lambda _sent: False
    world.next_leader()
    world.run(20)
    assert sum(sizes(world)) == 5
    assert ("resize", "t/heavy/h1", {"n1": 3}) not in world.sent, "its donor would have repeated that it had given"


def test_a_resize_that_is_never_answered_and_expires_is_taken_back(make):
    world = make(expires_s=6.0)
    resize = world.light.resize
    gave: list[int] = []

    def gives_once(sent: SentCommand) -> dict[str, object]:
        if sent.job == world.light.name and gave:
            raise TemporaryError("the coordinator has no session", delay=0.5)
        gave.append(1)
        return resize(sent) if sent.job == world.light.name else world.heavy.resize(sent)

    world.commander.answers["resize"] = gives_once
    world.commander.loses = lambda sent: world.commander._answered.clear() or True  # a new coordinator knows nothing of it
    world.kill(world.heavy)
    world.run(9)
    assert sizes(world) == (2, 2)
    world.commander.answers["resize"] = commands(world.heavy, world.light)["resize"]
    world.commander.loses = lambda _sent: False
    world.run(10)
    assert sizes(world) == (2, 3)
