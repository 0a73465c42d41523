"""One piece of evidence as a plot: the accused in colour, the others dotted, and a line where the fault began."""

from datetime import UTC, tzinfo
from typing import Any

from dashboard.figures.colours import Palette, clear
from dashboard.figures.style import blank, gaps, moments
from dashboard.queries.evidence import OTHERS, Plot

HEIGHT = 190
MOST_NAMES = 6
"""Of the accused that have a line of their own."""


def evidence(plot: Plot, palette: Palette, zone: tzinfo = UTC, *, height: int = HEIGHT) -> Any:
    """A plotly Figure; times in the reader's zone."""
    figure = blank(palette, height)
    times = moments(plot.times, zone)
    accused = [name for name in plot.series if name != OTHERS][:MOST_NAMES]
    for place, name in enumerate(accused):
        figure.add_scatter(x=times, y=gaps(plot.series[name]), name=name, mode="lines", line={"color": palette.series[place], "width": 2}, connectgaps=False)
    if OTHERS in plot.series:
        figure.add_scatter(x=times, y=gaps(plot.series[OTHERS]), name=OTHERS, mode="lines", line={"color": palette.muted, "width": 1.5, "dash": "dot"})
    figure.update_traces(hovertemplate="%{y:.4~g}" + (f" {plot.unit}" if plot.unit else ""))
    _mark(figure, plot, palette, zone)
    _look(figure, plot, palette)
    return figure


def _mark(figure: Any, plot: Plot, palette: Palette, zone: tzinfo) -> None:
    """Since when it is broken."""
    if not len(plot.times):
        return
    began, end = moments([plot.mark, max(plot.mark, plot.times[-1])], zone)
    figure.add_vline(x=began, line={"color": palette.alarm, "width": 1.5})
    figure.add_vrect(x0=began, x1=end, fillcolor=clear(palette.alarm, 0.06), line_width=0, layer="below")


def _look(figure: Any, plot: Plot, palette: Palette) -> None:
    unit = f"  <span style='color:{palette.muted}'>{plot.unit}</span>" if plot.unit else ""
    figure.update_layout(
        title={"text": f"<b>{plot.title}</b>{unit}", "font": {"size": 13, "color": palette.text}, "x": 0, "xref": "container", "xanchor": "left", "y": 0.98, "yanchor": "top", "pad": {"l": 4}},
        margin={"l": 8, "r": 8, "t": 44, "b": 8}, hovermode="x unified", showlegend=len(plot.series) > 1,
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.01, "yanchor": "bottom"},
    )  # fmt: skip
    figure.update_xaxes(tickformat="%H:%M:%S", nticks=4)
    figure.update_yaxes(nticks=4)
