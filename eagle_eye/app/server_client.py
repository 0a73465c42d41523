"""An operator's request to the server, with this deployment's certificate and the operator's token."""

import getpass

import msgspec

from eagle_eye.access.addresses import addresses_of, is_loopback
from eagle_eye.access.credentials import Credentials
from eagle_eye.access.tokens import own_token
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError
from eagle_eye.rpc.control_client import call
from eagle_eye.rpc.control_messages import Body
from eagle_eye.rpc.operator_client import OperatorMessage


def ask(config: Config, server: str, what: str, message: OperatorMessage | None = None) -> Body:
    """The answer of the server; `server`: host:port, '' for the configuration's. Raises EagleEyeError.

    A message that names no person comes from the person of the token, and without a token from the login name.
    """
    address, token, credentials = server or config.server.known_at, own_token(config.access), Credentials.of(config.access)
    if token and not (credentials or config.server.insecure or all(is_loopback(each) for each in addresses_of(address))):
        raise ConfigError(f"your token is not sent to {address} without TLS: set access.ca_file, access.certificate_file and access.key_file")
    if message is not None and getattr(message, "person", None) == "" and not token:
        message = msgspec.structs.replace(message, person=getpass.getuser())
    return call(address, what, message, credentials=credentials, token=token)
