"""Forms of an incident: approve, refuse, silence, note. They are sent over the control channel, with the digest of the plan that was shown."""

from collections.abc import Callable
from dataclasses import dataclass

from dashboard import formatting, html
from dashboard.errors import NotShown
from dashboard.queries.incident import IncidentDetails, PlanRow
from dashboard.sources import Sources
from dashboard.viewer import Viewer
from eagle_eye.access import Role
from eagle_eye.errors import AccessDenied, EagleEyeError
from eagle_eye.rpc.control_messages import Decision, NoteCommand, SilenceCommand
from eagle_eye.rpc.operator_client import OperatorMessage

from . import summary

NAME = "eagle-eye-name"
SENT = "eagle-eye-sent"
SILENCES = {"30 minutes": 1800.0, "1 hour": 3600.0, "4 hours": 14_400.0, "1 day": 86_400.0}


@dataclass(slots=True)
class _Sent:
    """What was sent in this view. It is changed in place: at each access to its own state Streamlit may begin the page anew, with the button pressed as before."""

    count: int = 0
    """Part of the buttons' keys: what was open closes with an answer, so that this is seen, and a click is sent once, however often the page is drawn meanwhile."""
    incident: str = ""
    answer: str = ""
    tone: html.Tone = "quiet"


def _sent_before() -> _Sent:
    import streamlit as st

    if SENT not in st.session_state:
        st.session_state[SENT] = _Sent()
    found: _Sent = st.session_state[SENT]
    return found


def offer(known: Sources, who: Viewer, story: IncidentDetails) -> None:
    """The buttons under what is proposed, and what came of the last one that was pressed."""
    import streamlit as st

    _answer(story)
    turn = _sent_before().count
    with st.container(horizontal=True, gap="small", key="ee-words"):
        if story.waiting is not None:
            _decide(known, who, story, story.waiting, "approve")
            _decide(known, who, story, story.waiting, "refuse")
        with st.popover("Silence", icon=":material/notifications_paused:", key=f"silence-{turn}"):
            _asked_for(who, "silence", lambda: _silence(known, who, story))
        with st.popover("Note", icon=":material/edit_note:", key=f"note-{turn}"):
            _asked_for(who, "write a note", lambda: _note(known, who, story))


def _decide(known: Sources, who: Viewer, story: IncidentDetails, line: PlanRow, what: str) -> None:
    """One word on one digest: a plan that has changed meanwhile has other buttons."""
    import streamlit as st

    approves = what == "approve"
    with st.popover(f"{what.capitalize()}…", type="primary" if approves else "secondary", key=f"{what}-{line.digest}-{_sent_before().count}"):
        _asked_for(who, what, lambda: _confirm(known, who, story, line, what))


def _asked_for(who: Viewer, what: str, form: Callable[[], None]) -> None:
    """The form, or for a viewer who may do it."""
    import streamlit as st

    if who.person.role.includes(Role.OPERATOR):
        form()
    else:
        st.html(refusal(who, what))


def refusal(who: Viewer, what: str) -> html.Safe:
    """What a viewer reads: nothing was done, and who can do it."""
    title = f"To {what} takes the role operator"
    advice = f"You are signed in as {who.person.name}, a {who.person.role}: you may look at everything, and nothing was sent. Ask an operator, or sign in with an operator's token."
    return html.joined(html.tagged("b", title), html.tagged("p", advice, "ee-second"))


def _confirm(known: Sources, who: Viewer, story: IncidentDetails, line: PlanRow, what: str) -> None:
    import streamlit as st

    st.html(html.tagged("p", html.tagged("b", f"{summary.action(line.plan)}?")))  # no Markdown: a job chooses the names of its nodes
    st.caption(f"Your decision is valid for plan `{line.digest}` only: if its action or targets change, a new approval is needed.")
    name = _name(who, f"{what}-{line.digest}")
    note = st.text_input("Why (kept with the incident)", key=f"why-{what}-{line.digest}", placeholder="optional")
    if st.button(f"{what.capitalize()} now", type="primary", key=f"do-{what}-{line.digest}-{_sent_before().count}", width="stretch"):
        word = Decision(plan=line.plan.id, person=name, digest=line.digest, note=note.strip())
        _send(known, who, story, what, word)


