"""A certificate authority in a folder, and the credentials that it issues."""

from dataclasses import dataclass
from pathlib import Path

from eagle_eye.access.certificate_authority import CertificateAuthority
from eagle_eye.access.certificates import CertificateKind, Identity
from eagle_eye.access.credentials import Credentials
from eagle_eye.clock import Clock, FakeClock, SystemClock
from eagle_eye.config import AccessConfig

DAY_S = 86_400.0


@dataclass
class CredentialIssuer:
    """Issues certificates of today and of an earlier time."""

    folder: Path
    clock: Clock

    def __post_init__(self) -> None:
        self.authority = CertificateAuthority(self.folder)
        self.authority.make(self.clock.now() - 400 * DAY_S)

    def issue(self, name: str, kind: CertificateKind, *hosts: str, made_days_ago: float = 0.0, days: float = 365.0, tenants: tuple[str, ...] = ()) -> AccessConfig:
        now = self.clock.now() - made_days_ago * DAY_S
        made = self.authority.issue(Identity(kind=kind, name=name, tenants=tenants), hosts, now=now, days=days, out=self.folder / "out")
        return AccessConfig(ca_file=str(self.authority.certificate), certificate_file=str(made.certificate), key_file=str(made.key))

    def credentials(self, name: str, kind: CertificateKind, *hosts: str, made_days_ago: float = 0.0, days: float = 365.0, tenants: tuple[str, ...] = ()) -> Credentials:
        """With a clock at which they are still good, whatever the wire says."""
        access = self.issue(name, kind, *hosts, made_days_ago=made_days_ago, days=days, tenants=tenants)
        ago = self.clock.now() - made_days_ago * DAY_S
        found = Credentials.of(access, FakeClock(ago) if made_days_ago else self.clock)
        assert found is not None
        return found


def credential_issuer(folder: Path, clock: Clock | None = None) -> CredentialIssuer:
    return CredentialIssuer(folder, clock or SystemClock())
