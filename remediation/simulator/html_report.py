"""One HTML file that needs no network: WAF over time, where GPU time went, and the downtime of a lost node by job size."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .downtime_curve import SIZES
from .simulation import SimulationResult
from .summary_statistics import PolicySummary
from .time_accounting import TimeCategory

BINS = 400
"""Points of a line."""
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Eagle Eye: simulation</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}}table{{border-collapse:collapse}}
td,th{{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #ddd}}td:first-child,th:first-child{{text-align:left}}</style>
<h1>Recovery policies, simulated</h1>
{body}</html>
"""
HEAD = "<tr><th>policy</th><th>seeds</th><th>mean WAF (PFLOP/s)</th><th>95 % interval</th>{categories}</tr>"


def page(summaries: Sequence[PolicySummary], first: Sequence[SimulationResult], downtimes: Mapping[str, Sequence[float]]) -> str:
    """The file's text. first: one run of each policy and trace, with its intervals."""
    import plotly

    parts = [f"<script>{plotly.offline.get_plotlyjs()}</script>"]
    for trace, rows in groupby(summaries, key=lambda each: each.trace):
        listed = list(rows)
        runs = [result for result in first if result.trace == trace]
        parts += [f"<h2>{escape(trace)}</h2>", _table(listed), _drawn(_over_time(runs)), _drawn(_time_shares(listed))]
    parts += ["<h2>Downtime of a lost node by job size</h2>", _drawn(_downtimes(downtimes))]
    return PAGE.format(body="\n".join(parts))


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _drawn(figure: Any) -> str:
    return str(figure.to_html(full_html=False, include_plotlyjs=False))


def _table(summaries: Sequence[PolicySummary]) -> str:
    head = HEAD.format(categories="".join(f"<th>{category.label} %</th>" for category in TimeCategory))
    rows = [
        f"<tr><td>{escape(each.policy)}</td><td>{each.seeds}</td><td>{each.waf.mean / 1e15:,.2f}</td><td>{each.waf.low / 1e15:,.2f} to {each.waf.high / 1e15:,.2f}</td>"
        + "".join(f"<td>{100 * each.time_shares[category.label]:.2f}</td>" for category in TimeCategory)
        + "</tr>"
        for each in summaries
    ]
    return f"<table>{head}{''.join(rows)}</table>"


def binned(result: SimulationResult, bins: int = BINS) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(bins,) middles in hours, and (bins,) mean WAF in each: the intervals laid over a grid."""
    edges = np.linspace(0.0, result.duration_s, bins + 1)
    if not len(result.intervals):
        return (edges[:-1] + edges[1:]) / 7200, np.zeros(bins)
    begun, ended, waf_s = np.array(result.intervals).T
    rate = waf_s / (ended - begun)
    # what was earned before an edge: each stretch is a ramp, so a sum over those begun less one over those ended
    before = _sum_before(edges, begun, rate) - _sum_before(edges, ended, rate)
    return (edges[:-1] + edges[1:]) / 7200, np.maximum(0.0, np.diff(before)) / np.diff(edges)


def _sum_before(edges: NDArray[np.float64], at: NDArray[np.float64], rate: NDArray[np.float64]) -> NDArray[np.float64]:
    """(edges,) the sum of rate · (edge − at) over all that lie before the edge."""
    order = np.argsort(at)
    rates = np.concatenate(([0.0], np.cumsum(rate[order])))
    moments = np.concatenate(([0.0], np.cumsum((rate * at)[order])))
    count = np.searchsorted(at[order], edges)
    return np.asarray(edges * rates[count] - moments[count])


def _over_time(results: Sequence[SimulationResult]) -> Any:
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for result in results:
        hours, waf = binned(result)
        figure.add_scatter(x=hours, y=waf / 1e15, name=result.policy, mode="lines")
    figure.update_layout(title="WAF over time, first seed", xaxis_title="hours", yaxis_title="PFLOP/s, weighted", hovermode="x")
    return figure


def _time_shares(summaries: Sequence[PolicySummary]) -> Any:
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for category in TimeCategory:
        figure.add_bar(y=[each.policy for each in summaries], x=[100 * each.time_shares[category.label] for each in summaries], name=category.label, orientation="h")
    figure.update_layout(barmode="stack", title="Where the GPUs' seconds went", xaxis_title="%", yaxis_autorange="reversed")
    return figure


def _downtimes(downtimes: Mapping[str, Sequence[float]]) -> Any:
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for label, seconds in downtimes.items():
        figure.add_scatter(x=list(SIZES), y=list(seconds), name=label, mode="lines+markers")
    figure.update_layout(xaxis_type="log", yaxis_type="log", xaxis_title="GPUs of the job", yaxis_title="seconds: detection, switch, recomputation")
    return figure
