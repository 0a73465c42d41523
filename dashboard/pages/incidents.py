"""The list of incidents: those that wait for a person first, then what is not over, then the past."""

from collections.abc import Sequence

from dashboard import boundary, markup, reading, words
from dashboard.incident import telling
from dashboard.incident.drawing import Eye
from dashboard.markup import Column, Safe
from dashboard.queries import incidents as queries
from dashboard.queries.incidents import IncidentLine
from dashboard.reading import Reader
from dashboard.sources import Sources

LIMIT = 200
SHOWN = {"Not over": True, "All": False}
COLUMNS = (
    Column("State"), Column("Incident", grows=True), Column("Job", wide_only=True),
    Column("Began", number=True), Column("Lasted", number=True, wide_only=True), Column("Bill", number=True, wide_only=True),
)  # fmt: skip


def show() -> None:
    """The list, newest first."""
    import streamlit as st

    known, who = reading.sources(), reading.reader()
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.html(markup.tagged("div", markup.tagged("h1", "Incidents"), "ee-head"), width="content")
        st.segmented_control("Show", list(SHOWN), default=_chosen(), key="incidents-shown", label_visibility="collapsed", on_change=_remember, required=True)
    boundary.live(lambda: _list(known, who), every=None if known.recorded is not None else reading.EVERY_S)


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


def _list(known: Sources, who: Reader) -> None:
    import streamlit as st

    job, only_open = st.query_params.get("job", ""), st.query_params.get("open") == "1"
    found = [line for line in queries.listed(known, open_only=only_open, job=job, limit=LIMIT) if who.person.sees(line.job)]
    if job:
        st.html(markup.tagged("p", markup.joined("Of ", job, ". ", markup.link("Of all jobs", "incidents")), "ee-second"))
    if found:
        st.html(table(found, Eye(zone=who.zone, now=known.now())))
    elif only_open:
        st.html(markup.empty("Nothing is broken", markup.joined("No incident is open. ", markup.link("Past ones", "incidents"))))
    else:
        st.html(markup.empty("No incident so far", "Detectors write here what they find. To see one, break something on purpose:", command="eagle-eye drill --help"))


def table(lines: Sequence[IncidentLine], eye: Eye) -> Safe:
    """What waits for a person first, then what is not over; each newest first."""
    ordered = sorted(lines, key=lambda line: (not line.waiting_plan, line.over, -line.opened))
    return markup.table(COLUMNS, [_row(line, eye) for line in ordered], caption="incidents")


def _row(line: IncidentLine, eye: Eye) -> tuple[object, ...]:
    word, tone = telling.WAITS if line.waiting_plan else telling.STATES.get(line.state, (line.state, "quiet"))
    if line.superseded_by and not line.waiting_plan:
        word, tone = telling.SUPERSEDED
    culprits = words.listed(words.accused(line.culprits), most=2, nothing="nobody named")
    proposed: object = f"Proposed: {words.spoken(line.waiting_action)}" if line.waiting_plan else line.severity.upper()
    if line.superseded_by:
        proposed = markup.joined("superseded by ", markup.link(line.superseded_by, "incident", incident=line.superseded_by))
    lasted = words.duration(line.changed - line.since) if line.over else words.NOTHING
    return (
        markup.badge(word, tone), markup.stacked(markup.link(f"{words.capital(line.cause)}: {culprits}", "incident", incident=line.id), proposed),
        markup.link(line.job, "job", job=line.job), markup.stacked(words.relative(line.since, eye.now), eye.told(line.since)), lasted, words.gpu_hours(line.bill_gpu_hours),
    )  # fmt: skip
