"""What each kind of receiver is sent: one file = one kind, each with `body(alerts, endpoint, now)`.

Alerts in, plain data for JSON out; nothing here does I/O. A module may also have `BATCH = True` (one message may hold
several alerts) and `repeated(alerts, endpoint, now, healthy)` (what is sent every `every_s` seconds, None: nothing now).
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from remediation.alerts.alert import Alert
from remediation.alerts.receiver import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverTemplate:
    """The messages of one kind of receiver."""

    body: Callable[[Sequence[Alert], Endpoint, float], object]
    batch: bool = False
    """One message may hold several alerts."""
    repeated: Callable[[Sequence[Alert], Endpoint, float, bool], object | None] | None = None
    """(open alerts, endpoint, now, whether Eagle Eye is healthy) → what is sent every `every_s`; None: nothing now."""


@functools.cache
def template_of(kind: str) -> ReceiverTemplate:
    """The template of a kind; `kind` is one of `receiver.receiver_kinds()`."""
    module = importlib.import_module(f"{__name__}.{kind}")
    return ReceiverTemplate(body=module.body, batch=getattr(module, "BATCH", False), repeated=getattr(module, "repeated", None))
