"""An epoch that begins at the end of a step is not begun where nobody comes to that end."""

from fakes.elastic_coordinator import Job, only
from remediation.launcher.coordinator.coordinator import JobPhase
from remediation.launcher.coordinator.coordinator_effects import CommandResult, Prepare, RegroupWorkers


def with_a_death(nodes: int = 2, slots: int = 2) -> Job:
    """One worker has died, and the others have gone on in place; its successor is on its way."""
    job = Job(nodes=nodes, slots=slots).running()
    job.coordinator.server_is(True)  # half of the launchers may ask it to go on
    job.agree(job.die("r/n0/1"))
    return job


def test_who_joins_while_a_launcher_is_away_is_taken_in_when_it_is_known_what_was_lost() -> None:
    """The launcher was killed before it heard of the epoch: its workers are gone, and those that are left would wait for them in the middle of a step."""
    job = with_a_death()
    job.coordinator.left("n1")
    assert only(job.enter("r/n0/1"), Prepare) == []
    assert job.coordinator.phase is JobPhase.RUNNING
    back = job.join("n1", incarnation="c")
    assert [each.soft for each in only(back, Prepare)] == [()], "nobody waits for the end of that step"
    assert only(job.agree(back), RegroupWorkers)[0].layout.workers == ("r/n0/0", "r/n0/1")


def test_twin_a_launcher_that_comes_back_as_it_was_costs_no_step() -> None:
    job = with_a_death()
    job.coordinator.left("n1")
    job.enter("r/n0/1")
    job.join("n1", last=job.layout, elastic=tuple(job.join_request(f"r/n1/{slot}") for slot in (0, 1)))
    soft = job.pass_time(10.0)
    assert only(soft, Prepare)[0].soft == ("r/n0/0", "r/n1/0", "r/n1/1")
    assert only(job.agree(soft), RegroupWorkers)[0].layout.workers == ("r/n0/0", "r/n0/1", "r/n1/0", "r/n1/1")


def test_who_joins_while_connections_are_broken_is_taken_in_with_the_repair() -> None:
    job = with_a_death(nodes=1, slots=3)
    job.coordinator.broken("r/n0/0", job.layout.epoch)
    assert only(job.enter("r/n0/1"), Prepare) == []
    repair = job.pass_time(10.0)
    assert [each.soft for each in only(repair, Prepare)] == [()]
    assert only(job.agree(repair), RegroupWorkers)[0].layout.workers == ("r/n0/0", "r/n0/1", "r/n0/2")


def test_connections_that_break_while_the_end_of_a_step_is_waited_for_are_mended_whoever_joins_meanwhile() -> None:
    job = with_a_death()
    assert only(job.enter("r/n0/1"), Prepare)[0].soft
    job.coordinator.broken("r/n0/0", job.layout.epoch)
    job.votes("n0", "n1")
    anew = job.join("n2")
    assert only(anew, Prepare)[0].soft
    repair = job.pass_time(2.0)
    assert [each.soft for each in only(repair, Prepare)] == [()]


def test_commands_wait_until_it_is_known_what_is_lost() -> None:
    job = with_a_death()
    job.coordinator.left("n1")
    for told in (job.coordinator.rebalance("c", {"r/n0/0": 1}), job.coordinator.resize("d", {"n0": 1})):
        assert "cannot be reached: ask again" in only(told, CommandResult)[0].error
    assert not job.coordinator.registry.leaving
