"""A job over time: loss, step time by phase, throughput and goodput below each other, with what happened to it."""

from collections.abc import Iterator, Sequence
from datetime import tzinfo
from typing import Any

import numpy as np

from dashboard import formatting
from dashboard.figures import figure_style
from dashboard.figures.colours import Palette, clear
from dashboard.queries.job import JobTimeline, TimelineMark

HEIGHT = 520
ROWS = ("Loss", "Step time", "Throughput", "Goodput")
UNITS = ("", "", "tokens/s", "")
STEPS = 2
"""The row that shows phases."""
GROUND = 0.045
"""Of the height: free over each row for its name."""
DAY_S = 50_000
"""Of a longer span the days are named, too."""
WHOLE = "y6"
"""Axis over the whole height."""
NORM = "y7"
"""Of the gradient norm: it lies over that of the loss, with its numbers on the right."""
NAMES = {"incident": ("▼", "incident"), "heal": ("●", "healed"), "epoch": ("┊", "epoch begins")}
SYMBOLS = {"incident": "triangle-down", "heal": "circle", "epoch": "line-ns-open"}


def job_timeline(timeline: JobTimeline, palette: Palette, zone: tzinfo, *, since: float, until: float) -> Any:
    """Figure with one axis of time. `since`, `until`: seconds since 1970."""
    figure = figure_style.blank(palette, HEIGHT, bottom=44 if until - since > DAY_S else 28, **_rows(palette, timeline), xaxis=_time_axis(until - since), hovermode="x unified", hoversubplots="axis")
    times = figure_style.moments(timeline.times, zone)
    figure.add_traces(
        [
            _whole_span(figure_style.moments([since, until], zone)),
            *_norm(times, timeline, palette),
            _line(times, timeline.loss, "", palette.series[0], row=1),
            *_phases(times, timeline, palette),
            _line(times, timeline.step_s, "s", palette.text, row=2),
            _line(times, timeline.tokens_per_s, "tokens/s", palette.series[2], row=3),
            _line(times, timeline.goodput * 100, "%", palette.series[0], row=4, fill=True),
            *timeline_marks(timeline.marks, palette, zone),
            *_marks(timeline.marks, palette, zone),
        ]
    )
    return figure


def timeline_marks(marks: Sequence[TimelineMark], palette: Palette, zone: tzinfo) -> Iterator[dict[str, Any]]:
    """Lines through the whole figure at what happened: one trace a kind, as hundreds of shapes are slow to draw."""
    for what in SYMBOLS:
        times = figure_style.moments([mark.time for mark in marks if mark.what == what], zone)
        ends = [point for time in times for point in ((time, 0.0), (time, 1.0), (None, None))]
        if ends:
            line = {"color": clear(colour_of(what, palette), 0.7), "width": 1, "dash": "dot" if what == "epoch" else "solid"}
            yield {"type": "scatter", "x": [time for time, _ in ends], "y": [high for _, high in ends], "mode": "lines", "line": line, "yaxis": WHOLE, "showlegend": False, "hoverinfo": "skip"}


def colour_of(what: str, palette: Palette) -> str:
    """Of a mark."""
    return {"incident": palette.warning, "heal": palette.accent}.get(what, palette.muted)


# --- axes ------------------------------------------------------------------------------------------------------------


def _time_axis(span: float) -> dict[str, Any]:
    """It ends where its traces end: with a range of its own, plotly would forget the reader's zoom whenever the range moves."""
    clock = "%H:%M:%S" if span < 900 else "%H:%M\n%-d %b" if span > DAY_S else "%H:%M"
    return {"type": "date", "tickformat": clock, "hoverformat": "%-d %b %H:%M:%S", "nticks": 6, "anchor": f"y{len(ROWS)}"}


def _whole_span(ends: Sequence[str]) -> dict[str, Any]:
    """Nothing to be seen: it keeps the axis as long as the span."""
    return {"type": "scatter", "x": list(ends), "y": [0, 0], "mode": "lines", "line": {"width": 0}, "yaxis": WHOLE, "showlegend": False, "hoverinfo": "skip"}


