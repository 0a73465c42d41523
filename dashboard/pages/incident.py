"""One incident: on the first screen what is broken, who, where, what is done about it and what it costs; below it all the rest."""

from pathlib import Path

from dashboard import boundary, markup, reading, words
from dashboard.errors import NotThere
from dashboard.figures.evidence import evidence as figure
from dashboard.figures.style import SETTINGS
from dashboard.incident import deciding, drawing
from dashboard.incident.drawing import Eye
from dashboard.queries import incident as queries
from dashboard.queries.incident import Story
from dashboard.queries.job import ASIDE
from dashboard.reading import Reader
from dashboard.sources import Sources

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
        st.html(markup.empty("No incident is chosen", markup.joined("Choose one from ", markup.link("the list", "incidents"), ", or follow the link of an alert.")))
        return
    known, who = reading.sources(), reading.reader()
    try:
        told = queries.story(known, name)
    except NotThere as error:
        st.html(markup.empty("There is no such incident", markup.joined(words.capital(str(error)), " Look for it in ", markup.link("the list", "incidents"), ".")))
        return
    if not who.person.sees(told.incident.job):
        st.html(markup.empty("This incident is of another tenant", f"Your token shows the jobs of {who.person.tenant}."))
        return
    known.ahead(lambda: queries.plots(known, told))
    every = None if known.recorded is not None else FAST_S if told.state not in OVER else reading.EVERY_S
    boundary.live(lambda: _first_screen(known, who, name), every=every)
    boundary.live(lambda: _below(known, who, name), every=None if every is None else reading.EVERY_S)


def _first_screen(known: Sources, who: Reader, name: str) -> None:
    import streamlit as st

    told, eye = queries.story(known, name), Eye(zone=who.zone, now=known.now())
    st.html(drawing.head(told, eye))
    st.html(drawing.facts(told))
    with st.container(key="ee-decision"):
        st.html(drawing.deed(told, eye))
        deciding.offer(known, who, told)
    st.html(drawing.track(told))


def _below(known: Sources, who: Reader, name: str) -> None:
    import streamlit as st

    told, eye = queries.story(known, name), Eye(zone=who.zone, now=known.now())
    left, right = st.columns([1.55, 1], gap="large")
    with left:
        boundary.shown(lambda: _evidence(known, who, told))
        boundary.shown(lambda: _told(told, eye))
    with right:
        _beside(told, eye, who)


def _evidence(known: Sources, who: Reader, story: Story) -> None:
    import streamlit as st

    st.html(markup.section("Evidence", f"{words.count(len(story.evidence), 'line')} of {words.count(len(story.incident.parts), 'finding')}"))
    boundary.shown(lambda: _plots(known, who, story))
    if story.evidence:
        st.html(drawing.proofs(story.evidence, Eye(zone=who.zone, now=known.now())))
    if story.log_lines:
        st.html(markup.section("Last words of the process"))
        st.html(drawing.logs(story.log_lines))
    if story.stacks:
        st.html(markup.section("Stacks", "workers at the same place are one; those that stand alone come first"))
        for each in story.stacks:
            st.html(drawing.stack(each))


def _plots(known: Sources, who: Reader, story: Story) -> None:
    import streamlit as st

    plots = queries.plots(known, story)
    if not plots:
        st.html(markup.tagged("p", "The history has no numbers of these minutes.", "ee-second"))
        return
    for first in range(0, len(plots), 2):
        for column, plot in zip(st.columns(2, gap="medium"), plots[first : first + 2], strict=False):
            with column:
                st.plotly_chart(figure(plot, who.palette, who.zone), config=SETTINGS, theme=None, key=f"plot-{plot.title}")
    if any(plot.broken for plot in plots):
        st.html(markup.tagged("p", "A line breaks where no step was done, or no number was written.", "ee-second"))


def _told(story: Story, eye: Eye) -> None:
    import streamlit as st

    st.html(markup.section("What happened", f"seconds after the fault began; times in {words.zone_name(eye.zone, eye.now)}"))
    st.html(drawing.timeline(story, eye))


def _beside(story: Story, eye: Eye, who: Reader) -> None:
    import streamlit as st

    if story.rivals:
        st.html(markup.section("What else it could be"))
        st.html(drawing.rivals(story.rivals))
    repairs = [line for line in story.plans if line.plan.action not in ASIDE]
    if repairs:
        st.html(markup.section("Plans", "what was said, and what came of it"))
        st.html(markup.joined(*(drawing.plan(line, eye, story.work) for line in repairs)))
    if story.notes or story.silences:
        st.html(markup.section("People"))
        st.html(drawing.people(story, eye))
    st.html(markup.section("Similar incidents", "of the same cause"))
    similar = [line for line in story.similar if who.person.sees(line.job)]
    if similar:
        st.html(drawing.similar(similar, eye))
    else:
        st.html(markup.tagged("p", f"It is the first {story.incident.cause} that the ledger knows of.", "ee-second"))
