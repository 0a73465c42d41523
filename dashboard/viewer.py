"""The viewer of a page, the time span and the zone: what every page needs before it queries data."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from dashboard import formatting
from dashboard.figures.colours import Palette, palette
from dashboard.sources import Sources
from eagle_eye.access import Person

SPANS = {"10m": 600.0, "1h": 3600.0, "6h": 21_600.0, "24h": 86_400.0, "7d": 604_800.0}
"""How far back a page looks, as it stands in its address (?since=1h) → seconds."""
EVERY_S = 5.0
"""Between two looks of a page that stays open."""
LIVE = "live"
"""Key of the switch that stops refreshing; links.js switches it off while the reader has enlarged a part of a figure."""
DRAWN = "eagle-eye-drawn"
PERSON = "eagle-eye-person"
TOKEN = "eagle-eye-token"  # noqa: S105 -- the name of a key


@dataclass(frozen=True, slots=True)
class Viewer:
    """The person who looks at a page, and their zone and colours."""

    person: Person
    token: str
    """'' where nobody needs one."""
    zone: tzinfo
    palette: Palette


def sources() -> Sources:
    """One for all viewers of this process. Raises ConfigError."""
    import streamlit as st

    return st.cache_resource(show_spinner=False)(Sources.from_environment)()  # type: ignore[no-any-return]


def colours() -> Palette:
    """Of the theme in the reader's browser."""
    import streamlit as st

    return palette(st.context.theme.type)


def reader() -> Viewer:
    """The viewer that login.py has signed in."""
    import streamlit as st

    return Viewer(st.session_state[PERSON], st.session_state.get(TOKEN, ""), formatting.zone(st.context.timezone), colours())


def usual_span(known: Sources, otherwise: str) -> str:
    """A recorded run is shown whole, a live one for the default span of the page."""
    if known.recorded is None:
        return otherwise
    length = known.recorded.ended - known.recorded.began
    return next((name for name, seconds in SPANS.items() if seconds >= length), "7d")


def window(known: Sources, name: str) -> tuple[float, float]:
    """Beginning and end of a span, seconds since 1970; it ends now."""
    until = known.now()
    return until - SPANS.get(name, SPANS["1h"]), until


def written_window(known: Sources, name: str) -> tuple[float, float]:
    """As `window`, but it moves only as often as numbers are written: a figure stays the same between, and so does the reader's zoom."""
    if known.recorded is not None:
        return window(known, name)
    step = max(1.0, known.config.history.file_s)
    until = (known.now() // step + 1) * step
    return until - SPANS.get(name, SPANS["1h"]) - step, until


def every(known: Sources) -> float | None:
    """Seconds between two looks; None for a recorded run, in which nothing changes, and where the reader has switched it off."""
    return EVERY_S if known.recorded is None and _live() else None


def drawn(name: str, of: tuple[object, ...], make: Callable[[], Any]) -> Any:
    """The figure of that name, about `of`. Not live: the very one that the reader looks at, as Streamlit forgets the zoom of any other."""
    import streamlit as st

    kept: dict[str, tuple[object, Any]] = st.session_state.setdefault(DRAWN, {})
    about = (*of, colours())
    if _live() or name not in kept or kept[name][0] != about:
        kept[name] = (about, make())
    return kept[name][1]


def _live() -> bool:
    import streamlit as st

    return bool(st.session_state.get(LIVE, True))
