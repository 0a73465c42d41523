"""The alerts of a leader: what it needs of the process around it."""

from collections.abc import Mapping

from detectors.runner import Runner
from eagle_eye.clock import Clock
from eagle_eye.config import Config
from eagle_eye.ledger import Ledger
from remediation.actions.notify import Notify
from remediation.alerts.service import Alerts
from remediation.engine import Engine
from remediation.invitations import Invitations

STALLED_S = 10.0
"""A runner that has written no mark for so long stands still, or its stream is away."""


class Ticking:
    """Whether every runner of this process goes on; true where there is none."""

    def __init__(self, runners: Mapping[int, Runner], clock: Clock) -> None:
        self._runners = runners
        self._clock = clock
        self._seen: dict[int, tuple[int, float]] = {}
        """Partition → (marks that were written, when that number was first seen)."""

    def __call__(self) -> bool:
        now = self._clock.monotonic()
        for partition, runner in list(self._runners.items()):
            marks = runner.counts.marks
            if self._seen.get(partition, (-1, 0.0))[0] != marks:
                self._seen[partition] = (marks, now)
        return all(now - self._seen[partition][1] < STALLED_S for partition in list(self._runners))


def alerts_of(config: Config, clock: Clock, notify: Notify, ledger: Ledger, engine: Engine, runners: Mapping[int, Runner]) -> Alerts:
    """Told by the engine from now on. Raises ConfigError for a receiver that is not usable as it is configured."""
    links = Invitations(ledger, clock, url_of(config) if config.server.http else "")
    alerts = Alerts(notify, ledger, clock, page=page_of(config), leads=engine.leads, ticking=Ticking(runners, clock), approval_link=links.link)
    engine.show_cases_to(alerts.look)
    return alerts


def page_of(config: Config) -> str:
    """The address of an incident's page, with `{incident}` in it."""
    base = url_of(config)
    return f"{base}/incidents/{{incident}}" if base else ""


def url_of(config: Config) -> str:
    """How a browser reaches the HTTP port; '' where there is none."""
    base = config.server.public_url or (f"http://{config.server.http}" if config.server.http else "")
    return base.rstrip("/")
