"""The whole cluster: what wants a person first, then jobs, then any number of any node."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from dashboard import error_boundary, formatting, html, viewer
from dashboard.errors import NoHistory
from dashboard.figures import figure_style
from dashboard.figures.heat_map import ROWS, heat_map
from dashboard.html import Column, Safe
from dashboard.page_header import heading_with_span
from dashboard.queries import cluster, incidents
from dashboard.queries.cluster import Heat, HeatMetric, JobRow, NodeRow, Overview
from dashboard.queries.incidents import IncidentRow
from dashboard.sources import Sources
from dashboard.viewer import Viewer

PAGE = {"title": "Cluster", "order": 1, "figures_first": True}

MOST_CALLS = 4
MOST_JOBS = 50
MOST_NODES = 40
HEAT_KEEP_S = 60.0
"""A heat map shows the mean of the last minute: longer would hide what is now, shorter may find no file."""
USUAL = ("power_watts", "cpu_percent")
MOST_TRIED = 6
FIRST_CHOICE = "metric-first"
CALLED = {"failed": "not healed: needs an operator"}
"""State of an incident → what it means for the reader."""
STATES: dict[str, tuple[str, html.Tone]] = {
    "running": ("running", "good"), "healing": ("healing", "accent"), "stalled": ("stalled", "alarm"), "over": ("over", "quiet"),
}  # fmt: skip
HEALTH: dict[str, tuple[str, html.Tone]] = {
    "healthy": ("healthy", "good"), "suspect": ("suspect", "warning"), "healing": ("healing", "accent"), "cordoned": ("cordoned", "quiet"), "silent": ("silent", "alarm"),
}  # fmt: skip


def show() -> None:
    """Draw the page."""
    import streamlit as st

    known, reader = viewer.sources(), viewer.reader()
    span = heading_with_span(known, "Cluster")
    known.ledger  # noqa: B018 -- where there is none, that is said once, not in each part
    known.ahead(lambda: usual(cluster.metrics(known), lambda metric: _flat(known, metric)))
    every = viewer.every(known)
    error_boundary.live(lambda: _first(known, reader, span), every=every)
    left, right = st.columns([3, 2], gap="medium")
    with left:
        error_boundary.live(lambda: _numbers(known, reader), every=every)
    with right:
        error_boundary.live(lambda: _nodes(known, reader, span), every=every)


def _first(known: Sources, reader: Viewer, span: str) -> None:
    import streamlit as st

    since, until = viewer.window(known, span)
    seen = seen_by(reader, cluster.overview(known, since=since, until=until))
    open_ones = [line for line in incidents.listed(known, open_only=True, limit=200) if reader.person.sees(line.job)]
    if not (seen.jobs or seen.nodes or open_ones):
        st.html(html.empty("No job and no node yet", "Start an agent on a node, or run a training script: both appear here within seconds.", command="eagle-eye run --nproc-per-node 8 -- python train.py"))
        return
    if warning := stale(known, seen):
        st.html(warning)
    st.html(calls(open_ones, now=known.now()))
    st.html(html.joined(html.section("Jobs", f"over the last {span}" if known.recorded is None else "over the whole run"), jobs_table(seen)))


def stale(known: Sources, seen: Overview) -> Safe | None:
    """Said where jobs should run, but nobody has written a number lately: nothing below is of now."""
    if known.recorded is not None or not known.config.history.enabled or math.isfinite(seen.newest) or all(line.state == "over" for line in seen.jobs):
        return None
    told = html.muted("step times and the health of nodes below are out of date, and nothing may be watching. Look whether it runs: ")
    return html.banner(html.joined(html.badge(f"No number was written in the last {cluster.heard_s(known):.0f} s", "alarm"), " ", told, html.tagged("code", "eagle-eye server")), "alarm")


def _nodes(known: Sources, reader: Viewer, span: str) -> None:
    import streamlit as st

    since, until = viewer.window(known, span)
    seen = seen_by(reader, cluster.overview(known, since=since, until=until))
    if seen.nodes:
        st.html(nodes_part(seen, reader))


def seen_by(reader: Viewer, all_of_it: Overview) -> Overview:
    """What is this person's business."""
    if not reader.person.tenant:
        return all_of_it
    nodes = tuple(line for line in all_of_it.nodes if reader.person.sees(line.job))
    counts = {health: sum(line.health == health for line in nodes) for health in all_of_it.counts}
    return replace(all_of_it, jobs=tuple(line for line in all_of_it.jobs if reader.person.sees(line.job)), nodes=nodes, counts=counts)


