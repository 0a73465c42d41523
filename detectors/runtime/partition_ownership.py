"""Ownership of partitions: which partitions of the observations this process detects on, by leases in the ledger.

    detect/<incarnation>     a process with the detect role that is alive; each renews its own
    partition/<n>     the owner of a partition; the lease's term is the generation of the owner's marks
    declined/<n>/<incarnation>     on that partition detection has failed again and again in this process: another one may try

Each process reads the same leases, computes the same assignment, and acts on its own part: it releases partitions beyond
its share and takes free ones of its share. While the ledger is unavailable nothing changes, as no other process can take
a partition either; if one did so before, its marks in the stream end the work of the former owner.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Protocol

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Lease, LeaseHolder

MEMBER = "detect/"
PARTITION = "partition/"
DECLINED = "declined/"
DECLINED_S = 300.0
"""A process that has given up a partition is not offered it for so long, as long as another process may try."""
FORGET_S = 3600.0
_log = logging.getLogger(__name__)


class PartitionLeases(Protocol):
    """The methods of the ledger's leases that ownership needs. They may raise an EagleEyeError."""

    def acquire(self, name: str, holder: LeaseHolder, seconds: float, now: float, *, above: int = 0) -> int | None: ...
    def renew_all(self, names: Collection[str], holder: LeaseHolder, seconds: float, now: float) -> frozenset[str]: ...
    def resign(self, name: str, holder: LeaseHolder, now: float) -> None: ...
    def living(self, prefix: str, now: float) -> tuple[Lease, ...]: ...
    def forget(self, prefix: str, seconds: float, now: float) -> int: ...


class PartitionWork(Protocol):
    """Detection on one partition, as started by `Begin`."""

    @property
    def superseded_by(self) -> int:
        """Generation of a newer owner that was seen in the stream; 0 = none."""
        ...

    @property
    def ended(self) -> bool:
        """Its thread has ended."""
        ...

    @property
    def given_up(self) -> bool:
        """It has failed so often in a row that another process should try."""
        ...

    def check(self) -> None:
        """Called at each round. Where its thread is held for good it leaves that behind: it has ended then, superseded by its own term."""
        ...

    def stop(self) -> None:
        """Ask it to finish the current frame, commit and end; returns at once."""
        ...

    def join(self) -> None:
        """Wait until it has ended."""
        ...


Begin = Callable[[int, int], PartitionWork]
"""(partition, term) → its detection, started. Returns at once."""


