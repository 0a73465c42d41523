"""/approve/{token}: one plan, decided once, by a person with a token of their own.

GET shows and never decides: mail gateways and chat programs open links by themselves. The link alone decides nothing
either; a POST must name its sender with an operator's token, in the form or as `Authorization: Bearer …`. No
cookie is used, so a foreign page has nothing to borrow; a browser that says that the POST came from one is refused.
"""

import base64
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from eagle_eye.access import Caller, Person, Role
from eagle_eye.clock import Clock
from eagle_eye.errors import AccessDenied, ControlError, EagleEyeError, NotAuthenticated
from eagle_eye.ledger import ApprovalLink
from eagle_eye.plan_text import plan_rows
from eagle_eye.rpc.control_messages import Body, Decision, PendingPlansQuery

from .http_server import Authorizer, Route, caller_of
from .request_limits import read_body

PATH = "/approve/{token}"
MAX_BYTES = 8192
"""Of a form."""
MAX_TOKEN = 200
STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:42rem;margin:0 auto;padding:1rem;color:#111;background:#fff}"
    "h1{font-size:1.3rem}dt{color:#555;font-size:.85rem}dd{margin:0 0 .6rem;overflow-wrap:anywhere}"
    "label{display:block;margin:.8rem 0 .2rem}input{font:inherit;width:100%;box-sizing:border-box;padding:.5rem}"
    "button{font:inherit;padding:.8rem 1.4rem;margin:1rem .6rem 0 0}.bad{color:#a00}"
    "@media(prefers-color-scheme:dark){body{color:#eee;background:#111}dt{color:#aaa}.bad{color:#f88}}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",  # the address holds the link's token; `no-referrer` would hide the origin of our own form
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex",
}


class DecisionEngine(Protocol):
    """The engine's part: plans that wait for approval, and decisions on them."""

    def pending_plans(self, question: PendingPlansQuery) -> Body: ...
    def decide(self, decision: Decision, approved: bool, link: str = "") -> Body: ...


class ApprovalLinkLedger(Protocol):
    """The ledger's part that approval links need."""

    def approval_link(self, token: str) -> ApprovalLink | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderAccess:
    """What the page needs of a leader."""

    engine: DecisionEngine
    ledger: ApprovalLinkLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalForm:
    """What was posted. Secrets in it are never shown again."""

    approved: bool
    digest: str
    token: str
    name: str
    caller: Caller | None = None
    """What its connection proves; None: a call within this process."""


