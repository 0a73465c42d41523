"""Shows an error in place of the part of a page that failed; the rest of the page stays."""

import logging
from collections.abc import Callable

from dashboard import formatting, html
from dashboard.errors import NotShown
from eagle_eye.errors import AccessDenied, ConfigError, EagleEyeError, LedgerUnavailable

log = logging.getLogger(__name__)


def shown(part: Callable[[], None]) -> None:
    """Draw a part of a page; in its place an explanation if it cannot be drawn."""
    import streamlit as st

    try:
        part()
    except EagleEyeError as error:
        st.html(explained(error))
    except Exception:  # boundary: one part of a page must not take the others with it
        log.exception("a part of a page cannot be drawn")
        st.html(html.empty("This part of the page has failed", "The reason is in the log of the dashboard. The other parts are not touched; loading the page again may help."))


def live(part: Callable[[], None], *, every: float | None) -> None:
    """As `shown`, again every so many seconds without touching the rest of the page; None: once."""
    import streamlit as st

    st.fragment(lambda: shown(part), run_every=every)()


def explained(error: EagleEyeError) -> html.Safe:
    """What happened and what to do next."""
    return html.empty(title_of(error), formatting.capital(str(error)))


def title_of(error: EagleEyeError) -> str:
    """One line.

    >>> title_of(LedgerUnavailable("…"))
    'The ledger does not answer'
    """
    if isinstance(error, NotShown):
        return error.title
    titles: tuple[tuple[type[EagleEyeError], str], ...] = (
        (AccessDenied, "You may not do this"),
        (ConfigError, "The configuration is not usable"),
        (LedgerUnavailable, "The ledger does not answer"),
    )
    return next((title for kind, title in titles if isinstance(error, kind)), "This cannot be shown")
