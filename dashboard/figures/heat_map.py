"""Nodes × slots as one picture: a row for each node of a small cluster, blocks of cells for a large one.

Colour is the distance from the median of all, so that what is unlike the others is seen first, whatever the metric is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboard import formatting
from dashboard.figures import figure_style
from dashboard.figures.colours import Palette
from dashboard.queries.cluster import Heat
from eagle_eye.types import Floats

ROWS = 24
"""Nodes that get a row and a name of their own; more are laid out in blocks."""
CELLS = 12_000
"""Cells that each get a word to say; with more, one cell stands for a whole node."""
HEIGHT = 360
WIDTH = 820
"""Pixels for which blocks are laid out; a narrower page squeezes them."""
LEAST = 0.1
"""Of the median: numbers that differ less are shown alike, so that noise makes no picture."""
GAP = 1
"""Empty cells between two nodes in a row."""


@dataclass(frozen=True, slots=True)
class CellGrid:
    """Numbers laid out; `said` is which thing a cell is of."""

    values: Floats
    said: Any
    """Rows × columns of words; '' where there is nothing."""
    names: list[str]
    """Of each row: the first node in it."""
    slots: list[str]
    """Of each column; empty if a row holds several nodes."""


def heat_map(heat: Heat, palette: Palette) -> Any:
    """Figure of a metric over a cluster."""
    import plotly.graph_objects as go

    grid = in_rows(heat) if len(heat.nodes) <= ROWS else in_blocks(heat)
    low, high = limits(heat.values)
    across, down = _across_axis(grid, heat), _down_axis(grid, heat)
    top = 28 if across["showticklabels"] else 8
    figure = figure_style.blank(palette, _height(grid, heat), left=figure_style.room(down["ticktext"]), right=figure_style.SCALE, top=top, bottom=8, xaxis=across, yaxis=down)
    figure.add_trace(
        go.Heatmap(
            z=grid.values, customdata=grid.said, hovertemplate=f"%{{customdata}}<br><b>%{{z:{figure_style.digits(high)}}}{formatting.SPACE}{heat.unit}</b><extra></extra>", hoverongaps=False, zmin=low, zmax=high,
            colorscale=[list(stop) for stop in palette.against_peers], xgap=2 if grid.slots else 0, ygap=2 if grid.values.shape[0] <= 60 else 0,
            colorbar={"thickness": 10, "outlinewidth": 0, "title": {"text": heat.unit, "side": "top"}, "len": 1, "lenmode": "fraction", "y": 0.5, "x": 1.01, "tickfont": {"size": 12}, **_scale(heat.values, few=_height(grid, heat) < 250)},
        )
    )  # fmt: skip
    return figure


def one_per_node(values: Floats) -> Floats:
    """nodes × slots → nodes: the slot that differs most from the median of all, so that no fault is averaged away; NaN: none known."""
    if not values.shape[1]:
        return np.full(len(values), np.nan, np.float32)
    known = np.isfinite(values)
    middle = float(np.median(values[known])) if known.any() else 0.0
    distance = np.where(known, np.abs(values - middle), -1.0)
    farthest: Floats = values[np.arange(len(values)), distance.argmax(axis=1)]
    return farthest


def limits(values: Floats) -> tuple[float, float]:
    """Of the scale: as far from the median on both sides as the farthest number is, or LEAST of the median if they are nearly alike."""
    known = values[np.isfinite(values)]
    if not known.size:
        return 0.0, 1.0
    middle = float(np.median(known))
    farthest = max(float(np.abs(known - middle).max()), LEAST * abs(middle)) or 1.0
    return middle - farthest, middle + farthest


def _scale(values: Floats, *, few: bool) -> dict[str, Any]:
    """Numbers beside the colours: the median in the middle, and nothing below zero where no number is."""
    low, high = limits(values)
    least = float(np.nanmin(values)) if np.isfinite(values).any() else 0.0
    each = [place for place in np.linspace(low, high, 3 if few else 5).tolist() if place >= min(0.0, least)]
    return {"tickmode": "array", "tickvals": each, "ticktext": [formatting.number(place) for place in each]}


def in_rows(heat: Heat) -> CellGrid:
    """A row a node, a column a slot."""
    return CellGrid(values=heat.values, said=_said(heat.nodes, heat.slots), names=list(heat.nodes), slots=list(heat.slots))


def in_blocks(heat: Heat) -> CellGrid:
    """Several nodes in a row, their slots beside each other; one cell a node where there are very many."""
    whole = heat.values.size > CELLS or len(heat.slots) <= 1
    values = one_per_node(heat.values)[:, None] if whole else heat.values
    width = values.shape[1] + (0 if whole else GAP)
    across = _across(len(heat.nodes), width)
    down = math.ceil(len(heat.nodes) / across)
    numbers = np.full((down * across, width), np.nan, np.float32)
    numbers[: len(values), : values.shape[1]] = values
    said = np.full(numbers.shape, "", object)
    said[: len(values), : values.shape[1]] = _said(heat.nodes, [""] if whole else heat.slots)
    full = across * width
    return CellGrid(values=numbers.reshape(down, full), said=said.reshape(down, full), names=[heat.nodes[row * across] for row in range(down)], slots=[])


def _said(nodes: Sequence[str], slots: Sequence[str]) -> Any:
    """nodes × slots: what each cell is of."""
    ends = [f" · {slot}" if slot else "" for slot in slots]
    return np.array([[node + end for end in ends] for node in nodes], object).reshape(len(nodes), len(slots))


def _across(nodes: int, width: int) -> int:
    """Nodes in a row, so that cells are about square."""
    return max(1, min(nodes, round(math.sqrt(nodes * WIDTH / HEIGHT / width))))


def _height(grid: CellGrid, heat: Heat) -> int:
    return max(130, 24 * len(heat.nodes) + 52) if grid.slots else HEIGHT


def _down_axis(grid: CellGrid, heat: Heat) -> dict[str, Any]:
    rows = len(grid.names)
    every = max(1, math.ceil(rows / ROWS))
    return {"autorange": "reversed", "showgrid": False, "tickmode": "array", "tickvals": list(range(0, rows, every)), "ticktext": [formatting.short(name, 22) for name in grid.names[::every]], "fixedrange": not heat.nodes}


def _across_axis(grid: CellGrid, heat: Heat) -> dict[str, Any]:
    kind = heat.entities[0][0].partition("-")[0] if heat.entities and heat.entities[0] else ""
    named = [f"{'GPU ' if kind == 'GPU' and place == 0 else ''}{slot}" for place, slot in enumerate(grid.slots)]
    return {"showticklabels": bool(grid.slots) and any(grid.slots), "side": "top", "tickmode": "array", "tickvals": list(range(len(named))), "ticktext": named}
