"""What Streamlit runs: look, login, and the pages. `eagle-eye dashboard` starts it; docs/dashboard.md shows it."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import streamlit as st

from dashboard import error_boundary, html, login, page_style, viewer
from dashboard.sources import Sources
from eagle_eye.access import Person

PAGES = (
    ("cluster", "Cluster", True),
    ("incidents", "Incidents", True),
    ("job", "Jobs", True),
    ("actions", "Actions", True),
    ("eagle_eye", "Eagle Eye", True),
    ("incident", "Incident", False),
)
"""File and address, title, whether the menu shows it. The first is where one begins: it has no address, but is found under its name, too."""


def main() -> None:
    """One run of the script: of one reader's page."""
    st.set_page_config(page_title="Eagle Eye", page_icon="🦅", layout="wide", initial_sidebar_state="collapsed")
    page_style.apply(viewer.colours())
    error_boundary.shown(_let_in_and_show)


def _let_in_and_show() -> None:
    known = viewer.sources()
    name, title, _ = PAGES[0]
    pages = [_page(name, title, True, first=True), *(_page(*each) for each in PAGES[1:]), _page(name, title, False)]
    who = login.person(known)
    if who is None:
        st.navigation(pages, position="hidden")
        return
    chosen = st.navigation(pages, position="top")
    _told(known)
    chosen.run()
    _signed(known, who)


def _page(name: str, title: str, seen: bool, *, first: bool = False) -> Any:
    def show() -> None:
        error_boundary.shown(_shown_by(name))

    return st.Page(show, title=title, url_path="first" if first else name, default=first, visibility="visible" if seen else "hidden")


def _shown_by(name: str) -> Callable[[], None]:
    """The page's own function; its file is read when it is first shown."""

    def show() -> None:
        import_module(f"dashboard.pages.{name}").show()

    return show


def _told(known: Sources) -> None:
    """What whoever looks must know before anything else."""
    if known.recorded is not None:
        st.html(html.banner(html.joined("A recorded run. Times are as they were; nobody is there to be told. ", html.tagged("code", known.recorded.command)), "accent"))


def _signed(known: Sources, who: Person) -> None:
    """Who reads, at the foot of the page."""
    if not known.tokens.configured:
        st.html(html.tagged("p", html.joined("No tokens are set up: everybody who reaches this address is an administrator. ", html.tagged("code", "eagle-eye token add NAME"), " changes that."), "ee-foot"))
        return
    of = f" of {who.tenant}" if who.tenant else ""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="ee-foot"):
        st.html(html.tagged("p", f"Signed in as {who.name}, {who.role}{of}.", "ee-foot"), width="content")
        st.button("Sign out", type="tertiary", on_click=login.sign_out)


if __name__ == "__main__":  # run by itself, as tests do
    main()
