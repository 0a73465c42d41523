"""What was voted for, and may be valid without our knowledge: whoever begins the next epoch needs those votes, too."""

import asyncio
from pathlib import Path

import pytest

from fakes.plain_coordinator import Job, layout_of, only
from remediation.launcher.coordinator.coordinator import Effects
from remediation.launcher.coordinator.coordinator_effects import AskGrant, Prepare, Start
from remediation.launcher.coordinator.membership import Member
from remediation.launcher.coordinator.quorum import Electorate, Quorum, VoteCount, electorate_of, weakest
from remediation.launcher.vote_log import VoteLog, vote

ELSEWHERE = Electorate(epoch=2, ballot="x", voters=("n1", "n2", "n3"), nodes=("n1", "n2", "n3"))
"""Of an epoch that n1 has begun without n0 and n4."""


def cut_off() -> Job:
    """n0 and n4 are left of five."""
    job = Job(nodes=5).running("n0", "n1", "n2", "n3", "n4")
    for node in ("n1", "n2", "n3"):
        job.coordinator.left(node)
    return job


def back(job: Job, node: str, *undecided: Electorate) -> Effects:
    member = Member(node=node, address=f"{node}:1", slots=2, incarnation=f"{node}-b")
    return [*job.coordinator.joined(member, None, 2, idle=True, undecided=undecided), *job.pass_time(0.3)]


def test_a_launcher_that_has_voted_elsewhere_makes_no_majority_for_those_who_know_nothing_of_it() -> None:
    job = cut_off()
    assert not only(back(job, "n3", ELSEWHERE), Prepare), "the two others of that epoch may go on from it"
    [asked] = only(back(job, "n2"), Prepare)
    assert asked.layout.nodes == ("n0", "n2", "n3", "n4")


def test_twin_without_such_a_vote_three_of_five_go_on() -> None:
    assert only(back(cut_off(), "n3"), Prepare)


def test_a_vote_that_tells_of_another_one_is_not_enough() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.left("n1")
    [asked] = only(job.coordinator.no_progress(), Prepare)
    told = Electorate(epoch=2, ballot="x", voters=("n1", "n2"), nodes=("n1", "n2"))
    epoch = asked.layout.epoch
    assert not only([*job.coordinator.acknowledged("n2", epoch, undecided=(told,)), *job.acknowledge("n0")], Start)
    assert not only(job.coordinator.granted(epoch, granted=False, heard=True), Start)
    assert only(job.coordinator.granted(epoch, granted=True, heard=True), Start), "half of those, and the server"


def test_a_grant_that_comes_after_such_a_vote_is_not_enough_either() -> None:
    job = Job(nodes=2).running("n0", "n1")
    job.coordinator.server_is(True)
    job.coordinator.left("n1")
    assert only(job.coordinator.no_progress(), AskGrant)
    epoch = job.coordinator.epoch
    assert only(job.coordinator.granted(epoch, granted=True, heard=True), Prepare)
    lost = Electorate(epoch=2, ballot="x", voters=("n1", "n2"), nodes=("n1",))
    assert not only(job.coordinator.acknowledged("n0", epoch, undecided=(lost,)), Start)


def test_what_a_coordinator_has_given_up_itself_binds_nobody(tmp_path: Path) -> None:
    first, second = layout_of("n0", "n2", epoch=2), layout_of("n0", "n2", "n3", epoch=3)
    votes = VoteLog(tmp_path, "r", "n2")
    votes.promise(electorate_of(first, "a"))
    assert [each.ballot for each in votes.undecided] == ["a"]
    votes.promise(electorate_of(second, "b"), given_up=("a",))
    assert [each.ballot for each in votes.undecided] == ["b"]


def test_a_coordinator_names_the_ballots_that_it_has_given_up() -> None:
    quorum = Quorum(1)
    quorum.open_vote(1)
    quorum.ballot = "a"
    quorum.open_vote(2)
    quorum.ballot = "b"
    assert quorum.given_up == {"a"}
    quorum.hear("n1", [Electorate(epoch=2, ballot="a", voters=("n7",)), Electorate(epoch=3, ballot="b", voters=("n7",)), ELSEWHERE])
    assert [each.ballot for each in quorum.electorates(layout_of("n0", epoch=1))] == ["valid", "x"], "its own bind nobody"
    quorum.decide(3)
    assert (quorum.given_up, quorum.electorates(None)) == (set(), [])


def test_what_a_launcher_tells_takes_the_place_of_what_it_told_before() -> None:
    quorum = Quorum(1)
    quorum.hear("n1", [ELSEWHERE])
    quorum.hear("n2", [ELSEWHERE])
    quorum.hear("n1", [])
    assert quorum.electorates(None) == [ELSEWHERE], "n2 has voted for it, too"
    quorum.hear("n2", [])
    assert quorum.electorates(None) == []


def test_who_coordinates_and_gives_up_forgets_its_own_ballots(tmp_path: Path) -> None:
    votes = VoteLog(tmp_path, "r", "n2")
    votes.promise(ELSEWHERE)
    votes.promise(Electorate(epoch=3, ballot="b", voters=("n2",)))
    votes.forget({"b"})
    assert VoteLog(tmp_path, "r", "n2").undecided == (ELSEWHERE,)
    quorum = Quorum(1)
    assert quorum.lost_ballots == set()
    quorum.open_vote(1)
    quorum.ballot = "b"
    assert quorum.lost_ballots == {"b"}
    quorum.decide(2)
    assert quorum.lost_ballots == set(), "it is valid"


def test_a_vote_is_told_with_the_next_ones_until_an_epoch_is_valid(tmp_path: Path) -> None:
    last, asked = layout_of("n0", "n1", epoch=1), layout_of("n1", "n2", epoch=2)
    votes = VoteLog(tmp_path, "r", "n2")
    votes.valid(last)
    asyncio.run(vote(votes, electorate_of(asked)))
    again = VoteLog(tmp_path, "r", "n2")
    answer = asyncio.run(vote(again, Electorate(epoch=3, ballot="c", voters=("n0", "n2"))))
    assert answer["vote"]
    assert [(each["epoch"], tuple(each["voters"])) for each in answer["undecided"]] == [(1, ("n0", "n1")), (2, ("n1", "n2"))]
    again.valid(layout_of("n0", "n2", epoch=3))
    assert [each.epoch for each in again.undecided] == [3]
    again.end()
    assert again.undecided == ()


@pytest.mark.parametrize(("votes", "weak"), [([(3, 5), (1, 3)], (1, 3)), ([(3, 5), (1, 2)], (1, 2)), ([(2, 5), (1, 2)], (2, 5)), ([(3, 5)], (3, 5))])
def test_of_several_electorates_the_weakest_counts(votes: list[tuple[int, int]], weak: tuple[int, int]) -> None:
    count = weakest(VoteCount(votes=some, total=total) for some, total in votes)
    assert (count.votes, count.total) == weak
