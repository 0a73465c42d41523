"""Workers × time, each beside its peers: a straggler is a dark line, a slow moment of all is none."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import tzinfo
from typing import Any

import numpy as np

from dashboard import formatting
from dashboard.figures import figure_style
from dashboard.figures.colours import Palette
from dashboard.queries.job import WorkerHeat
from eagle_eye.types import Floats

NAMED = 28
"""Rows with a name beside them."""
ROW = 20
MOST = 560
LATELY_S = 60.0
"""Who is slow now is told from so many seconds: longer would not see whoever has just begun to be."""
LOW, HIGH = 0.5, 1.5
"""Times the peers' median; what is beyond has the colour of the end."""


def worker_map(heat: WorkerHeat, palette: Palette, zone: tzinfo) -> Any:
    """Figure: colour = this worker's number by the median of all workers at that time."""
    import plotly.graph_objects as go

    heat = _from_the_first(heat)
    shares = beside_peers(heat)
    every = max(1, -(-len(heat.workers) // NAMED))
    names = named_all(heat.workers)
    span = float(heat.times[-1] - heat.times[0]) if len(heat.times) else 0.0
    ticks = [formatting.short(name, 20) for name in names[::every]]
    figure = figure_style.blank(
        palette, int(min(MOST, max(120, ROW * len(names) + 60))), left=figure_style.room(ticks), right=figure_style.SCALE,
        xaxis={"type": "date", "tickformat": "%H:%M:%S" if span < 900 else "%H:%M", "nticks": 6},
        yaxis={"type": "category", "autorange": "reversed", "showgrid": False, "tickmode": "array", "tickvals": list(range(0, len(names), every)), "ticktext": ticks, "fixedrange": True},
    )  # fmt: skip
    largest = float(np.nanmax(heat.values)) if np.isfinite(heat.values).any() else 0.0
    figure.add_trace(go.Heatmap(
        x=figure_style.moments(heat.times, zone), y=names, z=shares, customdata=heat.values, hoverongaps=False, zmin=LOW, zmax=HIGH,
        hovertemplate=f"%{{y}}<br><b>%{{customdata:{figure_style.digits(largest)}}}{formatting.SPACE}{heat.unit}</b> · %{{z:.3~r}} × peers<extra></extra>",
        colorscale=[list(stop) for stop in palette.against_peers], ygap=1 if len(names) <= NAMED else 0,
        colorbar={"thickness": 10, "outlinewidth": 0, "len": 1, "y": 0.5, "x": 1.01, "tickvals": [0.5, 1, 1.5], "ticktext": ["½ ×", "1 ×", "1½ ×"], "tickfont": {"size": 12}},
    ))  # fmt: skip
    return figure


def beside_peers(heat: WorkerHeat) -> Floats:
    """workers × times: each number by the median of all workers at that time; NaN where nothing is known or the median is zero."""
    middle: Floats = np.where(heat.peers == 0, np.float32(np.nan), heat.peers)
    shares: Floats = heat.values / middle
    return shares


def slowest(heat: WorkerHeat) -> tuple[str, float] | None:
    """The worker that takes longest beside its peers over the last LATELY_S that are known, and how many times as long; None: nothing is known."""
    shares = beside_peers(heat)
    told = np.flatnonzero(np.isfinite(shares).any(axis=0))
    if not len(told):
        return None
    last = shares[:, max(0, told[-1] + 1 - math.ceil(LATELY_S / heat.every)) : told[-1] + 1]
    known = np.isfinite(last).any(axis=1)
    typical = np.full(len(last), -np.inf)
    typical[known] = np.nanmedian(last[known], axis=1)
    return heat.workers[int(typical.argmax())], float(typical.max())


def named(worker: str) -> str:
    """run/node/slot → node / slot: the run is the same for all.

    >>> named("run-1/node-a/3")
    'node-a / 3'
    """
    return " / ".join(worker.split("/")[-2:])


def named_all(workers: Sequence[str]) -> list[str]:
    """Each by a name of its own: the whole one where a short one would be another's, too."""
    names = [named(worker) for worker in workers]
    return names if len(set(names)) == len(names) else list(workers)


def _from_the_first(heat: WorkerHeat) -> WorkerHeat:
    """Without the time before anybody told anything."""
    known = np.flatnonzero(np.isfinite(heat.values).any(axis=0))
    first = int(known[0]) if len(known) else 0
    return replace(heat, times=heat.times[first:], values=heat.values[:, first:], peers=heat.peers[first:])
