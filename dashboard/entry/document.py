"""The document that a browser is given for each page: Streamlit's own, named after us, and with what draws figures fetched at once where figures come first.

Without this a browser hears of it only when the first figure has come, and is idle until then.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

FIGURES = "PlotlyChart.*.js"
"""Of Streamlit's files; where a version has none of that name, nothing is fetched early."""
EARLY = '<script>import("./static/js/{name}").catch(() => {{}})</script>'
"""A plain script, not a module: it runs while the document is read, a module waits for all others."""
LATER = '<link rel="modulepreload" crossorigin href="./static/js/{name}">'


def routes(static: Path, pages: Mapping[str, bool]) -> list[Route]:
    """static: Streamlit's files. pages: address → whether a figure is what one looks for there."""
    html = (static / "index.html").read_text(encoding="utf-8")
    return [Route(address, _answer(written(html, _figures(static), first=first)), methods=["GET"]) for address, first in pages.items()]


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
