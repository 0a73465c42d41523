"""A hang that comes back after a restart: two nodes exchange their ranks, and the result decides whether a node is evicted."""

from msgspec.structs import replace

from eagle_eye.types import Culprit, Entity, IncidentState, Kind
from fakes.synthetic_job import incident

WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")
NODE = Entity(kind=Kind.NODE, name="node-b")


def letters(world, incident):
    """What the operators were notified of."""
    return [plan.reason for plan in world.ledger.plans(incident=incident) if plan.action == "notify"]


def test_the_same_hang_again_leaves_the_node_and_another_one_does_not(make_world):
    world = make_world(relapse_s=60.0)
    for number, culprit in enumerate((WORKER, Entity(kind=Kind.WORKER, name="run1/node-a/0"), WORKER, WORKER)):
        world.job.stalled = True
        world.find("python hang", culprit, name=f"i{number}")
        world.run(12)
    restarts = [sent.arguments for sent in world.commander.sent if sent.action == "restart"]
    assert [sent["exclude"] for sent in restarts] == [[], [], [], ["node-b"]]
    assert [sent.get("swap", []) for sent in restarts] == [[], [], ["node-a", "node-b"], []]
    assert [cordon.node for cordon in world.ledger.cordoned()] == ["node-b"]
    [evicted] = [plan for plan in world.ledger.plans(incident="i3") if plan.action == "evict_node"]
    assert evicted.reason == "python hang stayed on its node when node-a and node-b exchanged their ranks: it is the node's"


def test_twin_a_hang_that_follows_its_rank_to_another_node_evicts_nobody(make_world):
    """The program or its data: after the ranks of two nodes were exchanged the same rank hangs, on the other node."""
    world = make_world(relapse_s=60.0, receiver="http://127.0.0.1:1/")
    moved = Entity(kind=Kind.WORKER, name=WORKER.name.replace("node-b", "node-a"))
    for number, (culprit, seconds) in enumerate([(WORKER, 12), (WORKER, 2.5), (moved, 12), (moved, 12)]):
        world.job.stalled = True
        world.find("python hang", culprit, name=f"i{number}")
        world.run(seconds)
    assert [sent.arguments["exclude"] for sent in world.commander.sent if sent.action == "restart"] == [[], [], []]
    assert world.ledger.cordoned() == ()
    assert world.state("i1") is IncidentState.FAILED
    assert "the fault moved to worker run1/node-a/1" in world.outcome("restart_worker", "i1").detail
    assert world.state("i3") is IncidentState.FAILED
    assert any("the fault followed the ranks when node-a and node-b exchanged them: it is the program's or its data's" in news for news in letters(world, "i3"))


def test_twin_a_launcher_that_only_restarts_proves_nothing_and_evicts_nobody(make_world):
    """An older one, which does not know the rank swap."""
    world = make_world(relapse_s=60.0, receiver="http://127.0.0.1:1/")
    restart = world.commander.answers["restart"]
    world.commander.answers["restart"] = lambda sent: (sent.arguments.pop("swap", None) and None) or restart(sent)
    for number in range(3):
        world.job.stalled = True
        world.find("python hang", WORKER, name=f"i{number}")
        world.run(12)
    assert world.ledger.cordoned() == ()
    assert any("node-a and node-b were to exchange their ranks and have not" in news for news in letters(world, "i2"))


def test_where_no_ranks_can_be_exchanged_nobody_is_evicted_on_a_guess(make_world):
    """Two nodes are accused together: one of them has nobody to exchange with that is not accused, too."""
    world = make_world(relapse_s=60.0, receiver="http://127.0.0.1:1/")
    for number in range(2):
        world.job.stalled = True
        found = incident(world.job, "python hang", WORKER, name=f"i{number}")
        other = Culprit(entity=Entity(kind=Kind.WORKER, name="run1/node-a/1"), confidence=0.9)
        world.engine.receive_incidents([replace(found, culprits=(*found.culprits, other))])
        world.run(12)
    assert [sent.arguments.get("swap", []) for sent in world.commander.sent if sent.action == "restart"] == [[]]
    assert world.ledger.cordoned() == ()
    assert any("no node is evicted on a guess" in news for news in letters(world, "i1"))


def test_a_slow_node_that_stays_slow_with_other_ranks_is_evicted(make_world):
    world = make_world()
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    for name in ("i1", "i2"):
        world.find("slow node", NODE, name=name, since=world.clock.now() - 1)
        world.run(12)
    assert [(sent.arguments.get("swap", []), sent.arguments["exclude"]) for sent in world.commander.sent] == [(["node-a", "node-b"], []), ([], ["node-b"])]


def test_twin_more_work_that_follows_its_ranks_to_another_node_evicts_nobody(make_world):
    """A script that does not log its tokens, and whose last ranks got longer sequences."""
    world = make_world()
    world.job.slow = lambda nodes: 6.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 1)
    world.run(12)
    for name in ("i2", "i3"):
        world.find("slow node", Entity(kind=Kind.NODE, name="node-a"), name=name, since=world.clock.now() - 1)
        world.run(40)
    assert [sent.arguments["exclude"] for sent in world.commander.sent if sent.action == "restart" and sent.arguments["exclude"]] == []
    assert world.ledger.cordoned() == ()


def test_twin_a_worker_that_is_stopped_again_and_again_costs_no_node(make_world):
    """A scheduler suspends the job, or an operator looks at it."""
    world = make_world(relapse_s=60.0)
    world.job.resumed = False
    for number in range(3):
        world.job.stalled = True
        world.find("worker stopped", WORKER, name=f"i{number}")
        world.run(12)
    assert [sent.arguments["exclude"] for sent in world.commander.sent if sent.action == "restart"] == [[]]
    assert world.ledger.cordoned() == ()
