"""/approve/{token}: one plan, decided once, by a person with a token of their own.

GET shows and never decides: mail gateways and chat programs open links by themselves. The link alone decides nothing
either; whoever POSTs says who they are with an operator's token, in the form or as `Authorization: Bearer …`. No
cookie is used, so a foreign page has nothing to borrow; a browser that says that the POST came from one is refused.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from eagle_eye.access import Person, Role
from eagle_eye.clock import Clock
from eagle_eye.errors import AccessDenied, ControlError, EagleEyeError, NotAuthenticated
from eagle_eye.ledger import Invitation
from eagle_eye.plan_text import plan_words
from eagle_eye.rpc.control_messages import Body, Decision, Waiting

from .html_page import page, paragraph
from .http_server import Asks, Door

PATH = "/approve/{token}"
MAX_BYTES = 8192
"""Of a form."""
MAX_TOKEN = 200


class Engine(Protocol):
    """What decides."""

    def waiting(self, question: Waiting) -> Body: ...
    def decide(self, decision: Decision, approved: bool) -> Body: ...


class Book(Protocol):
    """The ledger's part that invitations need."""

    def invitation(self, token: str) -> Invitation | None: ...
    def use_invitation(self, token: str, person: str, approved: bool, now: float) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """A leader's."""

    engine: Engine
    book: Book


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What was posted. Secrets in it are never shown again."""

    approved: bool
    digest: str
    token: str
    name: str


class _Said(Exception):
    """An answer that ends the matter early."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


def door(desk: Callable[[], Desk | None], gate: Asks, clock: Clock) -> Door:
    """`desk`: the leader's; None while this process does not lead."""
    pages = Pages(desk, gate, clock)

    async def answer(request: Request) -> Response:
        token = str(request.path_params["token"])[:MAX_TOKEN]
        try:
            if request.method != "POST":
                return await run_in_threadpool(pages.show, token)
            form = await _form(request)
            return await run_in_threadpool(pages.decide, token, form)
        except _Said as said:
            return said.response
        except EagleEyeError as error:
            return page("Not now", paragraph(f"{error}. Nothing was decided; try again in a moment.", "bad"), 503)

    return Door(path=PATH, answer=answer, methods=("GET", "POST"), role=None)


