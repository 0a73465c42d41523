"""Authorization of every call of a person, over gRPC and HTTP alike: who calls, and whether the role allows it."""

import logging
import os
from typing import Self

from eagle_eye.clock import Clock
from eagle_eye.config import Config
from eagle_eye.errors import AccessDenied, NotAuthenticated

from .addresses import is_loopback
from .caller import Caller, this_process, user_name
from .roles import Person, Role
from .tokens import Tokens

log = logging.getLogger(__name__)

TOLD_KEPT = 1000
"""Callers that are remembered, so that the refusal of each is told once: a certificate names whatever its authority signs."""


class Authorization:
    """Asks for a token wherever any are configured.

    Where none are, who owns the server decides, root and the user that it runs as: they could do more than this anyway. Any other
    caller needs a token. What listens beyond loopback lets who has a certificate read, and nobody decide.
    """

    def __init__(self, tokens: Tokens, *, trust_claims: bool, everybody: bool = False) -> None:
        """`trust_claims`: while there are no tokens, the server's owner is believed (on loopback), or `everybody` (`server.insecure`)."""
        self._tokens = tokens
        self._trusts_claims = trust_claims or everybody
        self._trusts_everybody = everybody
        self._warned = False
        self._refused: set[Caller] = set()

    @classmethod
    def of(cls, config: Config, address: str, clock: Clock) -> Self:
        """A deployment's authorization for what listens on `address`. Raises ConfigError."""
        return cls(Tokens.of(config, clock), trust_claims=is_loopback(address), everybody=config.server.insecure)

    @property
    def asks_for_tokens(self) -> bool:
        """Whether every request needs a token."""
        return self._tokens.configured

    def admit(self, needed: Role, what: str, *, token: str = "", claimed: str = "", caller: Caller | None = None) -> Person:
        """Who it is, if they may do `what`. Raises NotAuthenticated or AccessDenied.

        `claimed`: the name given with --as; '' to take the token's. `caller`: what the connection proves; None: a call within this process.
        """
        if not self._tokens.configured:
            return self._claimed(needed, what, claimed, caller or this_process())
        person = self._tokens.person(token)
        if claimed and claimed != person.name:
            raise AccessDenied(f"the token belongs to {person.name}, not to {claimed}: run the command without --as")
        if not person.role.includes(needed):
            raise AccessDenied(f"{person.name} has the role {person.role}: {what} needs the role {needed}")
        return person

    def _claimed(self, needed: Role, what: str, claimed: str, caller: Caller) -> Person:
        if not self._trusts_claims:
            if needed is Role.VIEWER:
                return Person(name="anyone with a certificate", role=Role.VIEWER)
            raise NotAuthenticated(
                f"{what} needs the role {needed}, but no tokens are configured on this server: make one there with "
                f"`eagle-eye token add NAME --role {needed}`"
            )
        if not (self._trusts_everybody or caller.owns_server):
            raise NotAuthenticated(self._told_once(caller, _no_owner(needed, what, caller)))
        if needed is not Role.VIEWER and not claimed:
            raise NotAuthenticated("no tokens are configured on this server: give your name with --as")
        if needed is not Role.VIEWER and not self._warned:
            self._warned = True
            log.warning("no tokens are configured: the name %s is not authenticated (%s)", claimed, what)
        return Person(name=claimed or "anyone here", role=Role.ADMIN)

    def _told_once(self, caller: Caller, why: str) -> str:
        """The reason, which the log has once for each caller."""
        if caller not in self._refused:
            if len(self._refused) >= TOLD_KEPT:
                self._refused.clear()
            self._refused.add(caller)
            log.warning("refused: %s", why)
        return why


def _no_owner(needed: Role, what: str, caller: Caller) -> str:
    """Why a caller may not, where only the server's owner may."""
    owner = user_name(os.geteuid())
    remedy = f"ask {owner} for a token (`eagle-eye token add NAME --role {needed}`)"
    if not caller.local:
        return f"{what} came through a proxy, or from another machine, and this server has no tokens: {remedy}"
    return f"{what} was asked by {caller}; without tokens this server obeys {owner}, as whom it runs, and root alone: {remedy}"
