"""A job over time: loss, step time by phase, throughput and goodput below each other, with what happened to it."""

from collections.abc import Sequence
from datetime import tzinfo
from typing import Any

import numpy as np

from dashboard import words
from dashboard.figures import style
from dashboard.figures.colours import Palette, clear
from dashboard.queries.job import Course, Mark

HEIGHT = 520
ROWS = ("Loss", "Step time", "Throughput", "Goodput")
UNITS = ("", "", "tokens/s", "")
GROUND = 0.045
"""Of the height: free over each row for its name."""
WHOLE = "y6"
"""Axis over the whole height."""
SYMBOLS = {"incident": "triangle-down", "heal": "circle", "epoch": "line-ns-open"}


def job_course(course: Course, palette: Palette, zone: tzinfo, *, since: float, until: float) -> Any:
    """Figure with one axis of time. `since`, `until`: seconds since 1970."""
    figure = style.blank(palette, HEIGHT)
    times = style.moments(course.times, zone)
    _rows(figure, palette)
    _line(figure, times, course.loss, "", palette.series[0], row=1)
    _phases(figure, times, course, palette)
    _line(figure, times, course.tokens_per_s, "tokens/s", palette.series[2], row=3)
    _line(figure, times, course.goodput * 100, "%", palette.series[0], row=4, fill=True)
    _marks(figure, course.marks, palette, zone)
    figure.update_xaxes(range=style.moments([since, until], zone), type="date", tickformat="%H:%M:%S" if until - since < 900 else "%H:%M\n%-d %b" if until - since > 50_000 else "%H:%M", hoverformat="%-d %b %H:%M:%S", nticks=6)
    figure.update_layout(hovermode="x unified", hoversubplots="axis")
    return figure


def timeline_marks(figure: Any, marks: Sequence[Mark], palette: Palette, zone: tzinfo) -> None:
    """Lines through the whole figure at what happened: one trace a kind, as hundreds of shapes are slow to draw."""
    import plotly.graph_objects as go

    for what in SYMBOLS:
        times = style.moments([mark.time for mark in marks if mark.what == what], zone)
        ends = [point for time in times for point in ((time, 0.0), (time, 1.0), (None, None))]
        if ends:
            line = {"color": clear(colour_of(what, palette), 0.7), "width": 1, "dash": "dot" if what == "epoch" else "solid"}
            figure.add_trace(go.Scatter(x=[time for time, _ in ends], y=[high for _, high in ends], mode="lines", line=line, yaxis=WHOLE, showlegend=False, hoverinfo="skip"))
    figure.update_layout({WHOLE.replace("y", "yaxis"): {"domain": [0, 1], "anchor": "x", "range": [0, 1], "visible": False, "fixedrange": True}})


def colour_of(what: str, palette: Palette) -> str:
    """Of a mark."""
    return {"incident": palette.warning, "heal": palette.accent}.get(what, palette.muted)


def _rows(figure: Any, palette: Palette) -> None:
    """Four axes below each other on one axis of time, the lowest carries its labels; a thin one for the marks above."""
    top, height = 0.94, 0.94 / len(ROWS)
    for row, title in enumerate(ROWS, 1):
        high = top - (row - 1) * height
        figure.update_layout({f"yaxis{row if row > 1 else ''}": {"domain": [high - height + 0.012, high - GROUND], "anchor": "x", "nticks": 4, "rangemode": "tozero" if row > 1 else "normal", "gridcolor": palette.line, "zeroline": False, "tickfont": {"size": 12, "color": palette.muted}, "automargin": True, "fixedrange": True}})
        figure.add_annotation(text=f"{title}  <span style='color:{palette.muted}'>{UNITS[row - 1]}</span>", x=0, y=high - GROUND, xref="paper", yref="paper", xanchor="left", yanchor="bottom", showarrow=False, font={"size": 13, "color": palette.text})
    figure.update_layout({f"yaxis{len(ROWS) + 1}": {"domain": [0.955, 1], "anchor": "x", "range": [-1, 1], "visible": False, "fixedrange": True}, "xaxis": {"anchor": f"y{len(ROWS)}"}})
    figure.update_layout(yaxis4={"range": [0, 105], "tickvals": [0, 50, 100], "ticksuffix": " %"}, yaxis2={"ticksuffix": " s"}, yaxis3={"tickformat": "~s"})


def _axis_of(row: int) -> str:
    return f"y{row if row > 1 else ''}"


def _line(figure: Any, times: list[str], values: Any, unit: str, colour: str, *, row: int, fill: bool = False) -> None:
    import plotly.graph_objects as go

    figure.add_trace(go.Scatter(
        x=times, y=style.gaps(values), mode="lines", showlegend=False, line={"color": colour, "width": 1.6}, yaxis=_axis_of(row), name=ROWS[row - 1],
        fill="tozeroy" if fill else None, fillcolor=clear(colour, 0.12), customdata=[words.number(value, unit) for value in np.asarray(values, float).tolist()],
        hovertemplate=f"{ROWS[row - 1]} <b>%{{customdata}}</b><extra></extra>",
    ))  # fmt: skip


def _phases(figure: Any, times: list[str], course: Course, palette: Palette) -> None:
    """Areas on each other, and the step as a line over them: what is between is what no phase explains."""
    import plotly.graph_objects as go

    for place, (phase, seconds) in enumerate(course.phases.items()):
        colour = palette.series[place % len(palette.series)]
        figure.add_trace(go.Scatter(
            x=times, y=style.gaps(seconds), mode="lines", line={"width": 0}, stackgroup="phases", fillcolor=clear(colour, 0.75), yaxis="y2", name=phase,
            customdata=[words.duration(value) for value in np.asarray(seconds, float).tolist()], hovertemplate=f"{words.spoken(phase)} %{{customdata}}<extra></extra>",
        ))  # fmt: skip
    _line(figure, times, course.step_s, "s", palette.text, row=2)
    named = "  ".join(f"<span style='color:{palette.series[place % len(palette.series)]}'>■</span> {words.spoken(phase)}" for place, phase in enumerate(course.phases))
    title = figure.layout.annotations[1]
    title.update(text=f"{title.text} <span style='color:{palette.muted};font-size:12px'>{named}</span>")


def _marks(figure: Any, marks: Sequence[Mark], palette: Palette, zone: tzinfo) -> None:
    import plotly.graph_objects as go

    timeline_marks(figure, marks, palette, zone)
    if not marks:
        return
    figure.add_trace(go.Scatter(
        x=style.moments([mark.time for mark in marks], zone), y=[0] * len(marks), mode="markers", showlegend=False, yaxis=f"y{len(ROWS) + 1}", name="what happened",
        marker={"symbol": [SYMBOLS[mark.what] for mark in marks], "size": 11, "color": [colour_of(mark.what, palette) for mark in marks], "line": {"width": 1.5, "color": [colour_of(mark.what, palette) for mark in marks]}},
        customdata=[words.short(mark.text, 90) for mark in marks], hovertemplate="<b>%{customdata}</b><extra></extra>",
    ))  # fmt: skip
