"""Votes on a disk that is full, or was damaged: nothing is voted for that is not written down, and nothing else waits for the disk."""

import asyncio
from pathlib import Path

import pytest

from eagle_eye.errors import ControlError, Stale
from eagle_eye.rpc.command_fence import CommandFence
from eagle_eye.rpc.control_messages import Command
from eagle_eye.types import Layout
from remediation.launcher.coordinator.quorum import Electorate
from remediation.launcher.vote_log import VoteLog, check_vote, vote


def layout(epoch: int) -> Layout:
    return Layout(job="t/n/r", epoch=epoch, time=0.0, coordinator="n0", launchers={}, placements=())


def without_a_disk(folder: Path) -> VoteLog:
    """Its directory cannot be made: a file lies where it should be."""
    votes = VoteLog(folder, "r", "n0")
    (folder / "votes").write_text("")
    return votes


def test_a_vote_that_cannot_be_written_down_is_not_given_and_is_asked_for_again(tmp_path: Path) -> None:
    votes = without_a_disk(tmp_path)
    answer = asyncio.run(vote(votes, Electorate(epoch=2, ballot="a")))
    assert (answer["vote"], answer["promised"]) == (False, 0)
    assert "free space" in answer["abstains"]
    (tmp_path / "votes").unlink()
    assert asyncio.run(vote(votes, Electorate(epoch=3, ballot="b"))) == {"vote": True, "promised": 0, "undecided": []}
    assert VoteLog(tmp_path, "r", "n0").record.promised == 3


def test_an_epoch_that_others_agreed_to_starts_though_the_disk_takes_nothing(tmp_path: Path) -> None:
    votes = without_a_disk(tmp_path)
    votes.valid(layout(4))
    assert votes.record.promised == 4
    (tmp_path / "votes").unlink()
    assert votes.promise(Electorate(epoch=5, ballot="a"))
    last = VoteLog(tmp_path, "r", "n0").record.last
    assert last is not None
    assert last.epoch == 4


@pytest.mark.parametrize(("before", "after"), [(b'"promised":7', b'"promised":9'), (b'"ballot":"a"', b'"ballot":"b"'), (b"crc32 ", b"crc33 "), (b"}\ncrc32", b"}")])
def test_a_vote_in_which_a_digit_was_lost_is_not_believed(tmp_path: Path, before: bytes, after: bytes) -> None:
    VoteLog(tmp_path, "r", "n0").promise(Electorate(epoch=7, ballot="a"))
    path = tmp_path / "votes" / "r" / "n0.json"
    whole = path.read_bytes()
    assert before in whole
    path.write_bytes(whole.replace(before, after))
    assert str(path) in VoteLog(tmp_path, "r", "n0").unreadable
    path.write_bytes(whole)
    assert VoteLog(tmp_path, "r", "n0").record.promised == 7, "twin: as it was written"


@pytest.mark.parametrize("damaged", [b"", b"{", b"[1]", b'{"promised": "x"}', b"\xff\xfe", b"{}", b'{"promised": -7}', b'{"more": ' + b"[" * 100_000])
def test_who_cannot_read_its_votes_abstains_until_the_job_goes_on_with_it(tmp_path: Path, damaged: bytes) -> None:
    VoteLog(tmp_path, "r", "n0").promise(Electorate(epoch=7, ballot="a"))
    path = tmp_path / "votes" / "r" / "n0.json"
    path.write_bytes(damaged)
    votes = VoteLog(tmp_path, "r", "n0")
    assert asyncio.run(vote(votes, Electorate(epoch=8, ballot="b"))) == {"vote": False, "promised": 108}, "a number is asked for that cannot have had our vote"
    answer = asyncio.run(vote(votes, Electorate(epoch=109, ballot="b")))
    assert not answer["vote"]
    assert str(path) in answer["abstains"]
    assert path.read_bytes() == damaged, "it is kept for whoever looks into it"
    votes.valid(layout(109))
    assert votes.promise(Electorate(epoch=110, ballot="c"))


def test_a_layout_that_our_vote_was_given_against_is_not_started(tmp_path: Path) -> None:
    votes = VoteLog(tmp_path, "r", "n0")
    votes.promise(Electorate(epoch=3, ballot="a"))
    check_vote(votes, layout(3), "a")
    check_vote(votes, layout(4), "b")
    for epoch, ballot in ((3, "b"), (2, "a")):
        with pytest.raises(Stale, match=r"is over: this launcher voted for 3"):
            check_vote(votes, layout(epoch), ballot)


def test_a_coordinators_order_does_not_wait_for_a_disk_and_a_leaders_does(tmp_path: Path) -> None:
    fence = CommandFence(tmp_path / "fence")
    (tmp_path / "fence").write_text("")
    order = Command(action="prepare", job="t/n/r", epoch=2)
    assert fence.admit(order) is None
    with pytest.raises(ControlError, match="free space"):
        fence.admit(Command(action="restart", job="t/n/r", epoch=2, leader_term=1, plan="p", step="s"))
    with pytest.raises(Stale):
        fence.admit(Command(action="prepare", job="t/n/r", epoch=1))


def test_another_job_of_the_same_run_name_has_given_no_votes(tmp_path: Path) -> None:
    """It was killed with two launchers; the next job of one launcher waited for its other one for ever."""
    killed = VoteLog(tmp_path, "team/gpt/1", "n0")
    killed.promise(Electorate(epoch=7, ballot="a"))
    killed.valid(layout(7))
    for job, node in (("team/bert/1", "n0"), ("other/gpt/1", "n0"), ("team/gpt/1-n0", "n0"), ("team/gpt/1", "1-n0")):
        assert VoteLog(tmp_path, job, node).undecided == ()
        assert VoteLog(tmp_path, job, node).promise(Electorate(epoch=1, ballot="b"))
    assert VoteLog(tmp_path, "team/gpt/1", "n0").record.promised == 7
