"""Mistakes that the launchers once made, put back one at a time: a model check that does not find them proves nothing."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any
from unittest import mock

from eagle_eye.ledger import epoch_table
from remediation.launcher.coordinator import epoch_formation, launcher_handlers
from remediation.launcher.coordinator.quorum import Electorate, Quorum, VoteCount
from remediation.launcher.job_member import JobMember
from remediation.launcher.launcher_loss_witness import RETURN_S, LauncherLossWitness, Proof
from remediation.launcher.vote_log import VoteLog

Patch = Callable[[ExitStack], object]


async def _silence_proves(witness: LauncherLossWitness, broke_s: float, *_: object) -> Proof:
    return Proof.ENDED if broke_s >= max(RETURN_S, witness._lease_s) else Proof.NONE


def _any_layout(votes: VoteLog, asked: Electorate, _given_up: object = ()) -> bool:
    if asked.epoch < votes.record.promised:
        return False
    votes._write(type(votes.record)(promised=asked.epoch, ballot=asked.ballot, last=votes.record.last))
    return True


def _forgotten(votes: VoteLog) -> Any:
    record = _read(votes)
    votes.unreadable = ""
    return record


_read = VoteLog._read

BUGS: Mapping[str, Patch] = MappingProxyType({
    "silence": lambda stack: stack.enter_context(mock.patch.object(LauncherLossWitness, "proves", _silence_proves)),
    "unreadable": lambda stack: stack.enter_context(mock.patch.object(VoteLog, "_read", _forgotten)),
    "number": lambda stack: (
        stack.enter_context(mock.patch.object(VoteLog, "promise", _any_layout)),
        stack.enter_context(mock.patch.object(VoteLog, "may_start", return_value=True)),
        stack.enter_context(mock.patch.object(VoteLog, "undecided", ())),
        stack.enter_context(mock.patch.object(Quorum, "learn", return_value=None)),
    ),
    "cut off": lambda stack: (
        stack.enter_context(mock.patch.object(launcher_handlers, "isolate", return_value=[])),
        stack.enter_context(mock.patch.object(epoch_formation, "isolate", return_value=[])),
    ),
    "spares": lambda stack: stack.enter_context(mock.patch.object(VoteCount, "majority", property(lambda count: 2 * count.votes > count.total))),
    "left behind": lambda stack: stack.enter_context(mock.patch.object(JobMember, "coordinator_lost", JobMember.abandon)),
    "both halves": lambda stack: stack.enter_context(mock.patch.object(epoch_table, "may_follow", return_value=True)),
    "undecided": lambda stack: stack.enter_context(mock.patch.object(VoteLog, "undecided", ())),
})  # fmt: skip
"""silence: a session that broke proves a loss. unreadable: votes that cannot be read count as none. number: a vote names no layout, and nobody says which
one it has given. cut off: a coordinator without a majority never notices, and looks for nobody. spares: launchers without workers outvote the
one that trains. left behind: who has lost the coordinator ends its workers, whether or not anybody can succeed. undecided: what was voted for, and may be valid without our knowledge, is not told with a vote.
both halves: the server grants an epoch to each half of a job, under two numbers."""


@contextmanager
def put_back(name: str) -> Iterator[None]:
    """'' for none."""
    with ExitStack() as stack:
        if name:
            BUGS[name](stack)
        yield
