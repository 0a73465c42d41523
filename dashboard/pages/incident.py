"""One incident: on the first screen what is broken, who, where, what is done about it and what it costs; below it all the rest."""

from pathlib import Path

from dashboard import error_boundary, formatting, html, viewer
from dashboard.errors import NothingFound
from dashboard.figures.evidence_figure import evidence as figure
from dashboard.figures.figure_style import SETTINGS
from dashboard.incident import decision_form, incident_html
from dashboard.incident.incident_html import ViewTime
from dashboard.queries import incident as queries
from dashboard.queries.incident import IncidentDetails
from dashboard.queries.job import ASIDE
from dashboard.sources import Sources
from dashboard.viewer import Viewer

PAGE = {"title": "Incident", "order": 6, "menu": False}

STYLE = Path(__file__).parents[1] / "incident" / "incident.css"
OVER = ("healed", "closed")
FAST_S = 2.0
"""Between two looks while something is going on."""


def show() -> None:
    """Of the incident that the address names."""
    import streamlit as st

    st.html(f"<style>{STYLE.read_text(encoding='utf-8')}</style>")
    name = st.query_params.get("incident", "")
    if not name:
        st.html(html.empty("No incident is chosen", html.joined("Choose one from ", html.link("the list", "incidents"), ", or follow the link of an alert.")))
        return
    known, who = viewer.sources(), viewer.reader()
    try:
        told = queries.story(known, name)
    except NothingFound as error:
        st.html(html.empty("There is no such incident", html.joined(formatting.capital(str(error)), " Look for it in ", html.link("the list", "incidents"), ".")))
        return
    if not who.person.sees(told.incident.job):
        st.html(html.empty("This incident is of another tenant", f"Your token shows the jobs of {who.person.tenant}."))
        return
    known.ahead(lambda: queries.plots(known, told))
    every = None if known.recorded is not None else FAST_S if told.state not in OVER else viewer.EVERY_S
    error_boundary.live(lambda: _first_screen(known, who, name), every=every)
    error_boundary.live(lambda: _below(known, who, name), every=None if every is None else viewer.EVERY_S)


def _first_screen(known: Sources, who: Viewer, name: str) -> None:
    import streamlit as st

    told, view = queries.story(known, name), ViewTime(zone=who.zone, now=known.now())
    st.html(incident_html.head(told, view))
    st.html(incident_html.facts(told))
    with st.container(key="ee-decision"):
        st.html(incident_html.action_summary(told, view))
        decision_form.offer(known, who, told)
    st.html(incident_html.track(told))


def _below(known: Sources, who: Viewer, name: str) -> None:
    import streamlit as st

    told, view = queries.story(known, name), ViewTime(zone=who.zone, now=known.now())
    left, right = st.columns([1.55, 1], gap="large")
    with left:
        error_boundary.shown(lambda: _evidence(known, who, told))
        error_boundary.shown(lambda: _told(told, view))
    with right:
        _beside(told, view, who)


def _evidence(known: Sources, who: Viewer, story: IncidentDetails) -> None:
    import streamlit as st

    st.html(html.section("Evidence", f"{formatting.count(len(story.evidence), 'line')} of {formatting.count(len(story.incident.parts), 'finding')}"))
    error_boundary.shown(lambda: _plots(known, who, story))
    if story.evidence:
        st.html(incident_html.proofs(story.evidence, ViewTime(zone=who.zone, now=known.now())))
    if story.log_lines:
        st.html(html.section("Last words of the process"))
        st.html(incident_html.logs(story.log_lines))
    if story.stacks:
        st.html(html.section("Stacks", "workers at the same place are one; those that stand alone come first"))
        for each in story.stacks:
            st.html(incident_html.stack(each))


def _plots(known: Sources, who: Viewer, story: IncidentDetails) -> None:
    import streamlit as st

    plots = queries.plots(known, story)
    if not plots:
        st.html(html.tagged("p", "The history has no metrics of these minutes.", "ee-second"))
        return
    for first in range(0, len(plots), 2):
        for column, plot in zip(st.columns(2, gap="medium"), plots[first : first + 2], strict=False):
            with column:
                st.plotly_chart(figure(plot, who.palette, who.zone), config=SETTINGS, theme=None, key=f"plot-{plot.title}")
    if any(plot.broken for plot in plots):
        st.html(html.tagged("p", "A line breaks where no step was done, or no number was written.", "ee-second"))


def _told(story: IncidentDetails, view: ViewTime) -> None:
    import streamlit as st

    st.html(html.section("What happened", f"seconds after the fault began; times in {formatting.zone_name(view.zone, view.now)}"))
    st.html(incident_html.timeline(story, view))


def _beside(story: IncidentDetails, view: ViewTime, who: Viewer) -> None:
    import streamlit as st

    if story.rivals:
        st.html(html.section("What else it could be"))
        st.html(incident_html.rivals(story.rivals))
    if story.histories:
        st.html(html.section("History", "earlier incidents and evictions of the accused, of all jobs"))
        st.html(html.joined(*(html.tagged("p", formatting.capital(sentence)) for sentence in story.histories)))
    if story.changes:
        st.html(html.section("Changed before", "software, configuration and start of the job in the 7 days before; whether one of them is the cause is not judged"))
        st.html(html.joined(*(html.tagged("p", formatting.capital(sentence)) for sentence in story.changes)))
    repairs = [line for line in story.plans if line.plan.action not in ASIDE]
    if repairs:
        st.html(html.section("Plans", "what was said, and what came of it"))
        st.html(html.joined(*(incident_html.plan(line, view, story.work) for line in repairs)))
    if story.notes or story.silences:
        st.html(html.section("People"))
        st.html(incident_html.people(story, view))
    st.html(html.section("Similar incidents", "of the same cause"))
    similar = [line for line in story.similar if who.person.sees(line.job)]
    if similar:
        st.html(incident_html.similar(similar, view))
    else:
        st.html(html.tagged("p", f"It is the first {story.incident.cause} that the ledger knows of.", "ee-second"))
