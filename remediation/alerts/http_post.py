"""One HTTP request: signed, bounded in time, and without secrets in its error messages.

The signature follows Stripe's scheme, a time and an HMAC over the time and the body:

    X-Eagle-Eye-Signature: t=1700000000,v1=<hex HMAC-SHA256 of "1700000000." + body>

Within the tolerance a recorded notification could be sent again: a receiver recognises it by its number
(`X-Eagle-Eye-Notification`, and `notification` in the body).
"""

import base64
import email.utils
import hashlib
import hmac
import logging
import math
import ssl
from dataclasses import dataclass

import httpx
import msgspec

from eagle_eye import __version__
from eagle_eye.clock import Clock

from .receiver import Endpoint

SIGNATURE = "X-Eagle-Eye-Signature"
NOTIFICATION = "X-Eagle-Eye-Notification"
TOLERANCE_S = 300.0
CONNECT_S = 5.0
LONGEST_ANSWER = 2048
"""Bytes of an answer that are read: it only explains a refusal."""
SHOWN = 300
"""Characters of it that a message shows."""
REFUSED = frozenset({400, 413, 415, 422})
"""The notification itself is wrong: it will never be accepted. Every other failure is the receiver's, and may pass."""


def signature(secret: bytes, time: int, body: bytes) -> str:
    """What a receiver recomputes and compares."""
    digest = hmac.new(secret, f"{time}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={time},v1={digest}"


def is_signed(secret: bytes, header: str, body: bytes, now: float, *, tolerance_s: float = TOLERANCE_S) -> bool:
    """A receiver's side: whether the body was signed with the secret, at most `tolerance_s` ago or ahead."""
    parts = dict(part.strip().partition("=")[::2] for part in header.split(","))
    sent = parts.get("t", "")
    if not sent.isdecimal() or abs(now - int(sent)) > tolerance_s:
        return False
    return hmac.compare_digest(signature(secret, int(sent), body).encode(), f"t={sent},v1={parts.get('v1', '')}".encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryResult:
    """What became of a request."""

    status: int = 0
    """0: no answer."""
    text: str = ""
    """The answer, or what kept it from coming; without secrets."""
    retry_after_s: float = 0.0
    """What the receiver asks for."""

    @property
    def taken(self) -> bool:
        return 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Trying again is of no use."""
        return self.status in REFUSED

    @property
    def about_the_notification(self) -> bool:
        """It failed over this notification, as far as one can tell; others may pass."""
        return self.status in (500, 501)

    def __str__(self) -> str:
        said = f": {self.text}" if self.text else ""
        return f"status {self.status}{said}" if self.status else self.text


def client_for(endpoint: Endpoint) -> httpx.Client:
    """A client with the receiver's time-outs. Its ca_file was looked at before."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells each request with its whole address, which may be a secret
    receiver = endpoint.receiver
    timeout = httpx.Timeout(receiver.timeout_s, connect=min(CONNECT_S, receiver.timeout_s))
    return httpx.Client(timeout=timeout, follow_redirects=False, verify=_trust(receiver.ca_file), headers={"User-Agent": f"eagle-eye/{__version__}"})


def post(client: httpx.Client, endpoint: Endpoint, body: object, clock: Clock, *, notification: str = "") -> DeliveryResult:
    """Send it once. Never raises for what a receiver or the network does."""
    content = msgspec.json.encode(body)
    now, deadline = clock.now(), clock.monotonic() + endpoint.receiver.timeout_s
    try:
        with client.stream("POST", endpoint.url, content=content, headers=_headers(endpoint, content, notification, now)) as response:
            text = _read(response, clock, deadline)
            return DeliveryResult(
                status=response.status_code,
                text="" if response.is_success else endpoint.redact(_said(response, text)),
                retry_after_s=_retry_after(response.headers.get("Retry-After", ""), now),
            )
    except httpx.TimeoutException:
        return DeliveryResult(text=f"no answer within {endpoint.receiver.timeout_s:g} s")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return DeliveryResult(text=endpoint.redact(f"{type(error).__name__}: {error}"))


def _headers(endpoint: Endpoint, content: bytes, notification: str, now: float) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if notification:
        headers[NOTIFICATION] = notification
    if endpoint.secret:
        headers[SIGNATURE] = signature(endpoint.secret, int(now), content)
    if endpoint.receiver.kind == "alertmanager" and endpoint.key:
        basic = base64.b64encode(endpoint.key.encode()).decode()
        headers["Authorization"] = f"Basic {basic}" if ":" in endpoint.key else f"Bearer {endpoint.key}"
    return headers


def _read(response: httpx.Response, clock: Clock, deadline: float) -> str:
    """The beginning of an answer; one that drips does not hold us."""
    found = b""
    for chunk in response.iter_bytes():
        found += chunk
        if len(found) >= LONGEST_ANSWER or clock.monotonic() >= deadline:
            break
    return found[:LONGEST_ANSWER].decode(errors="replace")


def _said(response: httpx.Response, text: str) -> str:
    if response.is_redirect:
        host = response.headers.get("Location", "").split("?")[0]
        return f"it redirects to {host}: configure that address"
    return " ".join(text.split())[:SHOWN]


def _retry_after(header: str, now: float) -> float:
    """Seconds, or a date (RFC 9110, 10.2.3)."""
    try:
        seconds = float(header) if header.replace(".", "", 1).isdecimal() else email.utils.parsedate_to_datetime(header).timestamp() - now
    except (ValueError, TypeError):
        return 0.0
    return max(0.0, seconds) if math.isfinite(seconds) else 0.0


def _trust(ca_file: str) -> bool | ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file) if ca_file else True