def _silence(known: Sources, who: Viewer, story: IncidentDetails) -> None:
    import streamlit as st

    st.caption("No automatic action on what you choose. Self-healing of jobs goes on, and alerts are still sent.")
    choices = _silenced(story)
    with st.form(f"silence-{story.incident.id}-{_sent_before().count}", border=False):
        name = _name(who, "silence")
        about = st.radio("About", list(choices), format_func=formatting.unmarked, key=f"about-{story.incident.id}")
        length = st.selectbox("For", list(SILENCES), key=f"length-{story.incident.id}")
        reason = st.text_input("Why", key=f"reason-{story.incident.id}", placeholder="on-call engineers read it")
        if st.form_submit_button("Silence", type="primary", width="stretch"):
            job, node, cause = choices[about or next(iter(choices))]
            _send(known, who, story, "silence", SilenceCommand(person=name, job=job, node=node, cause=cause, seconds=SILENCES[length or "1 hour"], reason=reason.strip()))


def _silenced(story: IncidentDetails) -> dict[str, tuple[str, str, str]]:
    """Words → (job, node, cause); the narrowest first."""
    incident = story.incident
    choices = {f"{incident.cause} on {node}": ("", node, incident.cause) for node in story.nodes[:1]}
    choices |= {f"everything on {node}": ("", node, "") for node in story.nodes[:1]}
    return {**choices, f"{incident.cause} in {incident.job}": (incident.job, "", incident.cause), f"everything in {incident.job}": (incident.job, "", "")}


def _note(known: Sources, who: Viewer, story: IncidentDetails) -> None:
    import streamlit as st

    with st.form(f"note-{story.incident.id}-{_sent_before().count}", border=False, clear_on_submit=True):
        name = _name(who, "note")
        text = st.text_area("Note", key=f"note-text-{story.incident.id}", placeholder="the cable was loose, replaced")
        if st.form_submit_button("Keep", type="primary", width="stretch"):
            _send(known, who, story, "note", NoteCommand(incident=story.incident.id, person=name, text=text.strip()))


def _name(who: Viewer, where: str) -> str:
    """Name of the operator: '' with a token, which names them, else what they enter."""
    import streamlit as st

    if who.token:
        return ""
    given: str = st.text_input("Your name", value=st.session_state.get(NAME, ""), key=f"name-{where}", placeholder="recorded with your decision").strip()
    if given:
        st.session_state[NAME] = given
    return given


def _send(known: Sources, who: Viewer, story: IncidentDetails, what: str, message: OperatorMessage) -> None:
    import streamlit as st

    before = _sent_before()
    before.count += 1
    before.incident, (before.answer, before.tone) = story.incident.id, sent(known, who, what, message)
    st.rerun()


def sent(known: Sources, who: Viewer, what: str, message: OperatorMessage) -> tuple[str, html.Tone]:
    """The answer in words, and how it is shown."""
    if not who.token and not getattr(message, "person", ""):
        return "Enter your name: it is recorded with your decision.", "warning"
    try:
        return f"{known.order(what, message, who.token)['message']}.", "good"
    except AccessDenied as error:
        return f"Nothing was done: {error}.", "warning"
    except NotShown as error:
        return f"{error.title}: {error}", "accent"
    except EagleEyeError as error:
        return f"Nothing was done: {error}", "alarm"


def _answer(story: IncidentDetails) -> None:
    import streamlit as st

    before = _sent_before()
    if before.incident == story.incident.id:
        st.html(html.banner(before.answer, before.tone))
