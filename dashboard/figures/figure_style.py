"""What all figures share: type, margins, grid, hover, and the reader's zone on the axis of time."""

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from typing import Any

import numpy as np

from dashboard.figures.colours import Palette
from eagle_eye.types import Doubles

FONT = '"Source Sans", "Source Sans Pro", system-ui, sans-serif'
CHARACTER = 6.3
"""Pixels of a character of a tick, on average."""
SCALE = 66
"""Pixels for a scale of colours at the right of a map."""
SETTINGS = {"displaylogo": False, "displayModeBar": False, "scrollZoom": False, "doubleClick": "reset"}
"""Of plotly's surroundings: drag zooms, a double click shows all again."""


def blank(palette: Palette, height: int, *, left: int = 52, right: int = 8, top: int = 8, bottom: int = 28, **layout: Any) -> Any:
    """A figure without anything in it. `height` and margins: pixels; `layout`: what this one has besides, an axis (`xaxis`, …) over the usual one.

    All at once: plotly checks a whole layout in a tenth of the time that it takes to change one step by step. Margins are given, as the
    browser would draw everything twice more to find them out.
    """
    import plotly.graph_objects as go

    usual = {
        "height": height, "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": palette.muted}, "showlegend": False, "dragmode": "zoom", "uirevision": "kept",
        "hoverlabel": {"bgcolor": palette.surface, "bordercolor": palette.line, "font": {"family": FONT, "size": 13, "color": palette.text}},
    }  # fmt: skip
    legend = {"orientation": "h", "x": 0, "y": 1, "font": {"size": 12, "color": palette.muted}, **layout.pop("legend", {})}
    named = dict.fromkeys(("xaxis", "yaxis", *(name for name in layout if "axis" in name)))
    axes = {name: {**_axis(palette), "showgrid": not name.startswith("xaxis"), **layout.pop(name, {})} for name in named}
    margin = {"l": left, "r": right, "t": top, "b": bottom, "autoexpand": False}
    return go.Figure(layout={**usual, "margin": margin, "legend": legend, **axes, **layout, "template": "none"})


def room(names: Iterable[str]) -> int:
    """Pixels that the longest of some names takes beside an axis."""
    return round(max(map(len, names), default=0) * CHARACTER) + 10


def digits(largest: float) -> str:
    """How the browser writes a number of that size (d3-format): three digits; from a thousand on with a prefix, as words.number does.

    >>> digits(350.0), digits(-1.2e6)
    ('.3~r', '.3~s')
    """
    return ".3~s" if abs(largest) >= 1000 else ".3~r"


def moments(times: Any, zone: tzinfo) -> list[str]:
    """Seconds since 1970 → what plotly takes for a time and shows as the reader's clock does; NaN → ''.

    >>> moments([0.0, 1.5], UTC)
    ['1970-01-01 00:00:00.000', '1970-01-01 00:00:01.500']
    """
    each = np.asarray(times, float)
    known = each[np.isfinite(each)]
    if not len(known):
        return [""] * len(each)
    offset = datetime.fromtimestamp(float(known[-1]), zone).utcoffset()
    shifted = each + (offset.total_seconds() if offset else 0.0)
    return [datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if np.isfinite(time) else "" for time in shifted.tolist()]


def gaps(values: Doubles) -> list[float | None]:
    """JSON knows no NaN: None, where a line breaks."""
    return [value if np.isfinite(value) else None for value in np.asarray(values, float).tolist()]


def _axis(palette: Palette) -> dict[str, Any]:
    return {
        "gridcolor": palette.line, "linecolor": palette.line, "zeroline": False, "ticks": "",
        "tickfont": {"size": 12, "color": palette.muted}, "title": {"font": {"size": 12, "color": palette.muted}}, "fixedrange": False,
    }  # fmt: skip
