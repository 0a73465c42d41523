"""The leader's lease: ours for one term, or another's."""

import logging
import os
import secrets
import socket

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError
from eagle_eye.ledger import LeaseHolder, Ledger

log = logging.getLogger(__name__)

LEASE = "leader"


def this_process() -> LeaseHolder:
    """A holder of leases with a life of its own."""
    return LeaseHolder(host=socket.gethostname(), pid=os.getpid(), boot=secrets.token_hex(6))


class Seat:
    """Taken by one process at a time; of one term."""

    def __init__(self, ledger: Ledger, lease_s: float, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._holder = this_process()
        """Of one term: who loses the lease comes back as somebody else, under a new term."""
        self.lease_s = lease_s
        self.term = 0
        self._until = 0.0
        """Monotonic time until which the lease is ours for sure."""

    @property
    def ours(self) -> bool:
        """Asked before every step of an action: a leader whose lease may have run out does nothing."""
        return self._clock.monotonic() < self._until

    @property
    def boot(self) -> str:
        """Random id of this term of this process."""
        return self._holder.boot

    def take(self) -> bool:
        """Take it if it is free. Raises LedgerError."""
        asked = self._clock.monotonic()
        term = self._ledger.acquire(LEASE, self._holder, self.lease_s, self._clock.now())
        if term is not None:
            self.term, self._until = term, asked + self.lease_s
        return term is not None

    def renew(self) -> bool:
        """False once another has it. Raises LedgerError; then it is ours until it runs out, and again if nobody took it."""
        asked = self._clock.monotonic()
        renewed = self._ledger.renew(LEASE, self._holder, self.term, self.lease_s, self._clock.now())
        self._until = asked + self.lease_s if renewed else 0.0
        return renewed

    def resign(self) -> None:
        """Give it up, so that the next one need not wait; a ledger that is away lets it run out."""
        self._until = 0.0
        try:
            self._ledger.resign(LEASE, self._holder, self._clock.now())
        except EagleEyeError as error:
            log.warning("the lease could not be given up: %s", error)

    @property
    def holder(self) -> str:
        """Who has it, in words."""
        return str(self._ledger.holder_of(LEASE))
