"""A hang that comes back after a restart: two nodes exchange their ranks, and the result decides whether a node is evicted."""

from eagle_eye.types import Entity, IncidentState, Kind

WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")


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


def test_ranks_are_not_exchanged_where_no_other_node_has_as_many_workers(make_world):
    world = make_world(relapse_s=60.0)
    world.job.nodes = ("node-b",)
    world.job._begin("node lost")
    for number in range(2):
        world.job.stalled = True
        world.find("python hang", WORKER, name=f"i{number}")
        world.run(12)
    assert all(not sent.arguments.get("swap") for sent in world.commander.sent)
