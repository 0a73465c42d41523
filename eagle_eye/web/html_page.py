"""A page for people: works on a phone and without JavaScript, is never kept, framed or indexed."""

import base64
import hashlib
from html import escape

from starlette.responses import HTMLResponse

STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:42rem;margin:0 auto;padding:1rem;color:#111;background:#fff}"
    "h1{font-size:1.3rem}dt{color:#555;font-size:.85rem}dd{margin:0 0 .6rem;overflow-wrap:anywhere}"
    "label{display:block;margin:.8rem 0 .2rem}input{font:inherit;width:100%;box-sizing:border-box;padding:.5rem}"
    "button{font:inherit;padding:.8rem 1.4rem;margin:1rem .6rem 0 0}.bad{color:#a00}"
    "@media(prefers-color-scheme:dark){body{color:#eee;background:#111}dt{color:#aaa}.bad{color:#f88}}"
)
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",  # the address holds the link's token; `no-referrer` would hide the origin of our own form
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex",
}


def page(title: str, body: str, status: int = 200) -> HTMLResponse:
    """`title` is text, `body` is HTML: whoever makes it escapes what goes into it."""
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>"
    )
    return HTMLResponse(html, status, HEADERS)


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text; `kind`: bad for a problem."""
    return f"<p{f' class={kind}' if kind else ''}>{escape(text)}</p>"