def _rows(palette: Palette, timeline: JobTimeline) -> dict[str, Any]:
    """Four axes below each other on one axis of time, the lowest carries its labels; a thin one for the marks above, one over all."""
    top, height = 0.94, 0.94 / len(ROWS)
    hidden = {"anchor": "x", "visible": False, "fixedrange": True}
    layout: dict[str, Any] = {f"yaxis{len(ROWS) + 1}": {"domain": [0.955, 1], "range": [-1, 1], **hidden}, WHOLE.replace("y", "yaxis"): {"domain": [0, 1], "range": [0, 1], **hidden}}
    own = ({"rangemode": "normal"}, {"ticksuffix": " s"}, {"tickformat": "~s"}, {"range": [0, 105], "tickvals": [0, 50, 100], "ticktext": ["0 %", "50 %", "100 %"]})
    names = []
    for row, title in enumerate(ROWS, 1):
        high = top - (row - 1) * height
        layout[f"yaxis{row if row > 1 else ''}"] = {"domain": [high - height + 0.012, high - GROUND], "anchor": "x", "nticks": 4, "rangemode": "tozero", "fixedrange": True, **own[row - 1]}
        text = f"{title}  <span style='color:{palette.muted}'>{UNITS[row - 1]}</span>" + (_named(timeline, palette) if row == STEPS else _norm_named(timeline, palette) if row == 1 else "")
        names.append({"text": text, "x": 0, "y": high - GROUND, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", **_plain(palette)})
    if timeline.grad_norm is not None:
        layout[NORM.replace("y", "yaxis")] = {"overlaying": "y", "side": "right", "anchor": "x", "nticks": 3, "rangemode": "tozero", "fixedrange": True, "showgrid": False, "automargin": True, "tickfont": {"color": palette.muted}}
    if timeline.marks:
        names.append({"text": _marks_named(timeline, palette), "x": 1, "y": top - GROUND, "xref": "paper", "yref": "paper", "xanchor": "right", "yanchor": "bottom", **_plain(palette)})
    return {**layout, "annotations": names}


def _plain(palette: Palette) -> dict[str, Any]:
    """Words that the lines of the marks do not cross."""
    return {"showarrow": False, "font": {"size": 13, "color": palette.text}, "bgcolor": palette.background, "borderpad": 0}


def _marks_named(timeline: JobTimeline, palette: Palette) -> str:
    """What the signs at the top mean."""
    there = {mark.what for mark in timeline.marks}
    each = (f"<span style='color:{colour_of(what, palette)}'>{sign}</span> {word}" for what, (sign, word) in NAMES.items() if what in there)
    return f"<span style='color:{palette.muted};font-size:12px'>{'  '.join(each)}</span>"


def _norm_named(timeline: JobTimeline, palette: Palette) -> str:
    """Which line of the first row is the gradient norm."""
    return f" <span style='color:{palette.muted};font-size:12px'>┄ gradient norm, on the right</span>" if timeline.grad_norm is not None else ""


def _named(timeline: JobTimeline, palette: Palette) -> str:
    """Which colour is which phase."""
    each = (f"<span style='color:{_colour(phase, place, palette)}'>■</span> {formatting.spoken(phase)}" for place, phase in enumerate(timeline.phases))
    return f" <span style='color:{palette.muted};font-size:12px'>{'  '.join(each)}</span>"


def _colour(phase: str, place: int, palette: Palette) -> str:
    """What has no name of its own has no colour either."""
    return palette.muted if phase == "other" else palette.series[place % len(palette.series)]


# --- lines -----------------------------------------------------------------------------------------------------------


def _line(times: list[str], values: Any, unit: str, colour: str, *, row: int, fill: bool = False) -> dict[str, Any]:
    shade = {"fill": "tozeroy", "fillcolor": clear(colour, 0.12)} if fill else {}
    return {
        "type": "scatter", "x": times, "y": figure_style.gaps(values), "mode": "lines", "showlegend": False, "line": {"color": colour, "width": 1.6},
        "yaxis": f"y{row if row > 1 else ''}", "name": ROWS[row - 1], "customdata": [formatting.number(value, unit) for value in np.asarray(values, float).tolist()],
        "hovertemplate": f"{ROWS[row - 1]} <b>%{{customdata}}</b><extra></extra>", **shade,
    }  # fmt: skip


def _norm(times: list[str], timeline: JobTimeline, palette: Palette) -> Iterator[dict[str, Any]]:
    """Thin, behind the loss."""
    if timeline.grad_norm is not None:
        line = _line(times, timeline.grad_norm, "", palette.muted, row=1)
        yield line | {"yaxis": NORM, "name": "Gradient norm", "line": {"color": palette.muted, "width": 1, "dash": "dot"}, "hovertemplate": "Gradient norm <b>%{customdata}</b><extra></extra>"}


def _phases(times: list[str], timeline: JobTimeline, palette: Palette) -> Iterator[dict[str, Any]]:
    """Areas on each other, and the step as a line over them: what is between is what no phase explains."""
    for place, (phase, seconds) in enumerate(timeline.phases.items()):
        yield {
            "type": "scatter", "x": times, "y": figure_style.gaps(seconds), "mode": "lines", "line": {"width": 0}, "stackgroup": "phases", "yaxis": "y2", "name": phase,
            "fillcolor": clear(_colour(phase, place, palette), 0.75), "customdata": [formatting.duration(value) for value in np.asarray(seconds, float).tolist()],
            "hovertemplate": f"{formatting.spoken(phase)} %{{customdata}}<extra></extra>",
        }  # fmt: skip


def _marks(marks: Sequence[TimelineMark], palette: Palette, zone: tzinfo) -> Iterator[dict[str, Any]]:
    """What happened, to be pointed at."""
    if not marks:
        return
    colours = [colour_of(mark.what, palette) for mark in marks]
    yield {
        "type": "scatter", "x": figure_style.moments([mark.time for mark in marks], zone), "y": [0] * len(marks), "mode": "markers", "showlegend": False,
        "yaxis": f"y{len(ROWS) + 1}", "name": "what happened", "cliponaxis": False,
        "marker": {"symbol": [SYMBOLS[mark.what] for mark in marks], "size": 11, "color": colours, "line": {"width": 1.5, "color": colours}},
        "customdata": [formatting.short(mark.text, 90) for mark in marks], "hovertemplate": "<b>%{customdata}</b><extra></extra>",
    }  # fmt: skip
