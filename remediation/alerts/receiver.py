"""Receivers of notifications: their configuration, and the secrets that belong to it."""

import functools
import pkgutil
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import msgspec

from eagle_eye.access.secret_files import secret_of
from eagle_eye.errors import ConfigError
from eagle_eye.ranges import CountOrNone, Seconds
from eagle_eye.types import Severity

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
PAGERDUTY_KEY_LENGTH = 32
TOKEN_LENGTH = 8
"""A word of an address that is as long may be a token by itself."""
ALERTMANAGER_PATH = "/api/v2/alerts"
BY_SEVERITY: tuple[Severity, ...] = (Severity.INFO, Severity.SEV3, Severity.SEV2, Severity.SEV1)
"""The mildest first."""


@functools.cache
def receiver_kinds() -> tuple[str, ...]:
    """Names of the modules in remediation/alerts/templates, sorted: each is the template of one kind of receiver."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / "templates")])))


class Receiver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of actions.notify.receivers; each field is explained by the text below it."""

    kind: str
    """plain (our own JSON, signed), pagerduty, slack, alertmanager, or heartbeat (a dead-man's signal, no alerts)."""
    name: str = ""
    """Names it in logs, and its variables EAGLE_EYE_<NAME>_URL, _KEY and _SECRET. Default: its kind."""
    url: str = ""
    """Where to POST. An Alertmanager's is that of its web page; PagerDuty's has a default."""
    url_file: str = ""
    """File with the address, where it is itself a secret, as Slack's is; else the variable EAGLE_EYE_<NAME>_URL."""
    key_file: str = ""
    """File with PagerDuty's routing key, or an Alertmanager's bearer token or user:password; else EAGLE_EYE_<NAME>_KEY."""
    secret_file: str = ""
    """File with the secret that signs each message (HMAC-SHA256); else EAGLE_EYE_<NAME>_SECRET. `plain` must have one."""
    ca_file: str = ""
    """PEM of the authority that signed its certificate; empty: the system's."""
    min_severity: Severity = Severity.SEV3
    """Incidents of less make no alert here: info, sev3, sev2, sev1."""
    per_minute: CountOrNone = 30
    """At most so many messages a minute; the rest wait, and are merged meanwhile. 0: no bound."""
    timeout_s: Seconds = 10.0
    """A receiver that has not answered by then is tried again later."""
    every_s: Seconds = 60.0
    """heartbeat: how often. alertmanager: how often open alerts are sent again; four times as long without us, and they are over."""
    labels: dict[str, str] = {}
    """alertmanager: more labels for each alert, e.g. {cluster = "a"}."""

    def __post_init__(self) -> None:
        if self.kind not in receiver_kinds():
            raise ValueError(f"kind is {self.kind!r}; there are: {', '.join(receiver_kinds())}")
        if self.name and not NAME.fullmatch(self.name):
            raise ValueError(f"name is {self.name!r}; use small letters, digits, - and _")

    def __repr__(self) -> str:
        """Without its address, which may be a secret."""
        return f"Receiver({self.kind} {self.called!r})"

    @property
    def called(self) -> str:
        """Its name, or its kind."""
        return self.name or self.kind

    @property
    def hears(self) -> bool:
        """Whether it gets notifications of incidents."""
        return self.kind != "heartbeat"

    def wants(self, severity: Severity) -> bool:
        """Whether an incident of this severity is for it."""
        return self.hears and BY_SEVERITY.index(severity) >= BY_SEVERITY.index(self.min_severity)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A receiver with everything that is needed to reach it; its text shows none of the secrets."""

    receiver: Receiver
    url: str = field(repr=False)
    key: str = field(default="", repr=False)
    secret: bytes = field(default=b"", repr=False)

    @property
    def name(self) -> str:
        return self.receiver.called

    @property
    def shown(self) -> str:
        """Scheme and host alone: the rest of an address may be a secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"

    def redact(self, text: str) -> str:
        """The text without anything that only this receiver and we should know."""
        parts = urlsplit(self.url)
        secrets = {self.url, self.key, self.secret.decode(errors="replace"), parts.password or "", *self.key.split(":")}
        secrets |= {part for part in (parts.path, parts.query) if len(part) > 1} | {value for _, value in parse_qsl(parts.query)}
        secrets |= {word for word in parts.path.split("/") if len(word) >= TOKEN_LENGTH}
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            text = text.replace(secret, "[redacted]")
        return text


def endpoints_of(receivers: Iterable[Receiver]) -> tuple[Endpoint, ...]:
    """Every receiver with its secrets. Raises ConfigError for one that cannot be reached as it is configured."""
    found: dict[str, Endpoint] = {}
    for receiver in receivers:
        if receiver.called in found:
            raise ConfigError(f"two of actions.notify.receivers are called {receiver.called!r}; give each a `name` of its own")
        found[receiver.called] = endpoint_of(receiver)
    return tuple(found.values())


def endpoint_of(receiver: Receiver) -> Endpoint:
    """One receiver with its secrets, from files or the environment. Raises ConfigError, which shows none of them."""
    name, variable = receiver.called, f"EAGLE_EYE_{receiver.called.upper().replace('-', '_')}"
    default = PAGERDUTY_URL if receiver.kind == "pagerduty" else ""
    url = receiver.url or secret_of(receiver.url_file, f"{variable}_URL", f"the address of alert receiver {name}") or default
    key = secret_of(receiver.key_file, f"{variable}_KEY", f"the key of alert receiver {name}")
    secret = secret_of(receiver.secret_file, f"{variable}_SECRET", f"the signing secret of alert receiver {name}")
    _check_url(name, url, variable)
    _check_secrets(receiver, key, secret, variable)
    return Endpoint(receiver=receiver, url=_whole(receiver, url), key=key, secret=secret.encode())


def _check_url(name: str, url: str, variable: str) -> None:
    if not url:
        raise ConfigError(f"alert receiver {name!r} has no address: set url, name a file in url_file, or set {variable}_URL")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"the address of alert receiver {name!r} is none: it must begin with https:// or http:// and name a host")


def _check_secrets(receiver: Receiver, key: str, secret: str, variable: str) -> None:
    name = f"alert receiver {receiver.called!r}"
    if receiver.kind == "pagerduty" and len(key) != PAGERDUTY_KEY_LENGTH:
        raise ConfigError(f"{name} needs a routing key of {PAGERDUTY_KEY_LENGTH} characters: name a file in key_file, or set {variable}_KEY")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"the key of {name} holds characters that no key has; write nothing else into its file")
    if receiver.ca_file:
        try:
            ssl.create_default_context(cafile=receiver.ca_file)
        except OSError as error:
            raise ConfigError(f"ca_file {receiver.ca_file} of {name} is no PEM that can be read: {error.strerror or error}") from error
    if receiver.kind == "plain" and not secret:
        raise ConfigError(f"{name} has no secret to sign with: name a file in secret_file, or set {variable}_SECRET")


def _whole(receiver: Receiver, url: str) -> str:
    """An Alertmanager is named by its page; alerts go to its API."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    if receiver.kind != "alertmanager" or path.endswith(ALERTMANAGER_PATH):
        return url
    return urlunsplit(parts._replace(path=path + ALERTMANAGER_PATH))
