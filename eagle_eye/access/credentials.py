"""Mutual TLS of the control channel: one process's certificate, its key, and the authority that it trusts.

Files are read for every new connection, so that a renewed certificate counts without a restart.
"""

import logging
import math
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import gmtime, strftime
from typing import Any, Self

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import AccessConfig
from eagle_eye.errors import ConfigError

from .certificates import (
    CertificateInfo,
    CertificateKind,
    Identity,
    belongs_to,
    certificate_info,
    read_public,
    signed_by,
)
from .secret_files import read_private

log = logging.getLogger(__name__)

HOUR_S = 3600.0
DAY_S = 86_400.0
SETTINGS = ("access.ca_file", "access.certificate_file", "access.key_file")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Pems:
    """What the three files hold; never shown."""

    authority: bytes
    certificate: bytes
    key: bytes


class Credentials:
    """One process's three files."""

    def __init__(self, *, authority: Path, certificate: Path, key: Path, clock: Clock) -> None:
        self.authority, self.certificate, self.key = authority, certificate, key
        self._clock = clock
        self._kept: tuple[tuple[int, ...], Pems, CertificateInfo] | None = None
        self._warned = -math.inf
        self._looked = -math.inf

    @classmethod
    def of(cls, access: AccessConfig, clock: Clock | None = None, *, node: str = "") -> Self | None:
        """Those of a configuration; None where it names none. Raises ConfigError where it names only some.

        `node`: what `{node}` in the names of the files stands for; default: the host name.
        """
        given = (access.ca_file, access.certificate_file, access.key_file)
        missing = [name for name, value in zip(SETTINGS, given, strict=True) if not value]
        if len(missing) == len(given):
            return None
        if missing:
            raise ConfigError(f"TLS needs {', '.join(SETTINGS)}; nothing is set for {' and '.join(missing)}")
        authority, certificate, key = (Path(name.replace("{node}", node or socket.gethostname())).expanduser() for name in given)
        return cls(authority=authority, certificate=certificate, key=key, clock=clock or SystemClock())

    def check(self) -> CertificateInfo:
        """What our certificate says. Raises ConfigError for files that cannot work; logs a warning before it expires."""
        return self._read()[1]

    def remind(self) -> None:
        """Call now and then: looks about once an hour, for connections that outlive the warning before the end."""
        now = self._clock.monotonic()
        if now - self._looked < HOUR_S:
            return
        self._looked = now
        try:
            self._read()
        except ConfigError as error:
            log.error("no new connection can be made: %s", error)  # noqa: TRY400  # the message is enough

    def server(self) -> Any:
        """Credentials of a listener, which asks everybody for a certificate. Raises ConfigError."""
        import grpc

        shown = self._read()[0]

        def renewed() -> Any:
            """Asked at each handshake; None: as before."""
            nonlocal shown
            try:
                now = self._read()[0]
            except ConfigError as error:
                log.error("the certificate of before is still shown: %s", error)  # noqa: TRY400  # the message is enough
                return None
            if now is shown:
                return None
            shown = now
            log.info("new connections get %s as it is now", self.certificate)
            return _shown(now)

        return grpc.dynamic_ssl_server_credentials(_shown(shown), renewed, require_client_authentication=True)

    def channel(self) -> Any:
        """Credentials of one connection to a listener. Raises ConfigError."""
        import grpc

        pems = self._read()[0]
        return grpc.ssl_channel_credentials(pems.authority, pems.key, pems.certificate)

    def _read(self) -> tuple[Pems, CertificateInfo]:
        state = tuple(number for path in (self.authority, self.certificate, self.key) for number in _state_of(path))
        if self._kept is None or self._kept[0] != state:
            self._kept = (state, *self._load())
        self._check_time(self._kept[2])
        return self._kept[1:]

    def _load(self) -> tuple[Pems, CertificateInfo]:
        ca_file, certificate_file, key_file = SETTINGS
        pems = Pems(
            authority=read_public(self.authority, ca_file),
            certificate=read_public(self.certificate, certificate_file),
            key=read_private(self.key, key_file),
        )
        certificate_info(pems.authority, f"{ca_file} {self.authority}")
        facts = certificate_info(pems.certificate, f"{certificate_file} {self.certificate}")
        if not belongs_to(pems.key, pems.certificate, f"{key_file} {self.key}"):
            raise ConfigError(f"{key_file} {self.key} is not the key of {self.certificate}")
        if not signed_by(pems.certificate, pems.authority):
            raise ConfigError(f"{certificate_file} {self.certificate} was not signed by {self.authority}: issue it anew with that authority")
        return pems, facts

    def _check_time(self, facts: CertificateInfo) -> None:
        now = self._clock.now()
        if facts.expired(now):
            raise ConfigError(f"the certificate {self.certificate} expired on {_day(facts.ends)}: renew it with `eagle-eye certs issue`")
        if now < facts.begins:
            raise ConfigError(f"the certificate {self.certificate} begins on {_day(facts.begins)}: is the clock right?")
        if facts.ends_soon(now) and now - self._warned >= DAY_S:
            self._warned = now
            log.warning("the certificate %s expires on %s: renew it with `eagle-eye certs issue`", self.certificate, _day(facts.ends))


def node_credentials(access: AccessConfig, node: str, clock: Clock, job: str = "") -> Credentials | None:
    """Those of a process on a node, and of a job if one is named. Raises ConfigError at once for what the server would refuse later."""
    credentials = Credentials.of(access, clock, node=node)
    if credentials is not None and (why := objection(credentials.check().identity, node, f"node {node}", job)):
        raise ConfigError(f"{SETTINGS[1]} {credentials.certificate}: {why}")
    return credentials


def _shown(pems: Pems) -> Any:
    import grpc

    return grpc.ssl_server_certificate_configuration([(pems.key, pems.certificate)], pems.authority)


def _state_of(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return (0,)
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)


def _day(seconds: float) -> str:
    return strftime("%Y-%m-%d %H:%M UTC", gmtime(seconds))


def identity_of(context: Mapping[str, Sequence[bytes]]) -> Identity | None:
    """From gRPC's authentication context; None where the certificate is none of `eagle-eye certs`.

    By the certificate itself: of its URIs gRPC hands on what is before a NUL (`eagle-eye://node/n\\0.example` was node n).
    """
    try:
        return certificate_info(next(iter(context.get("x509_pem_cert", ())), b""), "the certificate of a session").identity
    except (ConfigError, ValueError) as error:  # what the TLS library takes the parser of certificates may not
        log.warning("the certificate of a session cannot be read: %s", error)
        return None


def objection(identity: Identity | None, node: str, what: str, job: str = "") -> str:
    """Why this certificate may not open a session for a process of `node`, and of a job if one is named; '' if it may.
    `what` names the process."""
    if identity is None:
        return f"the certificate names no node: the {what} needs one of `eagle-eye certs issue {node} --kind node`"
    if identity.kind is not CertificateKind.NODE or identity.name != node:
        return f"the certificate of {identity} may not speak as the {what}: it needs one of `eagle-eye certs issue {node} --kind node`"
    if job and not identity.speaks_for(job):
        tenant = job.partition("/")[0]
        return f"the certificate of {identity} may not speak for {job}: issue it with --tenant {tenant} if this node may run jobs of {tenant}"
    return ""
