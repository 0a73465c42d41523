"""What a launcher of a node remembers of its run, so that a restarted one joins again and does not begin anew."""

import asyncio
import logging
import threading
from collections.abc import Collection
from pathlib import Path

import msgspec

from eagle_eye.errors import UNREADABLE, ControlError, Stale
from eagle_eye.rpc.command_fence import read_whole, write_whole
from eagle_eye.rpc.control_messages import Body
from eagle_eye.types import Layout
from eagle_eye.types.entity import Number
from remediation.launcher.coordinator.quorum import Electorate, electorate_of

log = logging.getLogger(__name__)

LEAP = 100
"""Epochs that nobody can have voted for while our votes were not known."""


class VoteRecord(msgspec.Struct, kw_only=True):
    """The votes that were given. On disk before they are sent."""

    promised: Number = 0
    """The highest epoch that this launcher has voted for."""
    ballot: str = ""
    """Digest of the layout that it has voted for under that number."""
    last: Layout | None = None
    """The last valid layout that it knows."""
    undecided: tuple[Electorate, ...] = ()
    """Layouts that it has voted for since, that may be valid without its knowledge."""
    over: bool = False
    """The run ended properly; a new start of the same name begins anew, above the old epochs."""


class _Written(VoteRecord, kw_only=True):
    """As it is on disk: where the highest epoch is not named, no votes can be read."""

    promised: Number


class VoteLog:
    """One file per job and node: another job may have had the same run name. Thread-safe: what is on disk is never older than what was sent."""

    def __init__(self, state_dir: Path, job: str, node: str) -> None:
        self._lock = threading.Lock()
        self.path = state_dir / "votes" / job / f"{node}.json"
        self.unreadable = ""
        """Why the votes that were given are not known; nothing is voted for until the job goes on with us under an epoch that others agreed to."""
        self.record = self._read()

    def leaps(self, epoch: int) -> bool:
        """Whether a number may have had our vote that we cannot read any more: then one far above it is asked for."""
        with self._lock:
            if self.unreadable and not self.record.promised:
                self.record = VoteRecord(promised=epoch + LEAP)
            return bool(self.unreadable) and epoch <= self.record.promised

    @property
    def undecided(self) -> tuple[Electorate, ...]:
        """What a coordinator has to know of: the last valid layout, and what was voted for since."""
        record = self.record
        if record.over:
            return ()
        return (*((electorate_of(record.last),) if record.last is not None else ()), *record.undecided)

    def promise(self, asked: Electorate, given_up: Collection[str] = ()) -> bool:
        """Vote for a layout under a number; False if another layout, or a higher number, has our vote. The same vote may be given again.

        `given_up`: ballots that can no longer win, as their coordinator says.
        Raises ControlError where it cannot be written down, or where older votes cannot be read: then it is not given.
        """
        with self._lock:
            if self.unreadable:
                raise ControlError(self.unreadable)
            record = self.record
            if asked.epoch < record.promised or (asked.epoch == record.promised and asked.ballot != record.ballot):
                return False
            if asked.epoch > record.promised:
                kept = tuple(each for each in record.undecided if each.ballot not in given_up)
                self._write(msgspec.structs.replace(record, promised=asked.epoch, ballot=asked.ballot, undecided=(*kept, asked)))
            return True

    def forget(self, lost: Collection[str]) -> None:
        """These ballots will never be valid: this launcher coordinated them, and has given up."""
        with self._lock:
            kept = tuple(each for each in self.record.undecided if each.ballot not in lost)
            if kept != self.record.undecided:
                self._keep(msgspec.structs.replace(self.record, undecided=kept), "what was given up")

    def may_start(self, epoch: int, ballot: str) -> bool:
        """Whether a valid layout is none that our vote was given against."""
        record = self.record
        return epoch > record.promised or (epoch == record.promised and record.ballot in ("", ballot))

    def valid(self, layout: Layout) -> None:
        """An epoch became valid. A disk that takes nothing keeps no epoch from starting: the vote for it is what must be written down."""
        with self._lock:
            record = self.record
            if record.last is not None and layout.epoch < record.last.epoch and not record.over:
                return  # a newer one was written meanwhile
            ballot = record.ballot if record.promised >= layout.epoch else ""
            undecided = tuple(each for each in record.undecided if each.epoch > layout.epoch and not record.over)
            known = VoteRecord(promised=max(record.promised, layout.epoch), ballot=ballot, last=layout, undecided=undecided)
            if self._keep(known, "the epoch that has begun"):
                self.unreadable = ""

    def end(self) -> None:
        """The run is over."""
        with self._lock:
            self._keep(msgspec.structs.replace(self.record, over=True, undecided=()), "that the run is over")

    def _keep(self, record: VoteRecord, what: str) -> bool:
        """Whether it is on disk; where that takes nothing, this process alone knows it."""
        try:
            self._write(record)
        except ControlError as error:
            self.record = record
            log.warning("%s; %s is written down with the next vote", error, what)
            return False
        return True

    def _write(self, record: VoteRecord) -> None:
        write_whole(self.path, msgspec.json.encode(record))
        self.record = record

    def _read(self) -> VoteRecord:
        try:
            return VoteRecord(**msgspec.structs.asdict(msgspec.json.decode(read_whole(self.path), type=_Written)))
        except FileNotFoundError:
            return VoteRecord()
        except (OSError, *UNREADABLE) as error:
            self.unreadable = f"the votes of this launcher cannot be read ({self.path}: {error}): delete the file once no launcher of the run is left"
            log.warning("%s; it does not vote", self.unreadable)
            return VoteRecord()


async def vote(votes: VoteLog, asked: Electorate, given_up: Collection[str] = ()) -> Body:
    """The answer to a coordinator that asks for a vote: given, refused because of the vote `promised`, or withheld for a reason.

    With it goes what else may be valid: the coordinator needs the votes of those launchers, too.
    """
    if votes.leaps(asked.epoch):
        return {"vote": False, "promised": votes.record.promised}
    promised = votes.record.promised
    others = [msgspec.to_builtins(each) for each in votes.undecided if each.ballot not in {asked.ballot, *given_up}]
    answer: Body = {"promised": promised, "undecided": others}
    try:
        return answer | {"vote": await asyncio.to_thread(votes.promise, asked, given_up)}
    except ControlError as error:
        log.warning("this launcher does not vote on epoch %d: %s", asked.epoch, error)
        return answer | {"vote": False, "abstains": str(error)}


def check_vote(votes: VoteLog, layout: Layout, ballot: str) -> None:
    """Raises Stale for a layout that our vote was given against."""
    if not votes.may_start(layout.epoch, ballot):
        raise Stale(f"epoch {layout.epoch} of {layout.coordinator} is over: this launcher voted for {votes.record.promised}")
