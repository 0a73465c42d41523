"""What Streamlit is given to run: the pages' script, and the document of each page."""

from pathlib import Path

import streamlit as st

from dashboard.app import PAGES
from dashboard.entry.document import routes

FIGURES_FIRST = ("", "cluster", "job")

app = st.App(
    Path(__file__).with_name("page.py"),
    routes=routes(Path(st.__file__).parent / "static", {f"/{name}": name in FIGURES_FIRST for name in ("", *(name for name, _, _ in PAGES))}),
)