class PartitionOwnership:
    """The partitions of one process. `round` is called several times within a lease time and never waits for a partition's work."""

    def __init__(self, leases: PartitionLeases, holder: LeaseHolder, begin: Begin, *, partitions: int, lease_s: float, clock: Clock) -> None:
        self.owned: dict[int, PartitionWork] = {}
        self._leases = leases
        self._holder = holder
        self._begin = begin
        self._partitions = partitions
        self._lease_s = lease_s
        self._clock = clock
        self._member = MEMBER + holder.incarnation
        self._leaving: dict[int, PartitionWork] = {}
        """Asked to stop; released once they have ended, or after one lease time."""
        self._deadline: dict[int, float] = {}
        self._lost: dict[int, PartitionWork] = {}
        """Asked to stop; another process owns them already."""
        self._declined: dict[int, float] = {}
        """Given up, since detection failed here; until when, by the monotonic clock."""
        self._unavailable = False
        self._wait_until = -math.inf
        """Take nothing before this time: leases that ran out while the ledger was unavailable may be renewed first."""

    def round(self) -> None:
        """Renew our leases, release, take. Work on a partition that was lost or superseded is asked to stop."""
        try:
            for work in self.owned.values():
                work.check()
            self._renew()
            self._release()
            self._offer_again()
            target = self._assignment()
            if target is None:
                return
            for partition in [partition for partition in self.owned if target.get(partition) != self._holder.incarnation]:
                self._leaving[partition] = self._stopped(partition)
                self._deadline[partition] = self._clock.monotonic() + self._lease_s
            self._release()
            self._renew_superseded()
            if self._clock.monotonic() >= self._wait_until:
                self._take([partition for partition, member in target.items() if member == self._holder.incarnation])
        except EagleEyeError as error:
            if not self._unavailable:
                _log.warning("the ledger is unavailable: partitions %s stay as they are: %s", sorted(self.owned), error)
            self._unavailable = True
            self._wait_until = self._clock.monotonic() + self._lease_s
        else:
            self._unavailable = False

    def close(self) -> None:
        """Stop all work, release all leases; waits for the work to end."""
        self._leaving |= {partition: self._stopped(partition) for partition in list(self.owned)}
        for work in [*self._leaving.values(), *self._lost.values()]:
            work.join()
        for name in [*map(_name, self._leaving), *map(self._declined_name, self._declined), self._member]:
            try:
                self._leases.resign(name, self._holder, self._clock.now())
            except EagleEyeError as error:
                _log.warning("lease %s could not be released and will expire: %s", name, error)

    def _renew(self) -> None:
        names = [self._member, *map(_name, [*self.owned, *self._leaving]), *map(self._declined_name, self._declined)]
        ours = self._leases.renew_all(names, self._holder, self._lease_s, self._clock.now())
        if self._member not in ours:
            for prefix in (MEMBER, DECLINED):
                self._leases.forget(prefix, FORGET_S, self._clock.now())
            self._leases.acquire(self._member, self._holder, self._lease_s, self._clock.now())
        lost = [partition for partition in self.owned if _name(partition) not in ours]
        if lost:
            _log.warning("partitions %s have been taken over by other processes", lost)
            self._lost |= {partition: self._stopped(partition) for partition in lost}

    def _release(self) -> None:
        """Release the leases of work that has ended."""
        self._lost = {partition: work for partition, work in self._lost.items() if not work.ended}
        now = self._clock.monotonic()
        for partition in [partition for partition, work in self._leaving.items() if work.ended or now >= self._deadline[partition]]:
            self._leases.resign(_name(partition), self._holder, self._clock.now())
            work = self._leaving.pop(partition)
            if not work.ended:
                self._lost[partition] = work  # it hangs; the next owner has a higher generation
            _log.info("partition %d is released%s", partition, "" if work.ended else " although the work on it has not ended")

    def _assignment(self) -> dict[int, str] | None:
        """None if our own lease has run out since it was renewed, as the process was suspended: the next round shows what is still ours."""
        now = self._clock.now()
        members = {lease.holder.incarnation for lease in self._leases.living(MEMBER, now)}
        holders = {lease.name: lease.holder.incarnation for lease in self._leases.living(PARTITION, now)}
        ours = self._holder.incarnation
        if ours not in members or any(holders.get(_name(partition)) != ours for partition in self.owned):
            return None
        for partition in self._leaving:
            holders.pop(_name(partition), None)
        declined = {(lease.name.split("/")[1], lease.holder.incarnation) for lease in self._leases.living(DECLINED, now)}
        refused = {partition: frozenset(member for member in members if (str(partition), member) in declined) for partition in range(self._partitions)}
        self._give_up({partition for partition, by in refused.items() if members - by - {ours}}, refused)
        return assign_partitions({partition: holders.get(_name(partition)) for partition in range(self._partitions)}, members, refused)

    def _give_up(self, others: Collection[int], refused: dict[int, frozenset[str]]) -> None:
        """Leave to others what has failed here again and again; `others`: partitions that another process may try."""
        for partition in [partition for partition, work in self.owned.items() if work.given_up and partition in others]:
            if self._leases.acquire(self._declined_name(partition), self._holder, self._lease_s, self._clock.now()) is not None:
                _log.warning("partition %d is left to another process for %g s, since detection on it failed here again and again", partition, DECLINED_S)
                self._declined[partition] = self._clock.monotonic() + DECLINED_S
                refused[partition] |= {self._holder.incarnation}

    def _offer_again(self) -> None:
        for partition in [partition for partition, until in self._declined.items() if self._clock.monotonic() >= until]:
            self._leases.resign(self._declined_name(partition), self._holder, self._clock.now())
            del self._declined[partition]

    def _declined_name(self, partition: int) -> str:
        return f"{DECLINED}{partition}/{self._holder.incarnation}"

    def _renew_superseded(self) -> None:
        """The stream has a higher generation than this ledger although the lease is ours: start again above it."""
        for partition in [partition for partition, work in self.owned.items() if work.superseded_by and work.ended]:
            work = self.owned.pop(partition)
            self._own(partition, above=work.superseded_by)

    def _take(self, partitions: list[int]) -> None:
        for partition in partitions:
            if not any(partition in works for works in (self.owned, self._leaving, self._lost)):
                self._own(partition)

    def _own(self, partition: int, *, above: int = 0) -> None:
        term = self._leases.acquire(_name(partition), self._holder, self._lease_s, self._clock.now(), above=above)
        if term is not None:
            _log.info("partition %d is owned by this process in term %d", partition, term)
            self.owned[partition] = self._begin(partition, term)

    def _stopped(self, partition: int) -> PartitionWork:
        work = self.owned.pop(partition)
        work.stop()
        return work


def _name(partition: int) -> str:
    return f"{PARTITION}{partition}"


def assign_partitions(holders: Mapping[int, str | None], members: Collection[str], declined: Mapping[int, Collection[str]] = MappingProxyType({})) -> dict[int, str]:
    """Partition → the member that should own it: evenly spread, with as few moves as possible. Pure.

    Every member that sees the same holders computes the same assignment. holders: current owner of each partition; None
    or a name that is not among the members counts as free. The shares of two members differ by one partition at most,
    unless some have declined one: it goes to another member, as long as not all have.
    """
    if not members:
        return {}
    held: dict[str, list[int]] = {member: [] for member in sorted(members)}
    for partition in sorted(holders):
        holder = holders[partition]
        if holder in held:
            held[holder].append(partition)
    least, more = divmod(len(holders), len(held))
    ranked = sorted(held, key=lambda member: (-len(held[member]), member))
    quota = {member: least + (place < more) for place, member in enumerate(ranked)}
    kept = {partition: member for member in ranked for partition in held[member][: quota[member]]}
    free = [partition for partition in sorted(holders) if partition not in kept]
    for member in sorted(held, key=lambda member: (len(held[member]), member)):
        missing = quota[member] - min(len(held[member]), quota[member])
        kept |= dict.fromkeys(free[:missing], member)
        del free[:missing]
    return _without_declined(kept, holders, members, declined)


def _without_declined(target: dict[int, str], holders: Mapping[int, str | None], members: Collection[str], declined: Mapping[int, Collection[str]]) -> dict[int, str]:
    """Each partition that its member has declined goes to who holds it, else to who has the fewest, of those that have not."""
    for partition in sorted(partition for partition, by in declined.items() if target.get(partition) in by):
        willing = sorted(set(members) - set(declined[partition]))
        owned = Counter(target.values())
        target[partition] = min(willing, key=lambda member: (holders[partition] != member, owned[member], member), default=target[partition])
    return target
