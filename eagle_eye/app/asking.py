"""A person's question to the server, with this deployment's certificate and the person's token."""

import getpass

import msgspec

from eagle_eye.access.credentials import Credentials
from eagle_eye.access.tokens import own_token
from eagle_eye.config import Config
from eagle_eye.rpc.client import call
from eagle_eye.rpc.messages import Body
from eagle_eye.rpc.unary import Question


def ask(config: Config, server: str, what: str, message: Question | None = None) -> Body:
    """What the server answers; `server`: host:port, '' for the configuration's. Raises EagleEyeError.

    A message that names no person is said by whom the token names, and without a token by the login.
    """
    token = own_token(config.access)
    if message is not None and getattr(message, "person", None) == "" and not token:
        message = msgspec.structs.replace(message, person=getpass.getuser())
    return call(server or config.server.listen, what, message, credentials=Credentials.of(config.access), token=token)
