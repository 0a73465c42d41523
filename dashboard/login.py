"""Login with a token of the deployment. Without any token configured everybody is an administrator, and the page shows that.

A browser keeps a random name of its session as a cookie, so that a reload or an alert's link needs no second login; the
token itself stays in this process, and is asked for its person again in every run.
"""

import secrets
import threading
from dataclasses import dataclass, field

from dashboard import formatting, html
from dashboard.sources import Sources
from dashboard.viewer import PERSON, TOKEN
from eagle_eye.access import Person, Role
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.errors import NotAuthenticated

COOKIE = "eagle-eye-session"
LASTS_S = 12 * 3600
SIGN_OUT = "eagle-eye-sign-out"
ANYBODY = Person(name="anybody", role=Role.ADMIN)


@dataclass(slots=True)
class Sessions:
    """Name of a browser's session → token. Thread-safe; forgotten when the process ends."""

    clock: Clock = field(default_factory=SystemClock)
    _kept: dict[str, tuple[str, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, token: str) -> str:
        """A new name, that nobody can guess."""
        name = secrets.token_urlsafe(32)
        now = self.clock.monotonic()
        with self._lock:
            self._kept = {each: kept for each, kept in self._kept.items() if kept[1] > now}
            self._kept[name] = (token, now + LASTS_S)
        return name

    def token(self, name: str) -> str:
        """'' for a session that is not known, or over."""
        with self._lock:
            token, until = self._kept.get(name, ("", 0.0))
        return token if until > self.clock.monotonic() else ""

    def end(self, name: str) -> None:
        """Nothing happens if it is over already."""
        with self._lock:
            self._kept.pop(name, None)


def person(known: Sources) -> Person | None:
    """The person who is signed in; None after the login form was drawn."""
    import streamlit as st

    if not known.tokens.configured:
        st.session_state[PERSON], st.session_state[TOKEN] = ANYBODY, ""
        return ANYBODY
    token = st.session_state.get(TOKEN) or _sessions().token(st.context.cookies.get(COOKIE, ""))
    complaint = ""
    if token:
        try:
            return _let_in(known.tokens.person(token), token)
        except NotAuthenticated as error:
            complaint = str(error)
    return _asked(known, complaint)


def sign_out() -> None:
    """Forget this browser; the next run asks for a token."""
    import streamlit as st

    _sessions().end(st.context.cookies.get(COOKIE, "") or st.session_state.get(COOKIE, ""))
    _sessions().end(st.session_state.get(COOKIE, ""))
    for key in (PERSON, TOKEN, COOKIE):
        st.session_state.pop(key, None)


def _sessions() -> Sessions:
    import streamlit as st

    return st.cache_resource(show_spinner=False)(Sessions)()  # type: ignore[no-any-return]


def _let_in(who: Person, token: str) -> Person:
    import streamlit as st

    st.session_state[PERSON], st.session_state[TOKEN] = who, token
    name = st.session_state.get(COOKIE)
    if name:  # drawn in every run of this session: the browser may not have heard it in the first
        with st.container(key="ee-cookie", height=1, border=False):
            st.html(f"<script>document.cookie = '{COOKIE}={name}; max-age={LASTS_S}; path=/; SameSite=Strict'</script>", unsafe_allow_javascript=True)
    return who


def _asked(known: Sources, complaint: str) -> Person | None:
    import streamlit as st

    _, middle, _ = st.columns([1, 1, 1])
    with middle:
        st.html(html.tagged("div", html.joined(html.tagged("h1", "Eagle Eye"), html.muted("Sign in with your token.")), "ee-login"))
        with st.form("login", border=False, enter_to_submit=True):
            given = st.text_input("Token", type="password", placeholder="eet_…", autocomplete="current-password").strip()
            sent = st.form_submit_button("Sign in", type="primary", width="stretch")
        if sent:
            complaint = _tried(known, given)
        if complaint:
            st.html(html.banner(formatting.capital(complaint), "alarm"))
        st.html(html.tagged("p", html.joined("Ask an administrator for a token; it is made on the server with ", html.tagged("code", "eagle-eye token add NAME")), "ee-second"))
    return None


def _tried(known: Sources, token: str) -> str:
    """What is wrong with it; begins the session anew if nothing is."""
    import streamlit as st

    try:
        known.tokens.person(token)
    except NotAuthenticated as error:
        return str(error)
    st.session_state[TOKEN], st.session_state[COOKIE] = token, _sessions().begin(token)
    st.rerun()
    return ""
