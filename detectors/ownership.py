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
from eagle_eye.ledger import Holder, Lease

from .sharing import shares

MEMBER = "detect/"
PARTITION = "partition/"
FORGET_S = 3600.0
_log = logging.getLogger(__name__)


class Leases(Protocol):
    """The ledger's part that ownership needs."""

    def acquire(self, name: str, holder: Holder, seconds: float, now: float, *, above: int = 0) -> int | None: ...
    def renew_all(self, names: Collection[str], holder: Holder, seconds: float, now: float) -> frozenset[str]: ...
    def resign(self, name: str, holder: Holder, now: float) -> None: ...
    def living(self, prefix: str, now: float) -> tuple[Lease, ...]: ...
    def forget(self, prefix: str, seconds: float, now: float) -> int: ...


class Owned(Protocol):
    """The work on one partition, under way."""

    @property
    def outranked_by(self) -> int:
        """Generation of an owner that was seen above ours; 0 = none."""
        ...

    def stop(self) -> None:
        """Finish what is in hand, commit it, and end; returns at once."""
        ...

    def join(self) -> None:
        """Wait until it has ended."""
        ...


Begin = Callable[[int, int], Owned]
"""(partition, term) → the work, begun. Returns at once."""


class Ownership:
    """One process's part in sharing the partitions out. `round` is called several times within a lease."""

    def __init__(self, leases: Leases, holder: Holder, begin: Begin, *, partitions: int, lease_s: float, clock: Clock) -> None:
        self.owned: dict[int, Owned] = {}
        self._leases = leases
        self._holder = holder
        self._begin = begin
        self._partitions = partitions
        self._lease_s = lease_s
        self._clock = clock
        self._member = MEMBER + holder.boot
        self._away = False
        self._patient_until = -math.inf
        """Leases that ran out while the ledger was away: everybody may renew before anybody takes."""

    def round(self) -> None:
        """Look once: renew what is ours, give back, take. What a lost or outranked partition was doing is ended."""
        try:
            self._renew()
            target = self._share()
            self._give_back([partition for partition in self.owned if target.get(partition) != self._holder.boot])
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
        partitions = list(self.owned)
        self._end(partitions)
        for name in [*map(_name, partitions), self._member]:
            try:
                self._leases.resign(name, self._holder, self._clock.now())
            except EagleEyeError as error:
                _log.warning("%s could not be given back and runs out by itself: %s", name, error)

    def _renew(self) -> None:
        names = [self._member, *map(_name, self.owned)]
        ours = self._leases.renew_all(names, self._holder, self._lease_s, self._clock.now())
        if self._member not in ours:
            self._leases.forget(MEMBER, FORGET_S, self._clock.now())
            self._leases.acquire(self._member, self._holder, self._lease_s, self._clock.now())
        lost = [partition for partition in self.owned if _name(partition) not in ours]
        if lost:
            _log.warning("partitions %s have been taken over by others", lost)
            self._end(lost)

    def _share(self) -> dict[int, str]:
        now = self._clock.now()
        members = {lease.holder.boot for lease in self._leases.living(MEMBER, now)}
        holders = {lease.name: lease.holder.boot for lease in self._leases.living(PARTITION, now)}
        return shares({partition: holders.get(_name(partition)) for partition in range(self._partitions)}, members)

    def _give_back(self, partitions: list[int]) -> None:
        self._end(partitions)
        for partition in partitions:
            self._leases.resign(_name(partition), self._holder, self._clock.now())
            _log.info("partition %d is given back", partition)

    def _take(self, partitions: list[int]) -> None:
        for partition in partitions:
            work = self.owned.get(partition)
            above = work.outranked_by if work is not None else 0
            if work is not None and not above:
                continue
            self._end([partition] if work is not None else [])
            term = self._leases.acquire(_name(partition), self._holder, self._lease_s, self._clock.now(), above=above)
            if term is not None:
                _log.info("partition %d is ours in term %d", partition, term)
                self.owned[partition] = self._begin(partition, term)

    def _end(self, partitions: list[int]) -> None:
        """Together, since each takes a moment."""
        ending = [self.owned.pop(partition) for partition in partitions]
        for work in ending:
            work.stop()
        for work in ending:
            work.join()


def _name(partition: int) -> str:
    return f"{PARTITION}{partition}"
