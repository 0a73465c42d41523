"""/hooks/alertmanager: a site's own alerts become events in the stream, each once.

Alertmanager sends an alert again and again while it fires; what was told once is remembered and not told again. After a
restart of this process it may be told twice: the detector knows it by its id.
"""

import hmac
import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, Metric
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from eagle_eye.access import Role
from eagle_eye.clock import Clock
from eagle_eye.config import HooksConfig
from eagle_eye.errors import LedgerError, WireError
from eagle_eye.types import Entity, Event, Layout

from .alertmanager import Alert, Body, Places, attributes, read
from .server import Door

log = logging.getLogger(__name__)

PATH = "/hooks/alertmanager"
REMEMBERED = 50_000
"""Alerts; the one that was heard of longest ago is forgotten beyond."""
NODE = "server"
"""Writer of the events."""


@dataclass(slots=True)
class Taken:
    """What became of the alerts of one request, or of all so far."""

    events: int = 0
    repeated: int = 0
    """Told before."""
    unknown: int = 0
    """About no job that is known."""
    own: int = 0
    """Eagle Eye's own, sent back to it."""


class AlertmanagerHook:
    """Turns alerts into events. Thread-safe."""

    def __init__(
        self, config: HooksConfig, *, layouts: Callable[[], Iterable[Layout]], write: Callable[[Event], None], clock: Clock, boot: str
    ) -> None:
        """`layouts`: of the jobs that are known now. `write`: to the stream; returns at once. `boot`: of this life of the process."""
        self._config = config
        self._layouts = layouts
        self._write = write
        self._clock = clock
        self._boot = boot
        self._numbers = itertools.count(1)
        self._told: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._lock = threading.Lock()
        self.taken = Taken()

    def take(self, body: Body) -> Taken:
        """Write what is new. Raises LedgerError while nobody can tell which jobs there are."""
        places = Places(self._config, self._layouts())
        taken = Taken()
        with self._lock:
            for alert in body.alerts:
                self._take(alert, places, taken)
            for name in Taken.__slots__:
                setattr(self.taken, name, getattr(self.taken, name) + getattr(taken, name))
        if body.truncated_alerts:
            log.warning("Alertmanager left %d alerts out of its webhook: raise max_alerts there", body.truncated_alerts)
        return taken

    def collect(self) -> Iterator[Metric]:
        """One family: alerts by what became of them."""
        family = CounterMetricFamily("eagle_eye_site_alerts", "Alerts that came from Alertmanager, by what became of them.", labels=["result"])
        for name in Taken.__slots__:
            family.add_metric([name], getattr(self.taken, name))
        yield family

    def _take(self, alert: Alert, places: Places, taken: Taken) -> None:
        if alert.ours:
            taken.own += 1
            return
        found = list(places.of(alert))
        taken.unknown += not found
        for place in found:
            if self._first_time(place.job, alert):
                taken.events += 1
                self._write(self._event(alert, place.job, place.entity))
            else:
                taken.repeated += 1

    def _first_time(self, job: str, alert: Alert) -> bool:
        key = (job, alert.id, alert.status)
        known = key in self._told
        self._told[key] = None
        self._told.move_to_end(key)
        if len(self._told) > REMEMBERED:
            self._told.popitem(last=False)
        return not known

    def _event(self, alert: Alert, job: str, entity: Entity) -> Event:
        ended = alert.ends_at if alert.status == "resolved" else None
        return Event(
            name=f"alert.{alert.status}",
            job=job,
            entity=entity,
            time=(ended or alert.starts_at).timestamp(),
            node=NODE,
            boot=self._boot,
            number=next(self._numbers),
            message=f"{alert.name} {alert.status}",
            attributes=attributes(alert),
        )


def door(hook: AlertmanagerHook, *, max_bytes: int, token: str = "") -> Door:
    """The door of the hook. `token`: its own, beside those of operators; '' = it has none."""

    async def answer(request: Request) -> Response:
        try:
            body = await _body(request, max_bytes)
        except ClientDisconnect:
            return Response(status_code=400)
        if body is None:
            return JSONResponse({"error": f"more than {max_bytes} bytes: lower max_alerts of the webhook, or raise hooks.max_bytes"}, 413)
        try:
            taken = await run_in_threadpool(lambda: hook.take(read(body)))
        except WireError as error:
            return JSONResponse({"error": str(error)}, 400)
        except LedgerError as error:
            return JSONResponse({"error": f"try again later: {error}"}, 503)
        return JSONResponse({name: getattr(taken, name) for name in Taken.__slots__})

    def own_key(shown: str) -> bool:
        return bool(token) and hmac.compare_digest(shown.encode(), token.encode())

    return Door(path=PATH, answer=answer, methods=("POST",), role=Role.OPERATOR, own_key=own_key)


async def _body(request: Request, max_bytes: int) -> bytes | None:
    """None once it is too long: nobody reads on."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            return None
        parts.append(part)
    return b"".join(parts)