# --- what wants a person ---------------------------------------------------------------------------------------------


def calls(lines: Sequence[IncidentRow], *, now: float) -> Safe:
    """One line for each open incident: those that wait for approval first."""
    if not lines:
        return html.banner(html.joined(html.badge("No open incident", "good"), " ", html.muted("nothing needs you")), "quiet")
    ordered = sorted(lines, key=lambda line: (not line.waiting_plan, line.state != "failed", -line.opened))
    more = html.tagged("div", html.link(f"{len(lines) - MOST_CALLS} more open incidents", "incidents"), "ee-second") if len(lines) > MOST_CALLS else ""
    return html.joined(*(_call(line, now) for line in ordered[:MOST_CALLS]), more)


def _call(line: IncidentRow, now: float) -> Safe:
    tone: html.Tone = "alarm" if line.waiting_plan or line.state == "failed" else "accent" if line.state in ("healing", "contained") else "warning"
    what = html.tagged("span", html.link(formatting.capital(line.cause), "incident", incident=line.id), "ee-what")
    where = html.tagged("span", formatting.listed(formatting.accused(line.culprits), nothing="unknown"))
    about = html.muted(f"{line.job} · {formatting.relative(line.opened, now)} · {formatting.gpu_hours(line.bill_gpu_hours)}")
    word = f"waits for you: {formatting.spoken(line.waiting_action)}" if line.waiting_plan else CALLED.get(line.state, line.state)
    return html.tagged("div", html.joined(what, where, about, html.tagged("span", html.badge(word, tone), "ee-next")), f"ee-call ee-{tone}")


# --- jobs and nodes --------------------------------------------------------------------------------------------------

JOBS = (
    Column("Job", grows=True), Column("State"), Column("Nodes", number=True, wide_only=True), Column("Workers", number=True, wide_only=True), Column("Step", number=True),
    Column("Step time", number=True, wide_only=True), Column("Throughput", number=True, wide_only=True), Column("Goodput", number=True), Column("Open", number=True, wide_only=True),
)  # fmt: skip


def jobs_table(seen: Overview) -> Safe:
    """Running ones first, with the nodes on which they run; the names of the others lead to what they did."""
    lines, where = seen.jobs, defaultdict[str, list[str]](list)
    for node in seen.nodes:
        where[node.job].append(node.node)
    if not lines:
        return html.empty("No job runs", "Start one; it appears here with its first step.", command="eagle-eye run --nproc-per-node 8 -- python train.py")
    ordered = sorted(lines, key=lambda line: (list(STATES)[::-1].index(line.state) == 0, -line.open_incidents, line.job))
    left = f"and {len(lines) - MOST_JOBS} more" if len(lines) > MOST_JOBS else ""
    return html.joined(html.table(JOBS, (_job(line, where[line.job]) for line in ordered[:MOST_JOBS]), caption="Jobs", low=True), html.muted(left))


def _job(line: JobRow, nodes: Iterable[str]) -> Sequence[object]:
    name = html.link(line.job, "job", job=line.job)
    return (
        html.stacked(name, f"on {formatting.listed(sorted(nodes))}") if line.state != "over" else name, html.badge(*STATES[line.state]), _many(line.nodes), _many(line.workers),
        f"{line.step:,}" if line.step >= 0 else formatting.NOTHING, formatting.duration(line.step_s), formatting.number(line.tokens_per_s, "tokens/s"), formatting.percent(line.goodput),
        _many(line.open_incidents),
    )  # fmt: skip


def _many(number: int) -> str:
    return f"{number:,}" if number else formatting.NOTHING


def nodes_part(seen: Overview, reader: Viewer) -> Safe:
    """How many nodes are how; those that are not well by name."""
    total = sum(seen.counts.values())
    told = [(health, many) for health, many in seen.counts.items() if many or health == "healthy"][::-1]
    bar = "".join(f'<span style="flex:{many};background:{_health_colour(health, reader)}" title="{many} {health}"></span>' for health, many in told if many)
    legend = "".join(str(html.tagged("span", html.joined(html.badge(f"{many:,} {HEALTH[health][0]}", HEALTH[health][1])))) for health, many in told)
    head = html.section("Nodes", formatting.count(total, "node"))
    shares = Safe(f'<div class="ee-shares" role="img" aria-label="shares of health">{bar}</div><div class="ee-legend">{legend}</div>')
    unwell = [line for line in seen.nodes if line.health != "healthy"]
    return html.joined(head, shares, Safe("<div style='height:.6rem'></div>") if unwell else "", _unwell(unwell))


