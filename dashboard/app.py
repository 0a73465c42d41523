"""The script that Streamlit runs: style, login, navigation and the page. `eagle-eye dashboard` starts it; docs/dashboard.md shows it."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import streamlit as st

from dashboard import error_boundary, html, login, pages, theme, viewer
from dashboard.pages import PageInfo
from dashboard.sources import Sources
from eagle_eye.access import Person


def main() -> None:
    """One run of the script: draws the page of one viewer."""
    st.set_page_config(page_title="Eagle Eye", page_icon="🦅", layout="wide", initial_sidebar_state="collapsed")
    theme.apply(viewer.colours())
    error_boundary.shown(_authenticate_and_show)


def _authenticate_and_show() -> None:
    known = viewer.sources()
    first, *others = pages.available()
    entries = [_page(first, address="first", default=True), *map(_page, others), _page(first, hidden=True)]
    who = login.person(known)
    if who is None:
        st.navigation(entries, position="hidden")
        return
    chosen = st.navigation(entries, position="top")
    _recorded_banner(known)
    chosen.run()
    _footer(known, who)


def _page(page: PageInfo, *, address: str = "", default: bool = False, hidden: bool = False) -> Any:
    """The first page has no address of its own; it is found under its name, too, as a hidden one."""

    def show() -> None:
        error_boundary.shown(_shown_by(page.name))

    return st.Page(show, title=page.title, url_path=address or page.name, default=default, visibility="visible" if page.menu and not hidden else "hidden")


def _shown_by(name: str) -> Callable[[], None]:
    """The page's own function; its file is read when it is first shown."""

    def show() -> None:
        import_module(f"dashboard.pages.{name}").show()

    return show


def _recorded_banner(known: Sources) -> None:
    """Says of a recorded run that nothing in it can be changed."""
    if known.recorded is not None:
        st.html(html.banner(html.joined("This is a recorded run: times are those of the run, and commands are not accepted. ", html.tagged("code", known.recorded.command)), "accent"))


def _footer(known: Sources, who: Person) -> None:
    """The signed-in person, at the foot of the page."""
    if not known.tokens.configured:
        st.html(html.tagged("p", html.joined("No tokens are configured: everybody who can reach this address is an administrator. ", html.tagged("code", "eagle-eye token add NAME"), " creates one."), "ee-foot"))
        return
    of = f" of {who.tenant}" if who.tenant else ""
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="ee-foot"):
        st.html(html.tagged("p", f"Signed in as {who.name}, {who.role}{of}.", "ee-foot"), width="content")
        st.button("Sign out", type="tertiary", on_click=login.sign_out)


if __name__ == "__main__":  # run by itself, as tests do
    main()
