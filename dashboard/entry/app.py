"""What Streamlit is given to run: the pages' script, and the HTML document of each page."""

from pathlib import Path

import streamlit as st

from dashboard import pages
from dashboard.entry.document import routes

app = st.App(
    Path(__file__).with_name("page.py"),
    routes=routes(Path(st.__file__).parent / "static", {"/": pages.available()[0].figures_first, **{f"/{page.name}": page.figures_first for page in pages.available()}}),
)