def _unwell(lines: Sequence[NodeRow]) -> Safe:
    if not lines:
        return Safe("")
    more = html.tagged("div", f"and {len(lines) - MOST_NODES:,} more", "ee-second") if len(lines) > MOST_NODES else ""
    return html.joined(html.table((Column("Node"), Column("Health"), Column("Why", grows=True)), map(_node, lines[:MOST_NODES]), caption="Nodes that are not well"), more)


def _node(line: NodeRow) -> Sequence[object]:
    why = html.link(line.why, "incident", incident=line.incident) if line.incident else line.why
    return line.node, html.badge(*HEALTH[line.health]), html.stacked(why, html.link(line.job, "job", job=line.job) if line.job else "in no job")


def _health_colour(health: str, reader: Viewer) -> str:
    return reader.palette.series[2] if health == "healthy" else reader.palette.health(health)


# --- any number ------------------------------------------------------------------------------------------------------


def _numbers(known: Sources, reader: Viewer) -> None:
    """In one piece: another number is chosen without drawing the rest of the page."""
    import streamlit as st

    found = cluster.metrics(known)
    keys = [_key(metric) for metric in found]
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="small"):
        st.html(html.section("Numbers", "orange above the others, blue below"), width="content")
        chosen = st.selectbox("Metric", keys, index=_first_choice(known, found), key="metric", format_func=_title, bind="query-params", label_visibility="collapsed", width=260)
    metric = next((each for each in found if _key(each) == chosen), found[0])
    error_boundary.shown(lambda: _heat(known, reader, metric))


def _heat(known: Sources, reader: Viewer, metric: HeatMetric) -> None:
    import streamlit as st

    _, now = viewer.written_window(known, "10m")
    heat = _of_now(known, metric)
    if reader.person.tenant:
        heat = only(heat, [line.node for line in seen_by(reader, cluster.overview(known, since=now - HEAT_KEEP_S, until=now)).nodes])
    if not heat.nodes:
        raise NoHistory("no node has reported this metric in the last minute")
    figure = viewer.drawn("heat", (metric, reader.person.tenant), lambda: heat_map(heat, reader.palette))
    st.plotly_chart(figure, theme=None, key="heat", config=figure_style.SETTINGS, alt=f"{metric.name} of {len(heat.nodes)} nodes")
    if len(heat.nodes) > ROWS:
        st.html(html.tagged("p", "Rows begin with the node at their left; point at a cell for its name. Drag enlarges, a double click shows all.", "ee-second"))


def _of_now(known: Sources, metric: HeatMetric) -> Heat:
    _, now = viewer.written_window(known, "10m")
    return cluster.heat(known, metric=metric.name, table=metric.table, since=now - max(HEAT_KEEP_S, 2 * known.config.history.file_s), until=now)


def only(heat: Heat, nodes: Iterable[str]) -> Heat:
    """Some nodes of it."""
    wanted = set(nodes)
    rows = [row for row, node in enumerate(heat.nodes) if node in wanted]
    return replace(heat, nodes=[heat.nodes[row] for row in rows], values=heat.values[rows], entities=[heat.entities[row] for row in rows])


def _key(metric: HeatMetric) -> str:
    return f"{metric.table}/{metric.name}"


def _first_choice(known: Sources, found: Sequence[HeatMetric]) -> int:
    """As `usual`; decided once for a reader, as a list whose first choice changes would forget what was chosen."""
    import streamlit as st

    kept: str = st.session_state.get(FIRST_CHOICE, "")
    keys = [_key(metric) for metric in found]
    if kept not in keys:
        kept = keys[usual(found, lambda metric: _flat(known, metric))]
        st.session_state[FIRST_CHOICE] = kept
    return keys.index(kept)


def _flat(known: Sources, metric: HeatMetric) -> bool:
    try:
        return _of_now(known, metric).flat
    except NoHistory:
        return True


def usual(found: Sequence[HeatMetric], flat: Callable[[HeatMetric], bool]) -> int:
    """What is looked at first: a GPU that does nothing, or is slowed down, shows in its power; where there are none, a node in its processors. What is
    alike everywhere is passed over, for MOST_TRIED numbers."""
    ordered = sorted(range(len(found)), key=lambda index: next((place for place, name in enumerate(USUAL) if found[index].name.endswith(name)), len(USUAL)))
    return next((index for index in ordered[:MOST_TRIED] if not flat(found[index])), ordered[0])


def _title(key: str) -> str:
    table, _, name = key.rpartition("/")
    return f"{table.partition('/')[0]} · {formatting.spoken(name)}"
