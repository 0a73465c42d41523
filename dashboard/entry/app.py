"""What Streamlit is given to run: the pages' script, and the HTML document that a browser is given for each page.

The document is Streamlit's own, named after us, and with what draws figures fetched at once where figures come first. Without this a browser hears of
it only when the first figure has come, and is idle until then.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import streamlit as st
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from dashboard import pages

FIGURES = "PlotlyChart.*.js"
"""Of Streamlit's files; where a version has none of that name, nothing is fetched early."""
EARLY = '<script>import("./static/js/{name}").catch(() => {{}})</script>'
"""A plain script, not a module: it runs while the document is read, a module waits for all others."""
LATER = '<link rel="modulepreload" crossorigin href="./static/js/{name}">'


def routes(static: Path, addresses: Mapping[str, bool]) -> list[Route]:
    """static: Streamlit's files. addresses: of pages → whether a figure is what one looks for there."""
    html = (static / "index.html").read_text(encoding="utf-8")
    return [Route(address, _answer(written(html, _figures(static), first=first)), methods=["GET"]) for address, first in addresses.items()]


def written(html: str, figures: str, *, first: bool) -> str:
    """The document. figures: '' or the name of the file that draws them; first: it is made ready before the page's own script."""
    named = re.sub(r"<title>.*?</title>", "<title>Eagle Eye</title>", html, count=1)
    more = (EARLY if first else LATER).format(name=figures) if figures else ""
    return named.replace("</head>", f"{more}</head>", 1)


def _figures(static: Path) -> str:
    return next((found.name for found in sorted((static / "static" / "js").glob(FIGURES))), "")


def _answer(html: str) -> Callable[[Request], Awaitable[HTMLResponse]]:
    async def answer(_: Request) -> HTMLResponse:
        return HTMLResponse(html, headers={"Cache-Control": "no-cache"})

    return answer


app = st.App(
    Path(__file__).with_name("page.py"),
    routes=routes(Path(st.__file__).parent / "static", {"/": pages.available()[0].figures_first, **{f"/{page.name}": page.figures_first for page in pages.available()}}),
)
