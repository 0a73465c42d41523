"""The first line of a page: its title, a note on the state, and the time span."""

from dashboard import html, viewer
from dashboard.sources import Sources


def heading(title: str, note: object = "") -> None:
    """Without a choice of time."""
    import streamlit as st

    st.html(_head(title, note))


def heading_with_span(known: Sources, title: str, note: object = "", *, usual: str = "1h") -> str:
    """With a choice of time, which is part of the address (?since=1h); returns what was chosen, a key of SPANS."""
    import streamlit as st

    usual = viewer.usual_span(known, usual)
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        st.html(_head(title, note), width="content")
        with st.container(horizontal=True, vertical_alignment="center", gap="small", width="content"):
            chosen = _chosen(known, usual)
    return chosen or usual


def _chosen(known: Sources, usual: str) -> str | None:
    import streamlit as st

    if known.recorded is None:
        st.toggle("Live", value=True, key=viewer.LIVE, help=f"Off: nothing changes while you look; enlarging a part of a figure switches it off, a double click on again. On: every {viewer.EVERY_S:g} s, figures whenever new metrics were written.")
    chosen: str | None = st.segmented_control("How far back", list(viewer.SPANS), default=usual, required=True, key="since", bind="query-params", label_visibility="collapsed")
    return chosen


def _head(title: str, note: object) -> html.Safe:
    return html.tagged("div", html.joined(html.tagged("h1", title), html.muted(note) if note else ""), "ee-head")
