"""A certificate authority for tests, and the certificates that it signs."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from eagle_eye.clock import SystemClock

DAY = datetime.timedelta(days=1)


class Authority:
    """Writes PEM files into a directory; `path` is its own certificate."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "authority.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        builder = _builder(self._name, self._name, self._key.public_key(), 10)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def certificate(self, name: str, days: int = 10) -> tuple[Path, Path]:
        """(certificate, key) for a host name or address; one of negative days has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._name, key.public_key(), days)
        builder = builder.add_extension(x509.SubjectAlternativeName([_general(name)]), critical=False)
        certificate, key_file = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return certificate, key_file


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.fromtimestamp(SystemClock().now(), datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 30 * DAY)
        .not_valid_after(now + days * DAY)
    )
