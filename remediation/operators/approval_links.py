"""Links under which a person decides on a plan that waits: made when they are first asked for, the same until the plan goes."""

import logging
import threading
from collections import OrderedDict
from typing import Protocol

from eagle_eye.clock import Clock
from eagle_eye.errors import LedgerError
from eagle_eye.types import Plan

log = logging.getLogger(__name__)

KEPT = 1000


class LinkLedger(Protocol):
    """The ledger's part that approval links need."""

    def create_approval_link(self, plan: Plan, now: float) -> str: ...


class ApprovalLinks:
    """Thread-safe. The tokens are in this memory and in the notifications; a next leader makes new ones."""

    def __init__(self, book: LinkLedger, clock: Clock, url: str) -> None:
        """`url`: how a browser reaches the HTTP port; '' where there is none."""
        self._book = book
        self._clock = clock
        self._url = url.rstrip("/")
        self._links: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def link(self, plan: Plan) -> str:
        """Where this plan is approved or refused; '' where nowhere, or while the ledger is away."""
        if not self._url:
            return ""
        with self._lock:
            if plan.id not in self._links:
                try:
                    self._links[plan.id] = f"{self._url}/approve/{self._book.create_approval_link(plan, self._clock.now())}"
                except LedgerError as error:
                    log.warning("no link to approve plan %s could be made: %s", plan.id, error)
                    return ""
                while len(self._links) > KEPT:
                    self._links.popitem(last=False)
            return self._links[plan.id]
