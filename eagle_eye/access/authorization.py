"""Authorization of every call of a person, over gRPC and HTTP alike: who calls, and whether the role allows it."""

import logging
from typing import Self

from eagle_eye.clock import Clock
from eagle_eye.config import Config
from eagle_eye.errors import AccessDenied, NotAuthenticated

from .addresses import is_loopback
from .roles import Person, Role
from .tokens import Tokens

log = logging.getLogger(__name__)


class Authorization:
    """Asks for a token wherever any are configured.

    Where none are, a name is a claim: trusted on loopback, where a user who can log in could do more than this anyway;
    elsewhere only reading is allowed.
    """

    def __init__(self, tokens: Tokens, *, trust_claims: bool) -> None:
        """`trust_claims`: claims count while there are no tokens (loopback, or `server.insecure`)."""
        self._tokens = tokens
        self._trusts_claims = trust_claims
        self._warned = False

    @classmethod
    def of(cls, config: Config, address: str, clock: Clock) -> Self:
        """A deployment's authorization for what listens on `address`. Raises ConfigError."""
        return cls(Tokens.of(config, clock), trust_claims=config.server.insecure or is_loopback(address))

    @property
    def asks_for_tokens(self) -> bool:
        """Whether every request needs a token."""
        return self._tokens.configured

    def admit(self, needed: Role, what: str, *, token: str = "", claimed: str = "") -> Person:
        """Who it is, if they may do `what`. Raises NotAuthenticated or AccessDenied.

        `claimed`: the name given with --as; '' to take the token's.
        """
        if not self._tokens.configured:
            return self._claimed(needed, what, claimed)
        person = self._tokens.person(token)
        if claimed and claimed != person.name:
            raise AccessDenied(f"the token belongs to {person.name}, not to {claimed}: run the command without --as")
        if not person.role.includes(needed):
            raise AccessDenied(f"{person.name} has the role {person.role}: {what} needs the role {needed}")
        return person

    def _claimed(self, needed: Role, what: str, claimed: str) -> Person:
        if not self._trusts_claims:
            if needed is Role.VIEWER:
                return Person(name="anyone with a certificate", role=Role.VIEWER)
            raise NotAuthenticated(
                f"{what} needs the role {needed}, but no tokens are configured on this server: make one there with "
                f"`eagle-eye token add NAME --role {needed}`"
            )
        if needed is not Role.VIEWER and not claimed:
            raise NotAuthenticated("no tokens are configured on this server: give your name with --as")
        if needed is not Role.VIEWER and not self._warned:
            self._warned = True
            log.warning("no tokens are configured: the name %s is not authenticated (%s)", claimed, what)
        return Person(name=claimed or "anyone here", role=Role.ADMIN)
