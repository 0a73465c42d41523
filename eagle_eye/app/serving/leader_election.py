"""Leader election among servers: one process holds the lease in the ledger, for one term."""

import logging
import os
import secrets
import socket

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import LeaseHolder, Ledger

log = logging.getLogger(__name__)

LEASE = "leader"


def new_holder() -> LeaseHolder:
    """This process as a holder of leases, with a new random id."""
    return LeaseHolder(host=socket.gethostname(), pid=os.getpid(), incarnation=secrets.token_hex(6))


class LeaderLease:
    """One process's hold on the lease, for one term. Not thread-safe but for `ours`."""

    def __init__(self, ledger: Ledger, lease_s: float, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._holder = new_holder()
        """Used for one term: a process that lost the lease gets it again as a new holder, under a new term."""
        self.lease_s = lease_s
        self.term = 0
        self._until = 0.0
        """Monotonic time until which this process holds the lease for sure."""

    @property
    def ours(self) -> bool:
        """Whether this process holds it for sure. Checked before every step of an action."""
        return self._clock.monotonic() < self._until

    @property
    def incarnation(self) -> str:
        """Random id of this term of this process."""
        return self._holder.incarnation

    def acquire(self, above: int = 0) -> bool:
        """Get it if it is free, for a term above that one; False if another process holds it. Raises LedgerError."""
        asked = self._clock.monotonic()
        term = self._ledger.acquire(LEASE, self._holder, self.lease_s, self._clock.now(), above=above)
        if term is not None:
            self.term, self._until = term, asked + self.lease_s
        return term is not None

    def renew(self) -> bool:
        """Extend it; False once another process has it. Raises LedgerError; the lease then runs out unless a later call succeeds."""
        asked = self._clock.monotonic()
        renewed = self._ledger.renew(LEASE, self._holder, self.term, self.lease_s, self._clock.now())
        self._until = asked + self.lease_s if renewed else 0.0
        return renewed

    def resign(self) -> None:
        """Give it up, so that a standby need not wait until it runs out. An error is logged only."""
        self._until = 0.0
        try:
            self._ledger.resign(LEASE, self._holder, self._clock.now())
        except EagleEyeError as error:
            log.warning("the lease could not be given up: %s", error)

    @property
    def holder(self) -> str:
        """The process that holds it, as text. Raises LedgerError."""
        return str(self._ledger.holder_of(LEASE))
