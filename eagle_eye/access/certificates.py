"""What a certificate of ours says, and whether it is good: kind and name in its URI, tenants, hosts, lifetime.

    URI of the subject's alternative names     eagle-eye://node/node-7
    kind                                       server, node or client
    further ones, of a node's                  eagle-eye://tenant/team-a   none: it may speak for the jobs of every tenant
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from eagle_eye.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509

SCHEME = "eagle-eye"
NAME = re.compile(r"\w[\w.-]{0,62}")
"""Of a certificate: a node's name, a server's, a person's. 64 letters is the limit of a common name (RFC 5280)."""
TENANT = f"{SCHEME}://tenant/"
"""What the URI of a tenant begins with. Whatever follows limits the certificate: one that we cannot read allows no tenant, not all."""
WARN_S = 30 * 86_400.0
WARN_SHARE = 0.25
"""A certificate is about to expire in its last 30 days, or in the last quarter of a shorter life."""


class CertificateKind(StrEnum):
    """What the owner of a certificate is."""

    SERVER = "server"
    """Where `eagle-eye server` listens."""
    NODE = "node"
    """Agent and launchers of one node; launchers listen as well."""
    CLIENT = "client"
    """A person's commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a certificate belongs to."""

    kind: CertificateKind
    name: str
    tenants: tuple[str, ...] = ()
    """Whose jobs it may speak for; empty: everybody's."""

    @property
    def uri(self) -> str:
        return f"{SCHEME}://{self.kind}/{self.name}"

    @property
    def uris(self) -> tuple[str, ...]:
        """All that stands in the certificate."""
        return (self.uri, *(f"{TENANT}{quote(tenant, safe='')}" for tenant in self.tenants))

    @classmethod
    def of(cls, uri: str) -> "Identity | None":
        """From a URI; None if it is none of ours."""
        found = re.fullmatch(rf"{SCHEME}://(\w+)/([\w.-]+)", uri, re.ASCII)
        if found is None or found[1] not in tuple(CertificateKind):
            return None
        return cls(kind=CertificateKind(found[1]), name=found[2])

    @classmethod
    def of_all(cls, uris: Iterable[str]) -> "Identity | None":
        """From all URIs of a certificate; None if none of them names its owner, several do, or one of ours cannot be read: it may be the limit to a tenant."""
        ours = {uri: cls.of(uri) for uri in uris if uri.lower().startswith(f"{SCHEME}:")}
        tenants = tuple(unquote(uri.removeprefix(TENANT)) for uri in ours if uri.startswith(TENANT))
        owners = [identity for identity in ours.values() if identity is not None]
        if len(owners) != 1 or len(owners) + len(tenants) != len(ours):
            return None
        return replace(owners[0], tenants=tenants)

    def speaks_for(self, job: str) -> bool:
        """Whether its tenants include that of a job (tenant/name/run)."""
        return not self.tenants or job.partition("/")[0] in self.tenants

    def __str__(self) -> str:
        limit = f" (of {', '.join(self.tenants)})" if self.tenants else ""
        return f"{self.kind} {self.name}{limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateInfo:
    """One certificate. Times are seconds since 1970."""

    identity: Identity | None
    """None: not made by `eagle-eye certs`."""
    subject: str
    issuer: str
    hosts: tuple[str, ...]
    begins: float
    ends: float
    authority: bool
    """It may sign others."""

    def expired(self, now: float) -> bool:
        return now >= self.ends

    def ends_soon(self, now: float) -> bool:
        """Time to renew it."""
        return self.ends - now < min(WARN_S, WARN_SHARE * (self.ends - self.begins))


def certificate_info(pem: bytes, name: str) -> CertificateInfo:
    """What the first certificate of a PEM says; `name` is the file's, for errors. Raises ConfigError."""
    found = load(pem, name)
    from cryptography import x509

    uris: list[str] = []
    hosts: list[str] = []
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
    except x509.ExtensionNotFound:
        pass
    try:
        authority = bool(found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        authority = False
    return CertificateInfo(
        identity=Identity.of_all(uris),
        subject=found.subject.rfc4514_string(),
        issuer=found.issuer.rfc4514_string(),
        hosts=tuple(hosts),
        begins=found.not_valid_before_utc.timestamp(),
        ends=found.not_valid_after_utc.timestamp(),
        authority=authority,
    )


def load(pem: bytes, name: str) -> "x509.Certificate":
    """The first certificate of a PEM. Raises ConfigError."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise ConfigError(f"{name} holds no certificate in PEM: {error}") from None


def signed_by(pem: bytes, authority: bytes) -> bool:
    """Whether one of the authority's certificates signed it."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    certificate = x509.load_pem_x509_certificate(pem)
    for known in x509.load_pem_x509_certificates(authority):
        try:
            certificate.verify_directly_issued_by(known)
        except (ValueError, TypeError, InvalidSignature):
            continue
        return True
    return False


def belongs_to(key: bytes, pem: bytes, name: str) -> bool:
    """Whether a private key is the certificate's. Raises ConfigError if it is no key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        loaded = load_pem_private_key(key, password=None)
    except (ValueError, TypeError):  # its message may quote the key
        raise ConfigError(f"{name} holds no private key in PEM without a password") from None
    return loaded.public_key() == x509.load_pem_x509_certificate(pem).public_key()


def read_public(path: Path, what: str) -> bytes:
    """The bytes of a certificate's file; `what` names its setting in errors. Raises ConfigError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}; `eagle-eye certs` makes one") from error
