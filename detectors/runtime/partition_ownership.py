"""Which partitions of the observations this process owns: its share, taken and given back by leases in the ledger.

    detect/<boot>     who lives: each process renews its own
    partition/<n>     who owns; the term is the generation of the owner's marks

Each process looks at the same leases, comes to the same shares, and acts on its own alone: it gives back what is above
its share, and takes of its share what is free. A ledger that does not answer changes nothing: nobody else can take a
partition then either; should one have done so unseen, its marks in the stream end the former owner's work.
"""

import logging
import math
from collections.abc import Callable, Collection
from typing import Protocol

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import Lease, LeaseHolder

from .partition_assignment import assign_partitions

MEMBER = "detect/"
PARTITION = "partition/"
FORGET_S = 3600.0
_log = logging.getLogger(__name__)


class PartitionLeases(Protocol):
    """The ledger's part that ownership needs."""

    def acquire(self, name: str, holder: LeaseHolder, seconds: float, now: float, *, above: int = 0) -> int | None: ...
    def renew_all(self, names: Collection[str], holder: LeaseHolder, seconds: float, now: float) -> frozenset[str]: ...
    def resign(self, name: str, holder: LeaseHolder, now: float) -> None: ...
    def living(self, prefix: str, now: float) -> tuple[Lease, ...]: ...
    def forget(self, prefix: str, seconds: float, now: float) -> int: ...


class PartitionWork(Protocol):
    """The work on one partition, under way."""

    @property
    def outranked_by(self) -> int:
        """Generation of an owner that was seen above ours; 0 = none."""
        ...

    @property
    def ended(self) -> bool:
        """Nothing of it goes on."""
        ...

    def stop(self) -> None:
        """Finish what is in hand, commit it, and end; returns at once."""
        ...

    def join(self) -> None:
        """Wait until it has ended."""
        ...


Begin = Callable[[int, int], PartitionWork]
"""(partition, term) → the work, begun. Returns at once."""


class PartitionOwnership:
    """One process's part in sharing the partitions out. `round` is called several times within a lease and never waits for work."""

    def __init__(self, leases: PartitionLeases, holder: LeaseHolder, begin: Begin, *, partitions: int, lease_s: float, clock: Clock) -> None:
        self.owned: dict[int, PartitionWork] = {}
        self._leases = leases
        self._holder = holder
        self._begin = begin
        self._partitions = partitions
        self._lease_s = lease_s
        self._clock = clock
        self._member = MEMBER + holder.boot
        self._leaving: dict[int, PartitionWork] = {}
        """Told to stop; given back once they have ended, or after one lease."""
        self._patience: dict[int, float] = {}
        self._lost: dict[int, PartitionWork] = {}
        """Told to stop; another's already."""
        self._away = False
        self._patient_until = -math.inf
        """PartitionLeases that ran out while the ledger was away: everybody may renew before anybody takes."""

    def round(self) -> None:
        """Look once: renew what is ours, give back, take. The work on a partition that is lost or outranked is told to stop."""
        try:
            self._renew()
            self._release()
            target = self._share()
            for partition in [partition for partition in self.owned if target.get(partition) != self._holder.boot]:
                self._leaving[partition] = self._stopped(partition)
                self._patience[partition] = self._clock.monotonic() + self._lease_s
            self._release()
            self._renew_outranked()
            if self._clock.monotonic() >= self._patient_until:
                self._take([partition for partition, member in target.items() if member == self._holder.boot])
        except EagleEyeError as error:
            if not self._away:
                _log.warning("the ledger does not answer: partitions %s stay as they are: %s", sorted(self.owned), error)
            self._away = True
            self._patient_until = self._clock.monotonic() + self._lease_s
        else:
            self._away = False

    def close(self) -> None:
        """Give everything back, in order, and leave."""
        self._leaving |= {partition: self._stopped(partition) for partition in list(self.owned)}
        for work in [*self._leaving.values(), *self._lost.values()]:
            work.join()
        for name in [*map(_name, self._leaving), self._member]:
            try:
                self._leases.resign(name, self._holder, self._clock.now())
            except EagleEyeError as error:
                _log.warning("%s could not be given back and runs out by itself: %s", name, error)

    def _renew(self) -> None:
        names = [self._member, *map(_name, [*self.owned, *self._leaving])]
        ours = self._leases.renew_all(names, self._holder, self._lease_s, self._clock.now())
        if self._member not in ours:
            self._leases.forget(MEMBER, FORGET_S, self._clock.now())
            self._leases.acquire(self._member, self._holder, self._lease_s, self._clock.now())
        lost = [partition for partition in self.owned if _name(partition) not in ours]
        if lost:
            _log.warning("partitions %s have been taken over by others", lost)
            self._lost |= {partition: self._stopped(partition) for partition in lost}

    def _release(self) -> None:
        """What has ended is given back."""
        self._lost = {partition: work for partition, work in self._lost.items() if not work.ended}
        now = self._clock.monotonic()
        for partition in [partition for partition, work in self._leaving.items() if work.ended or now >= self._patience[partition]]:
            self._leases.resign(_name(partition), self._holder, self._clock.now())
            work = self._leaving.pop(partition)
            if not work.ended:
                self._lost[partition] = work  # it hangs, and whoever comes next outranks it
            _log.info("partition %d is given back%s", partition, "" if work.ended else " although the work on it has not ended")

    def _share(self) -> dict[int, str]:
        now = self._clock.now()
        members = {lease.holder.boot for lease in self._leases.living(MEMBER, now)}
        holders = {lease.name: lease.holder.boot for lease in self._leases.living(PARTITION, now)}
        for partition in self._leaving:
            holders.pop(_name(partition), None)
        return assign_partitions({partition: holders.get(_name(partition)) for partition in range(self._partitions)}, members)

    def _renew_outranked(self) -> None:
        """The stream knows of a higher generation than this ledger, where the lease is ours: begin again above it."""
        for partition in [partition for partition, work in self.owned.items() if work.outranked_by and work.ended]:
            work = self.owned.pop(partition)
            self._own(partition, above=work.outranked_by)

    def _take(self, partitions: list[int]) -> None:
        for partition in partitions:
            if not any(partition in works for works in (self.owned, self._leaving, self._lost)):
                self._own(partition)

    def _own(self, partition: int, *, above: int = 0) -> None:
        term = self._leases.acquire(_name(partition), self._holder, self._lease_s, self._clock.now(), above=above)
        if term is not None:
            _log.info("partition %d is ours in term %d", partition, term)
            self.owned[partition] = self._begin(partition, term)

    def _stopped(self, partition: int) -> PartitionWork:
        work = self.owned.pop(partition)
        work.stop()
        return work


def _name(partition: int) -> str:
    return f"{PARTITION}{partition}"
