"""A small certificate authority for one cluster: its own key, and certificates for servers, nodes and people.

Keys are on the curve P-256, signatures ECDSA with SHA-256. The authority may sign no further authority (path length
0, RFC 5280 section 4.2.1.9); a certificate serves only what its kind needs (extended key usage, section 4.2.1.12).
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from eagle_eye.errors import ConfigError

from .certificates import NAME, CertificateKind, Identity, belongs_to, load, read_public
from .secret_files import make_private_directory, read_private, write_private

AUTHORITY_DAYS = 3650
SKEW_S = 300.0
"""Certificates begin so long before they were made: clocks differ."""
HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
ALWAYS = ("localhost", "127.0.0.1", "::1")
"""Hosts of every certificate that listens: only this machine's processes are reached there."""
USAGE = {
    CertificateKind.SERVER: (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),  # commands on its own machine
    CertificateKind.NODE: (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH),
    CertificateKind.CLIENT: (ExtendedKeyUsageOID.CLIENT_AUTH,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate:
    """The files of a certificate."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """The authority whose files lie in a directory: ca.pem, which everybody gets, and ca.key, which nobody else gets."""

    directory: Path

    @property
    def certificate(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def key(self) -> Path:
        return self.directory / "ca.key"

    def make(self, now: float, days: int = AUTHORITY_DAYS) -> None:
        """Make it. Raises ConfigError if there is one already: all its certificates would be worth nothing."""
        if self.key.exists() or self.certificate.exists():
            raise ConfigError(f"there is an authority in {self.directory} already: use it, or another --dir")
        make_private_directory(self.directory)
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("Eagle Eye authority")
        builder = (
            _lasting(name, name, key.public_key(), now, days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_others=True), critical=True)
        )
        write_private(self.key, _key_pem(key))
        write_private(self.certificate, _pem(builder.sign(key, hashes.SHA256())))

    def issue(self, identity: Identity, hosts: Iterable[str], *, now: float, days: float, out: Path) -> IssuedCertificate:
        """A new key and its certificate: NAME.pem and NAME.key in `out`; those before are replaced. Raises ConfigError."""
        if not NAME.fullmatch(identity.name):
            raise ConfigError(f"{identity.name!r} is not usable as a name: letters, digits, '_', '-' and '.', at most 63")
        if wrong := next((tenant for tenant in identity.tenants if not NAME.fullmatch(tenant)), None):
            raise ConfigError(f"--tenant {wrong!r} is no name of a tenant: letters, digits, '_', '-' and '.', at most 63; the first part of a job's name")
        own_pem, own_key = self._load()
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in identity.uris]
        if identity.kind is not CertificateKind.CLIENT:
            names += [_host(host) for host in dict.fromkeys([*(hosts or [identity.name]), *ALWAYS])]
        builder = (
            _lasting(_name(identity.name, str(identity.kind)), own_pem.subject, key.public_key(), now, days)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_others=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(USAGE[identity.kind]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(own_key.public_key()), critical=False)
        )
        if builder_ends(now, days) > own_pem.not_valid_after_utc.timestamp():
            raise ConfigError(f"the authority itself ends before these {days:g} days: choose fewer with --days")
        made = IssuedCertificate(certificate=out / f"{identity.name}.pem", key=out / f"{identity.name}.key")
        write_private(made.key, _key_pem(key))
        write_private(made.certificate, _pem(builder.sign(own_key, hashes.SHA256())))
        return made

    def _load(self) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        if not self.key.exists():
            raise ConfigError(f"there is no authority in {self.directory}: `eagle-eye certs init` makes one")
        pem, key = read_public(self.certificate, "ca.pem"), read_private(self.key, "ca.key")
        certificate = load(pem, str(self.certificate))
        if not belongs_to(key, pem, str(self.key)):
            raise ConfigError(f"{self.key} is not the key of {self.certificate}")
        loaded = serialization.load_pem_private_key(key, password=None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"{self.key} is of a kind that this command does not sign with: use your own tool for it")
        return certificate, loaded


def builder_ends(now: float, days: float) -> float:
    """When a certificate made now ends. Seconds since 1970."""
    return now + days * 86_400.0


def _lasting(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: float, days: float) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(now - SKEW_S, UTC))
        .not_valid_after(datetime.fromtimestamp(builder_ends(now, days), UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(common: str, unit: str = "") -> x509.Name:
    units = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)] if unit else []
    return x509.Name([*units, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not HOST.fullmatch(host):
        raise ConfigError(f"--host {host!r} is neither a host name nor an address")
    return x509.DNSName(host)


def _key_usage(*, signs_others: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_others, key_cert_sign=signs_others, crl_sign=signs_others, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
