"""Delivers the letters of the ledger's outbox to a webhook: signed, and again until it was taken.

    X-Eagle-Eye-Signature: t=1700000000,v1=<hex HMAC-SHA256 of "1700000000." + body>
    X-Eagle-Eye-Letter: 17          the same at every try: a receiver drops what it has seen
"""

import hashlib
import hmac
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import httpx

from eagle_eye.clock import Clock
from eagle_eye.errors import ConfigError, EagleEyeError
from eagle_eye.ledger import Letter

from .actions.notify import Notify

log = logging.getLogger(__name__)

SECRET_VARIABLE = "EAGLE_EYE_WEBHOOK_SECRET"  # noqa: S105 - the name of a variable, not a secret
ATTEMPTS = 12
"""Then it is given up: about an hour and a half after the first."""
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 900.0
TIMEOUT_S = 10.0
POLL_S = 0.5
TRY_AGAIN = frozenset({408, 425, 429})
"""Refusals that may pass; other 4xx do not."""


class Box(Protocol):
    """The ledger's outbox."""

    def due(self, now: float, limit: int = 20) -> tuple[Letter, ...]: ...
    def delivered(self, letter: int, now: float) -> None: ...
    def failed(self, letter: int, next_try: float, error: str) -> None: ...
    def given_up(self, letter: int, now: float, error: str) -> None: ...


def secret_of(file: str, environment: Mapping[str, str] = os.environ) -> bytes:
    """The secret from a file, else from the environment. Raises ConfigError; the secret itself is never shown."""
    if file:
        try:
            secret = Path(file).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"actions.notify.secret_file {file}: {error.strerror}; make it readable for this user") from error
    else:
        secret = environment.get(SECRET_VARIABLE, "").encode()
    if not secret:
        raise ConfigError(f"the webhook has no secret: name a file in actions.notify.secret_file, or set {SECRET_VARIABLE}")
    return secret


def signature(secret: bytes, time: int, body: bytes) -> str:
    """What a receiver recomputes and compares; the time keeps an old letter from being sent again by others."""
    digest = hmac.new(secret, f"{time}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={time},v1={digest}"


def wait_before(attempt: int) -> float:
    """Seconds before the next try, after so many: 1, 2, 4, ... up to 15 minutes."""
    return float(min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (attempt - 1)))


def outbox_of(notify: Notify, box: "Box", clock: Clock) -> "Outbox | None":
    """The way out of the letters of an action; None if it has no address. Raises ConfigError."""
    if not notify.url:
        return None
    return Outbox(box=box, url=notify.url, secret=secret_of(notify.secret_file), clock=clock)


def _client() -> httpx.Client:
    return httpx.Client(timeout=TIMEOUT_S, follow_redirects=False)


class Outbox:
    """A thread that empties the box. `client`: makes the HTTP client, in that thread."""

    def __init__(
        self, *, box: Box, url: str, secret: bytes, clock: Clock, client: Callable[[], httpx.Client] = _client
    ) -> None:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ConfigError(f"actions.notify.url is {url!r}; it must begin with https:// or http://")
        self._box = box
        self._url = url
        self._secret = secret
        self._clock = clock
        self._client = client
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the letter under way; the others stay in the box."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(2 * TIMEOUT_S)

    def deliver(self, client: httpx.Client) -> int:
        """Try every letter that is due once; returns how many were taken."""
        taken = 0
        for letter in self._box.due(self._clock.now()):
            if self._over.is_set():
                break
            taken += self._try(client, letter)
        return taken

    def _run(self) -> None:
        with self._client() as client:
            while not self._over.is_set():
                try:
                    self.deliver(client)
                except EagleEyeError as error:
                    log.warning("the outbox cannot be read or written now: %s", error)
                self._over.wait(POLL_S)

    def _try(self, client: httpx.Client, letter: Letter) -> bool:
        body = letter.body.encode()
        headers = {
            "Content-Type": "application/json",
            "X-Eagle-Eye-Letter": str(letter.id),
            "X-Eagle-Eye-Signature": signature(self._secret, int(self._clock.now()), body),
        }
        try:
            status = client.post(self._url, content=body, headers=headers).status_code
        except httpx.HTTPError as error:
            return self._again(letter, f"{type(error).__name__}: {error}")
        if status < 300:
            self._box.delivered(letter.id, self._clock.now())
            return True
        if 400 <= status < 500 and status not in TRY_AGAIN:
            self._box.given_up(letter.id, self._clock.now(), f"refused with status {status}")
            log.warning("the webhook refused letter %s with status %s", letter.id, status)
            return False
        return self._again(letter, f"status {status}")

    def _again(self, letter: Letter, error: str) -> bool:
        now, attempts = self._clock.now(), letter.attempts + 1
        if attempts >= ATTEMPTS:
            self._box.given_up(letter.id, now, f"{error}, after {attempts} tries")
            log.warning("letter %s is given up after %s tries: %s", letter.id, attempts, error)
        else:
            self._box.failed(letter.id, now + wait_before(attempts), error)
        return False
