"""/hooks/alertmanager: a site's own alerts become events in the stream, each once.

Alertmanager sends an alert again and again while it fires; what was written once is remembered and not written again. After a
restart of this process it may be written twice: the detector knows it by its id.
"""

import hmac
import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, Metric
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from eagle_eye.access import Role
from eagle_eye.config import HooksConfig
from eagle_eye.errors import LedgerError, StreamError, WireError
from eagle_eye.types import Event, Layout

from .alertmanager_payload import AlertTarget, AlertTargets, SiteAlert, WebhookBody, attributes, read
from .http_server import Route
from .request_limits import read_body

log = logging.getLogger(__name__)

PATH = "/hooks/alertmanager"
REMEMBERED = 50_000
"""Alerts; beyond them the one that was received longest ago is forgotten."""
NODE = "server"
"""Writer of the events."""
_Key = tuple[str, str, str]
"""job, id of the alert, firing or resolved"""


@dataclass(slots=True)
class AlertCounts:
    """What became of the alerts of one request, or of all so far."""

    events: int = 0
    repeated: int = 0
    """Written before."""
    unknown: int = 0
    """About no job that is known."""
    own: int = 0
    """Eagle Eye's own, sent back to it."""


class AlertmanagerHook:
    """Turns alerts into events. Thread-safe."""

    def __init__(
        self, config: HooksConfig, *, layouts: Callable[[], Iterable[Layout]], write: Callable[[Sequence[Event]], None], incarnation: str
    ) -> None:
        """`layouts`: of the jobs that are known now. `write`: all of them to the stream, or none. `incarnation`: of this life of the process."""
        self._config = config
        self._layouts = layouts
        self._write = write
        self._incarnation = incarnation
        self._numbers = itertools.count(1)
        self._told: OrderedDict[_Key, None] = OrderedDict()
        self._lock = threading.Lock()
        self.taken = AlertCounts()

    def take(self, body: WebhookBody) -> AlertCounts:
        """Write what is new. Raises LedgerError while the list of jobs cannot be read, StreamError while nothing can be written."""
        places = AlertTargets(self._config, self._layouts())
        taken, news = AlertCounts(), dict[_Key, Event]()
        with self._lock:
            for alert in body.alerts:
                self._take(alert, places, taken, news)
            if news:
                self._write(list(news.values()))
            self._remember(news)
            for name in AlertCounts.__slots__:
                setattr(self.taken, name, getattr(self.taken, name) + getattr(taken, name))
        if body.truncated_alerts:
            log.warning("Alertmanager left %d alerts out of its webhook: raise max_alerts there", body.truncated_alerts)
        return taken

    def collect(self) -> Iterator[Metric]:
        """One family: alerts by what became of them."""
        family = CounterMetricFamily("eagle_eye_site_alerts", "Alerts that came from Alertmanager, by what became of them.", labels=["result"])
        for name in AlertCounts.__slots__:
            family.add_metric([name], getattr(self.taken, name))
        yield family

    def _take(self, alert: SiteAlert, places: AlertTargets, taken: AlertCounts, news: dict[_Key, Event]) -> None:
        if alert.ours:
            taken.own += 1
            return
        found = list(places.of(alert))
        taken.unknown += not found
        for place in found:
            key = (place.job, alert.id, alert.status)
            if key in self._told or key in news:
                taken.repeated += 1
            else:
                taken.events += 1
                news[key] = self._event(alert, place)

    def _remember(self, keys: Iterable[_Key]) -> None:
        """Only what was written: Alertmanager sends the rest again."""
        for key in keys:
            self._told[key] = None
        while len(self._told) > REMEMBERED:
            self._told.popitem(last=False)

    def _event(self, alert: SiteAlert, place: AlertTarget) -> Event:
        return Event(
            name=f"alert.{alert.status}",
            job=place.job,
            entity=place.entity,
            time=alert.time,
            node=NODE,
            incarnation=self._incarnation,
            number=next(self._numbers),
            message=f"{alert.name} {alert.status}",
            attributes=attributes(alert),
        )


def route(hook: AlertmanagerHook, *, max_bytes: int, token: str = "") -> Route:
    """The route of the hook. `token`: its own, beside those of operators; '' = it has none."""

    async def answer(request: Request) -> Response:
        body = await read_body(request, max_bytes)
        if body is None:
            return JSONResponse({"error": f"more than {max_bytes} bytes: lower max_alerts of the webhook, or raise hooks.max_bytes"}, 413)
        try:
            taken = await run_in_threadpool(lambda: hook.take(read(body)))
        except WireError as error:
            return JSONResponse({"error": str(error)}, 400)
        except (LedgerError, StreamError) as error:
            return JSONResponse({"error": f"try again later: {error}"}, 503)
        return JSONResponse({name: getattr(taken, name) for name in AlertCounts.__slots__})

    def own_token(shown: str) -> bool:
        return bool(token) and hmac.compare_digest(shown.encode(), token.encode())

    return Route(path=PATH, answer=answer, methods=("POST",), role=Role.OPERATOR, own_token=own_token)
