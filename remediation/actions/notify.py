"""Notify: what was decided or done about an incident is recorded, and its alert says so."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.ledger import AlertRecord
from eagle_eye.ranges import Count, Delay, Seconds
from eagle_eye.types import Plan, Progress
from remediation.alerts.alert import sent_alert_of
from remediation.alerts.receiver import Receiver
from remediation.job_commands.action_commands import done, intended

LONGEST = 1000
"""Characters: of news that no notification has said by then only the last is kept."""


class NewsLedger(Protocol):
    """The ledger's part that notifications need."""

    def set_alert_news(self, incident: str, news: str) -> None: ...

    def alert(self, name: str) -> AlertRecord | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """One alert per incident, to every receiver: opened, updated, resolved. Without receivers nothing is sent."""

    ledger: NewsLedger
    clock: Clock
    receivers: tuple[Receiver, ...] = ()
    """Tables [[actions.notify.receivers]] with kind (plain, pagerduty, slack, alertmanager, heartbeat), name, url or url_file,
    key_file, secret_file, min_severity, ...: docs/alerts.md."""
    url: str = field(default="", repr=False)
    """A short way to name one receiver of kind plain, called "webhook": where to POST."""
    secret_file: str = ""
    """File with the secret that signs what goes to `url` (HMAC-SHA256); else the variable EAGLE_EYE_WEBHOOK_SECRET."""
    link: str = ""
    """Address of a page about an incident; `{incident}` is replaced by its id. Default: /incidents/{incident} at server.public_url."""
    update_s: Delay = 10.0
    """An alert is not updated more often than this, except when it got worse or a plan waits for approval."""
    delay_s: Delay = 0.0
    """An incident that is over sooner makes no alert."""
    storm_alerts: Count = 5
    """So many incidents of a job within storm_s make an alert each; the others together in one alert. 0: never together."""
    storm_s: Seconds = 60.0
    """See storm_alerts. So often the number of incidents in a storm is updated, too; a new cause among them at once."""

    @property
    def everybody(self) -> tuple[Receiver, ...]:
        """The receivers, the one behind `url` among them."""
        webhook = Receiver(kind="plain", name="webhook", url=self.url, secret_file=self.secret_file)
        return (*self.receivers, webhook) if self.url else self.receivers

    def run(self, plan: Plan, /) -> Iterator[Progress]:
        """Its step is done once the news is on disk; the alert that says it goes out by itself."""
        if not self.everybody:
            return
        step = f"notify {plan.incident}"
        yield intended(step, plan.reason, self.clock)
        self.ledger.set_alert_news(plan.incident, self._with_unsaid(plan.incident, plan.reason))
        yield done(step, "written down", self.clock)

    def _with_unsaid(self, incident: str, news: str) -> str:
        """With what no notification has said yet: two pieces of news within `update_s` go out in one notification, and none is lost."""
        kept = self.ledger.alert(incident)
        if kept is None or not kept.news or len(kept.news) > LONGEST or _said(kept):
            return news
        return kept.news if kept.news.endswith(news) else f"{kept.news}; {news}"


def _said(kept: AlertRecord) -> bool:
    """Whether the last notification has its news; one that cannot be read is taken to have it."""
    try:
        return bool(kept.body) and sent_alert_of(kept.body).alert.news == kept.news
    except msgspec.MsgspecError:
        return True
