"""One piece of evidence as a plot: the accused in colour, the others dotted, and a line where the fault began."""

from datetime import UTC, tzinfo
from typing import Any

from dashboard.figures.colours import Palette, clear
from dashboard.figures.figure_style import blank, gaps, moments
from dashboard.queries.evidence import OTHERS, Plot

HEIGHT = 190
MOST_NAMES = 6
"""Of the accused that have a line of their own."""


def evidence(plot: Plot, palette: Palette, zone: tzinfo = UTC, *, height: int = HEIGHT) -> Any:
    """A plotly Figure; times in the reader's zone."""
    figure = blank(palette, height, **_look(plot, palette), shapes=_marks(plot, palette, zone))
    said = "%{y:.4~g}" + (f" {plot.unit}" if plot.unit else "")
    times = moments(plot.times, zone)
    accused = [name for name in plot.series if name != OTHERS][:MOST_NAMES]
    lines = [(name, {"color": palette.series[place], "width": 2}) for place, name in enumerate(accused)]
    if OTHERS in plot.series:
        lines.append((OTHERS, {"color": palette.muted, "width": 1.5, "dash": "dot"}))
    figure.add_traces([{"type": "scatter", "x": times, "y": gaps(plot.series[name]), "name": name, "mode": "lines", "line": line, "hovertemplate": said} for name, line in lines])
    return figure


def _marks(plot: Plot, palette: Palette, zone: tzinfo) -> list[dict[str, Any]]:
    """Since when it is broken: a line, and what follows it tinted."""
    if not len(plot.times):
        return []
    began, end = moments([plot.mark, max(plot.mark, plot.times[-1])], zone)
    whole = {"xref": "x", "yref": "y domain", "y0": 0, "y1": 1, "x0": began}
    return [
        {**whole, "type": "line", "x1": began, "line": {"color": palette.alarm, "width": 1.5}},
        {**whole, "type": "rect", "x1": end, "fillcolor": clear(palette.alarm, 0.06), "line": {"width": 0}, "layer": "below"},
    ]


def _look(plot: Plot, palette: Palette) -> dict[str, Any]:
    unit = f"  <span style='color:{palette.muted}'>{plot.unit}</span>" if plot.unit else ""
    return {
        "title": {"text": f"<b>{plot.title}</b>{unit}", "font": {"size": 13, "color": palette.text}, "x": 0, "xref": "container", "xanchor": "left", "y": 0.98, "yanchor": "top", "pad": {"l": 4}},
        "top": 44, "hovermode": "x unified", "showlegend": len(plot.series) > 1,
        "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.01, "yanchor": "bottom"},
        "xaxis": {"tickformat": "%H:%M:%S", "nticks": 4}, "yaxis": {"nticks": 4},
    }  # fmt: skip
