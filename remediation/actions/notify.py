"""Tell somebody: a letter about an incident is put into the ledger's outbox; its own thread delivers it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.ledger import IncidentRecord
from eagle_eye.types import Plan, Progress
from remediation.orders import done, told

WEBHOOK = "webhook"
"""Name of the letters' way out."""


class Letters(Protocol):
    """The ledger's part that letters need."""

    def post(self, name: str, body: str, now: float) -> int: ...
    def incident_record(self, incident: str) -> IncidentRecord | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """A summary and a link, never logs or stacks. Without a `url` nobody is told."""

    ledger: Letters
    clock: Clock
    url: str = ""
    """Where to POST."""
    secret_file: str = ""
    """File with the secret that signs each message (HMAC-SHA256); else the variable EAGLE_EYE_WEBHOOK_SECRET."""
    link: str = ""
    """Address of a page about an incident; `{incident}` stands for its id."""

    def run(self, plan: Plan, /) -> Iterator[Progress]:
        """One letter; its step is done once the letter is on disk."""
        if not self.url:
            return
        step = f"notify {plan.incident}"
        yield told(step, plan.reason, self.clock)
        letter = self.ledger.post(WEBHOOK, self.words(plan), self.clock.now())
        yield done(step, f"letter {letter}", self.clock)

    def words(self, plan: Plan) -> str:
        """The letter: JSON."""
        record = self.ledger.incident_record(plan.incident)
        letter: dict[str, object] = {
            "version": 1,
            "news": plan.reason,
            "incident": plan.incident,
            "time": self.clock.now(),
            "link": self.link.replace("{incident}", plan.incident),
        }
        if record is not None:
            incident = record.incident
            letter |= {
                "job": incident.job,
                "cause": incident.cause,
                "severity": incident.severity,
                "state": record.state,
                "culprits": [
                    {"name": str(culprit.entity), "confidence": culprit.confidence} for culprit in incident.culprits
                ],
            }
        return msgspec.json.encode(letter).decode()
