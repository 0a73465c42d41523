"""Who gets in to a server: its certificate and its gate, looked at before anything is started."""

from eagle_eye.access import Authorization
from eagle_eye.access.addresses import refuse_open
from eagle_eye.access.certificates import CertificateKind
from eagle_eye.access.credentials import Credentials
from eagle_eye.clock import Clock
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError


def check(config: Config, listen: str, clock: Clock) -> None:
    """Refuse to start open to everybody, or with files that let nobody in. Raises ConfigError or ControlError."""
    credentials = Credentials.of(config.access, clock)
    refuse_open(listen, secured=credentials is not None, insecure=config.server.insecure)
    Authorization.of(config, listen, clock)
    identity = credentials.check().identity if credentials is not None else None
    if credentials is not None and identity is not None and identity.kind is CertificateKind.CLIENT:
        raise ConfigError(f"{credentials.certificate} is a certificate of a {identity}: a server needs one of `eagle-eye certs issue NAME --kind server`")