class _EarlyResponse(Exception):
    """A response that ends the request early."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


def route(leader: Callable[[], LeaderAccess | None], authorization: Authorizer, clock: Clock) -> Route:
    """`leader`: its engine and ledger; None while this process does not lead."""
    pages = ApprovalPage(leader, authorization, clock)

    async def answer(request: Request) -> Response:
        token = str(request.path_params["token"])[:MAX_TOKEN]
        try:
            if request.method != "POST":
                return await run_in_threadpool(pages.show, token)
            form = await _form(request)
            return await run_in_threadpool(pages.decide, token, form)
        except _EarlyResponse as early:
            return early.response
        except EagleEyeError as error:
            return page("Not now", paragraph(f"{error}. Nothing was decided; try again in a moment.", "bad"), 503)

    return Route(path=PATH, answer=answer, methods=("GET", "POST"), role=None)


class ApprovalPage:
    """The pages under one path."""

    def __init__(self, leader: Callable[[], LeaderAccess | None], authorization: Authorizer, clock: Clock) -> None:
        self._leader = leader
        self._authorization = authorization
        self._clock = clock

    def show(self, token: str) -> Response:
        """The plan and the form; or why there is nothing to decide under this link."""
        _, link, shown = self._plan(token)
        return self._asked(link, shown)

    def decide(self, token: str, form: ApprovalForm) -> Response:
        """Record the decision; each link decides once."""
        leader, link, shown = self._plan(token)
        try:
            person = self._admit(form, link)
        except NotAuthenticated as error:
            return self._asked(link, shown, str(error), 401)
        except AccessDenied as error:
            return self._asked(link, shown, str(error), 403)
        if form.digest != link.digest:
            return self._asked(link, shown, "The form was of another plan: look at this one and decide again.", 409)
        decision = Decision(plan=link.plan, person=person.name, digest=link.digest, tenant=person.tenant)
        try:
            answer = leader.engine.decide(decision, form.approved, token)
        except ControlError as error:
            self._plan(token)  # mostly raises with the reason: somebody was faster
            return page("Nothing was decided", paragraph(str(error), "bad") + _now(leader, link), 410)
        return page("Approved" if form.approved else "Refused", paragraph(f"{answer['message']}."))

    def _admit(self, form: ApprovalForm, link: ApprovalLink) -> Person:
        person = self._authorization.admit(Role.OPERATOR, "approve" if form.approved else "refuse", token=form.token, claimed=form.name, caller=form.caller)
        if not person.sees(link.job):
            raise AccessDenied(f"the token of {person.name} counts for the jobs of {person.tenant} alone")
        return person

    def _plan(self, token: str) -> tuple[LeaderAccess, ApprovalLink, dict[str, Any]]:
        """The plan that is still to be decided. Raises _EarlyResponse where there is none."""
        leader = self._leader()
        if leader is None:
            raise _EarlyResponse(page("Not here", paragraph("This server does not lead now; the next leader answers in a few seconds."), 503))
        link = leader.ledger.approval_link(token)
        if link is None:
            raise _EarlyResponse(page("Unknown link", paragraph("This link was never given out, or was given out too long ago."), 404))
        over = self._over(link)
        shown = None if over else _waiting(leader, link)
        if shown is None:
            why = over or "The plan of this link is out of date: the incident was planned again, decided elsewhere, or is over."
            raise _EarlyResponse(page("Nothing to decide here", paragraph(why) + _now(leader, link), 410))
        return leader, link, shown

    def _over(self, link: ApprovalLink) -> str:
        if link.used is not None:
            verb = "approved" if link.approved else "refused"
            return f"This link has been used: {link.person} {verb} plan {link.plan} at {_local(link.used)}."
        if link.expires <= self._clock.now():
            return f"This link expired at {_local(link.expires)}; a newer alert has a newer one."
        return ""

    def _asked(self, link: ApprovalLink, shown: dict[str, Any], problem: str = "", status: int = 200) -> Response:
        rows = "".join(f"<dt>{escape(what)}</dt><dd>{escape(text)}</dd>" for what, text in plan_rows(shown, self._clock.now()))
        if self._authorization.asks_for_tokens:
            who = '<label for="who">Your token</label><input id="who" name="token" type="password" autocomplete="off" required>'
        else:
            who = '<label for="who">Your name</label><input id="who" name="name" autocomplete="username" required>'
        form = (
            f'<form method="post"><input type="hidden" name="digest" value="{escape(link.digest)}">{who}'
            '<button name="decision" value="approve">Approve</button><button name="decision" value="refuse">Refuse</button></form>'
        )
        problem_html = paragraph(problem, "bad") if problem else ""
        return page("Plan awaiting approval", f"{problem_html}<dl>{rows}</dl>{form}", status)


def _waiting(leader: LeaderAccess, link: ApprovalLink) -> dict[str, Any] | None:
    """The very plan of the link, if it waits."""
    shown = _of_incident(leader, link)
    return shown if shown is not None and shown["digest"] == link.digest else None


def _of_incident(leader: LeaderAccess, link: ApprovalLink) -> dict[str, Any] | None:
    """Whatever waits for the same incident."""
    try:
        plans: list[dict[str, Any]] = leader.engine.pending_plans(PendingPlansQuery(plan=link.incident))["plans"]
    except ControlError:
        return None
    return plans[0] if plans else None


def _now(leader: LeaderAccess, link: ApprovalLink) -> str:
    shown = _of_incident(leader, link)
    if shown is None:
        return paragraph(f"No plan of incident {link.incident} waits now.")
    plan = shown["plan"]
    return paragraph(
        f"Now plan {plan['id']} waits for incident {link.incident} ({plan['action']}, digest {shown['digest']}): "
        f"use the link of its own alert, or `eagle-eye approve {plan['id']}`."
    )


async def _form(request: Request) -> ApprovalForm:
    """Raises _EarlyResponse for a POST of another site's page, or for what is no form of ours."""
    if _foreign(request):
        raise _EarlyResponse(page("Not from here", paragraph("This was sent by another site's page. Open the link itself and decide there.", "bad"), 403))
    data = await read_body(request, MAX_BYTES)
    if data is None:
        raise _EarlyResponse(page("Too large", paragraph("This is no form of this page.", "bad"), 413))
    fields = {name: values[0].strip() for name, values in parse_qs(data.decode(errors="replace")).items()}
    decision = fields.get("decision")
    if decision not in ("approve", "refuse"):
        raise _EarlyResponse(page("Approve or refuse?", paragraph("The form has no decision: nothing was decided.", "bad"), 400))
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    token = shown.strip() if scheme.lower() == "bearer" else fields.get("token", "")
    return ApprovalForm(approved=decision == "approve", digest=fields.get("digest", ""), token=token, name=fields.get("name", ""), caller=await run_in_threadpool(caller_of, request))


def _foreign(request: Request) -> bool:
    """Whether a browser reports that another site's page sent this."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = request.headers.get("origin")
    return origin is not None and _host_of(origin) != request.headers.get("host", "")


def _host_of(origin: str) -> str | None:
    """None for what is no address at all."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _local(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def page(title: str, body: str, status: int = 200) -> HTMLResponse:
    """`title` is text, `body` is HTML: the caller escapes what goes into it."""
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>"
    )
    return HTMLResponse(html, status, HEADERS)


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text; `kind`: bad for a problem."""
    return f"<p{f' class={kind}' if kind else ''}>{escape(text)}</p>"
