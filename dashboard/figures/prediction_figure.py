"""Predicted beside actual values of actions as a figure, one line an action."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dashboard import formatting
from dashboard.figures import figure_style
from dashboard.figures.colours import Palette

ROW = 26
MOST = 20
"""Newest ones that are drawn."""


@dataclass(frozen=True, slots=True)
class PredictionPair:
    """One value of one action, predicted and actual."""

    name: str
    """Of the action, for people."""
    predicted: float
    actual: float


def prediction_figure(entries: Sequence[PredictionPair], palette: Palette, unit: str) -> Any:
    """Figure: a ring at the predicted value, a dot at the actual one, a line between. Long lines are wrong predictions."""
    drawn = entries[:MOST]
    places = list(range(len(drawn)))
    off = [{"type": "line", "x0": entry.predicted, "x1": entry.actual, "y0": place, "y1": place, "line": {"color": palette.muted, "width": 2}, "layer": "below"} for place, entry in enumerate(drawn)]
    names = [formatting.short(entry.name, 34) for entry in drawn]
    figure = figure_style.blank(
        palette, ROW * len(drawn) + 62, shapes=off, showlegend=True, legend={"x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom"}, left=figure_style.room(names), right=16, top=26,
        xaxis={"showgrid": True, "rangemode": "tozero", "ticksuffix": f" {unit}", "nticks": 8, "fixedrange": True},
        yaxis={"autorange": "reversed", "showgrid": False, "tickmode": "array", "tickvals": places, "ticktext": names, "fixedrange": True},
    )  # fmt: skip
    said = [f"{entry.name}<br>predicted <b>{formatting.number(entry.predicted, unit)}</b>, actual <b>{formatting.number(entry.actual, unit)}</b>" for entry in drawn]
    for name, values, marker in (
        ("predicted", [entry.predicted for entry in drawn], {"symbol": "circle-open", "size": 11, "color": palette.muted, "line": {"width": 2}}),
        ("actual", [entry.actual for entry in drawn], {"symbol": "circle", "size": 9, "color": palette.accent}),
    ):
        figure.add_traces([{"type": "scatter", "x": values, "y": places, "mode": "markers", "marker": marker, "name": name, "showlegend": True, "text": said, "hovertemplate": "%{text}<extra></extra>"}])
    return figure