class Pages:
    """The pages under one path."""

    def __init__(self, desk: Callable[[], Desk | None], gate: Asks, clock: Clock) -> None:
        self._desk = desk
        self._gate = gate
        self._clock = clock

    def show(self, token: str) -> Response:
        """The plan and the form; or why there is nothing to decide under this link."""
        _, invitation, shown = self._plan(token)
        return self._asked(invitation, shown)

    def decide(self, token: str, form: Form) -> Response:
        """The one answer."""
        desk, invitation, shown = self._plan(token)
        try:
            person = self._admit(form, invitation)
        except NotAuthenticated as error:
            return self._asked(invitation, shown, str(error), 401)
        except AccessDenied as error:
            return self._asked(invitation, shown, str(error), 403)
        if form.digest != invitation.digest:
            return self._asked(invitation, shown, "The form was of another plan: look at this one and decide again.", 409)
        if not desk.book.use_invitation(token, person.name, form.approved, self._clock.now()):
            self._plan(token)  # mostly says why: somebody was faster
            return page("Nothing was decided", paragraph("The link expired just now.", "bad") + _now(desk, invitation), 410)
        word = Decision(plan=invitation.plan, person=person.name, digest=invitation.digest, tenant=person.tenant)
        try:
            answer = desk.engine.decide(word, form.approved)
        except ControlError as error:
            return page("Nothing was decided", paragraph(str(error), "bad") + _now(desk, invitation), 410)
        return page("Approved" if form.approved else "Refused", paragraph(f"{answer['message']}."))

    def _admit(self, form: Form, invitation: Invitation) -> Person:
        person = self._gate.admit(Role.OPERATOR, "approve" if form.approved else "refuse", token=form.token, claimed=form.name)
        if not person.sees(invitation.job):
            raise AccessDenied(f"the token of {person.name} counts for the jobs of {person.tenant} alone")
        return person

    def _plan(self, token: str) -> tuple[Desk, Invitation, dict[str, Any]]:
        """The plan that is still to be decided. Raises _Said where there is none."""
        desk = self._desk()
        if desk is None:
            raise _Said(page("Not here", paragraph("This server does not lead now; the next leader answers in a few seconds."), 503))
        invitation = desk.book.invitation(token)
        if invitation is None:
            raise _Said(page("Unknown link", paragraph("This link was never given out, or was given out too long ago."), 404))
        over = self._over(invitation)
        shown = None if over else _waiting(desk, invitation)
        if shown is None:
            why = over or "The plan of this link is out of date: the incident was planned anew, decided elsewhere, or is over."
            raise _Said(page("Nothing to decide here", paragraph(why) + _now(desk, invitation), 410))
        return desk, invitation, shown

    def _over(self, invitation: Invitation) -> str:
        if invitation.used is not None:
            verb = "approved" if invitation.approved else "refused"
            return f"This link has been used: {invitation.person} {verb} plan {invitation.plan} at {_local(invitation.used)}."
        if invitation.expires <= self._clock.now():
            return f"This link expired at {_local(invitation.expires)}; a newer alert has a newer one."
        return ""

    def _asked(self, invitation: Invitation, shown: dict[str, Any], problem: str = "", status: int = 200) -> Response:
        rows = "".join(f"<dt>{escape(what)}</dt><dd>{escape(text)}</dd>" for what, text in plan_words(shown, self._clock.now()))
        if self._gate.asks_for_tokens:
            who = '<label for="who">Your token</label><input id="who" name="token" type="password" autocomplete="off" required>'
        else:
            who = '<label for="who">Your name</label><input id="who" name="name" autocomplete="username" required>'
        form = (
            f'<form method="post"><input type="hidden" name="digest" value="{escape(invitation.digest)}">{who}'
            '<button name="decision" value="approve">Approve</button><button name="decision" value="refuse">Refuse</button></form>'
        )
        told = paragraph(problem, "bad") if problem else ""
        return page("A plan waits for a person", f"{told}<dl>{rows}</dl>{form}", status)


def _waiting(desk: Desk, invitation: Invitation) -> dict[str, Any] | None:
    """The very plan of the invitation, if it waits."""
    shown = _of_incident(desk, invitation)
    return shown if shown is not None and shown["digest"] == invitation.digest else None


def _of_incident(desk: Desk, invitation: Invitation) -> dict[str, Any] | None:
    """Whatever waits for the same incident."""
    try:
        plans: list[dict[str, Any]] = desk.engine.waiting(Waiting(plan=invitation.incident))["plans"]
    except ControlError:
        return None
    return plans[0] if plans else None


def _now(desk: Desk, invitation: Invitation) -> str:
    shown = _of_incident(desk, invitation)
    if shown is None:
        return paragraph(f"No plan of incident {invitation.incident} waits now.")
    plan = shown["plan"]
    return paragraph(
        f"Now plan {plan['id']} waits for incident {invitation.incident} ({plan['action']}, digest {shown['digest']}): "
        f"use the link of its own alert, or `eagle-eye approve {plan['id']}`."
    )


async def _form(request: Request) -> Form:
    """Raises _Said for a POST of another site's page, or for what is no form of ours."""
    if _foreign(request):
        raise _Said(page("Not from here", paragraph("This was sent by another site's page. Open the link itself and decide there.", "bad"), 403))
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BYTES:
            raise _Said(page("Too large", paragraph("This is no form of this page.", "bad"), 413))
    fields = {name: values[0].strip() for name, values in parse_qs(data.decode(errors="replace")).items()}
    decision = fields.get("decision")
    if decision not in ("approve", "refuse"):
        raise _Said(page("Say approve or refuse", paragraph("The form has no decision: nothing was decided.", "bad"), 400))
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    token = shown.strip() if scheme.lower() == "bearer" else fields.get("token", "")
    return Form(approved=decision == "approve", digest=fields.get("digest", ""), token=token, name=fields.get("name", ""))


def _foreign(request: Request) -> bool:
    """Whether a browser says that another site's page sent this."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host", "")


def _local(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
