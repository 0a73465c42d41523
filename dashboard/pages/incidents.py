"""The list of incidents: those that wait for approval first, then what is not over, then the past."""

from collections.abc import Sequence

from dashboard import error_boundary, formatting, html, viewer
from dashboard.html import Column, Safe
from dashboard.incident import summary
from dashboard.incident.incident_html import ViewTime
from dashboard.queries import incidents as queries
from dashboard.queries.incidents import IncidentRow
from dashboard.sources import Sources
from dashboard.viewer import Viewer
from eagle_eye.durations import seconds_between

PAGE = {"title": "Incidents", "order": 2}

LIMIT = 200
SHOWN = {"Not over": True, "All": False}
COLUMNS = (
    Column("State"), Column("Incident", grows=True), Column("Job", wide_only=True),
    Column("Began", number=True), Column("Lasted", number=True, wide_only=True), Column("Cost", number=True, wide_only=True),
)  # fmt: skip


def show() -> None:
    """The list, newest first."""
    import streamlit as st

    known, who = viewer.sources(), viewer.reader()
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.html(html.tagged("div", html.tagged("h1", "Incidents"), "ee-head"), width="content")
        st.segmented_control("Show", list(SHOWN), default=_chosen(), key="incidents-shown", label_visibility="collapsed", on_change=_remember, required=True)
    error_boundary.live(lambda: _list(known, who), every=None if known.recorded is not None else viewer.EVERY_S)


def _chosen() -> str:
    import streamlit as st

    return "Not over" if st.query_params.get("open") == "1" else "All"


def _remember() -> None:
    """So that the address can be handed on."""
    import streamlit as st

    if SHOWN.get(st.session_state["incidents-shown"], False):
        st.query_params["open"] = "1"
    else:
        st.query_params.pop("open", None)


def _list(known: Sources, who: Viewer) -> None:
    import streamlit as st

    job, only_open = st.query_params.get("job", ""), st.query_params.get("open") == "1"
    found = [line for line in queries.listed(known, open_only=only_open, job=job, limit=LIMIT) if who.person.sees(line.job)]
    if job:
        st.html(html.tagged("p", html.joined("Of ", job, ". ", html.link("Of all jobs", "incidents")), "ee-second"))
    if found:
        st.html(table(found, ViewTime(zone=who.zone, now=known.now())))
    elif only_open:
        st.html(html.empty("Nothing is broken", html.joined("No incident is open. ", html.link("Past ones", "incidents"))))
    else:
        st.html(html.empty("No incident so far", "Detectors write here what they find. To see one, break something on purpose:", command="eagle-eye drill --help"))


def table(lines: Sequence[IncidentRow], view: ViewTime) -> Safe:
    """What waits for approval first, then what is not over; each newest first."""
    ordered = sorted(lines, key=lambda line: (not line.waiting_plan, line.over, -line.opened))
    return html.table(COLUMNS, [_row(line, view) for line in ordered], caption="incidents")


def _row(line: IncidentRow, view: ViewTime) -> tuple[object, ...]:
    word, tone = summary.WAITS if line.waiting_plan else summary.STATES.get(line.state, (line.state, "quiet"))
    if line.superseded_by and not line.waiting_plan:
        word, tone = summary.SUPERSEDED
    culprits = formatting.listed(formatting.accused(line.culprits), most=2, nothing="unknown")
    proposed: object = f"Proposed: {formatting.spoken(line.waiting_action)}" if line.waiting_plan else line.severity.upper()
    if line.superseded_by:
        proposed = html.joined("superseded by ", html.link(line.superseded_by, "incident", incident=line.superseded_by))
    lasted = formatting.duration(seconds_between(line.since, line.changed)) if line.over else formatting.NOTHING
    return (
        html.badge(word, tone), html.stacked(html.link(f"{formatting.capital(line.cause)}: {culprits}", "incident", incident=line.id), proposed),
        html.link(line.job, "job", job=line.job), html.stacked(formatting.relative(line.since, view.now), view.time_text(line.since)), lasted, formatting.gpu_hours(line.bill_gpu_hours),
    )  # fmt: skip
