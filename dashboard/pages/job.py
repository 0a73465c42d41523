"""One job: its timeline, its workers beside each other, what happened to it."""

import math
from collections.abc import Iterator, Sequence

from dashboard import error_boundary, formatting, html, viewer
from dashboard.figures import figure_style
from dashboard.figures.job_timeline import job_timeline
from dashboard.figures.worker_map import LATELY_S, named, slowest, worker_map
from dashboard.html import Column, Safe, Tile
from dashboard.page_header import heading, heading_with_span
from dashboard.pages.cluster import STATES
from dashboard.queries import cluster, job, safe_steps
from dashboard.queries.cluster import JobRow
from dashboard.queries.job import FURTHER_METRICS, WORKER_METRICS, TimelineMark, WorkerHeat
from dashboard.queries.steps import Pause
from dashboard.sources import Sources
from dashboard.viewer import Viewer
from eagle_eye.checkpoint_safety import TIER_NAMES, JobSafety, SafeStep
from eagle_eye.errors import AccessDenied

PAGE = {"title": "Jobs", "order": 3, "figures_first": True}

STRAGGLES = 1.1
"""Times its peers: from here on a worker is named (Unicron, section 4.1: 1.1 times the mean is slow)."""
MARKS: dict[str, tuple[str, html.Tone]] = {"incident": ("incident", "warning"), "heal": ("healed", "accent"), "epoch": ("epoch", "quiet")}
PRINTED_NAMES = {"loss": "loss", "grad_norm": "gradient norm", "step_s": "step time", "tokens_per_s": "throughput"}
MOST_MARKS = 30
MOST_PAUSES = 3
"""That are told in words."""


def show() -> None:
    """Draw the page."""
    import streamlit as st

    known, reader = viewer.sources(), viewer.reader()
    asked = st.query_params.get("job", "")
    since, until = viewer.window(known, st.query_params.get("since", viewer.usual_span(known, "1h")))
    if asked:
        _ahead(known, asked, st.query_params.get("since", ""))
    lines = [line for line in cluster.overview(known, since=since, until=until).jobs if reader.person.sees(line.job)]
    names = [line.job for line in lines]
    if not names and not asked:
        heading("Jobs")
        st.html(html.empty("No job yet", "Start one; it appears here with its first step.", command="eagle-eye run --nproc-per-node 8 -- python train.py"))
        return
    chosen = asked or max(lines, key=lambda line: (line.state != "over", line.open_incidents, line.last_step)).job
    if not reader.person.sees(chosen):
        raise AccessDenied(f"{chosen} belongs to another tenant than yours, {reader.person.tenant}.")
    span = heading_with_span(known, chosen)
    if len(names) > 1 or chosen not in names:
        _other(names, chosen)
    every = viewer.every(known)
    error_boundary.live(lambda: _top(known, chosen, span), every=every)
    error_boundary.live(lambda: _safe(known, chosen), every=every)
    error_boundary.live(lambda: _timeline(known, reader, chosen, span), every=every)
    if chosen in names:
        error_boundary.live(lambda: _workers(known, reader, chosen, span), every=every)


def _ahead(known: Sources, chosen: str, span: str) -> None:
    """While the first part is made, the others begin."""
    import streamlit as st

    since, until = viewer.written_window(known, span or viewer.usual_span(known, "1h"))
    metric = st.session_state.get("of") or _metric_of(st.query_params.get("of", ""))
    known.ahead(
        lambda: job.workers(known, chosen, since=since, until=until, metric=metric),
        lambda: job.timeline(known, chosen, since=since, until=until),
    )


def _other(names: Sequence[str], chosen: str) -> None:
    """Choose another job."""
    import streamlit as st

    options = [*([] if chosen in names else [chosen]), *names]
    picked = st.selectbox("Job", options, index=options.index(chosen), label_visibility="collapsed", width=420, key=f"pick-{chosen}")
    if picked and picked != chosen:
        st.query_params["job"] = picked
        st.rerun()


def _top(known: Sources, chosen: str, span: str) -> None:
    import streamlit as st

    since, until = viewer.window(known, span)
    line = next((each for each in cluster.overview(known, since=since, until=until).jobs if each.job == chosen), None)
    if line is not None:
        st.html(html.tiles(tiles(line, until)))


def tiles(line: JobRow, now: float) -> Sequence[Tile]:
    """What is read first."""
    word, tone = STATES[line.state]
    return (
        Tile("State", html.badge(word, tone), f"last step {formatting.relative(line.last_step, now)}", "alarm" if tone == "alarm" else "quiet"),
        Tile("Step", f"{line.step:,}" if line.step >= 0 else formatting.NOTHING, f"epoch {line.epoch}"),
        Tile("Step time", formatting.duration(line.step_s), "median"),
        Tile("Throughput", formatting.number(line.tokens_per_s, "tokens/s"), f"{formatting.count(line.workers, 'worker')} on {formatting.count(line.nodes, 'node')}"),
        Tile("Goodput", formatting.percent(line.goodput), "share of the time in new steps"),
        *_utilisation(line),
        Tile("Open incidents", html.link(str(line.open_incidents), "incidents", job=line.job) if line.open_incidents else "0", "", "alarm" if line.open_incidents else "quiet"),
    )  # fmt: skip


def _utilisation(line: JobRow) -> Iterator[Tile]:
    """None where no worker tells its model's operations."""
    if math.isfinite(line.mfu_percent):
        yield Tile("MFU", formatting.percent(line.mfu_percent / 100), "model's operations, share of the GPUs' peak")


# --- checkpoints -----------------------------------------------------------------------------------------------------


def _safe(known: Sources, chosen: str) -> None:
    import streamlit as st

    safety = safe_steps.of_job(known, chosen)
    if safety.tiers:
        st.html(html.joined(html.section("Newest safe checkpoint", "from the newest that is left the job goes on after a failure"), safe_table(safety, known.now()), *map(shared, safety.shared)))


def safe_table(safety: JobSafety, now: float) -> Safe:
    """A row for each tier: step, age of its state, and what keeps a newer one from being safe there."""
    columns = (Column("Safe"), Column("Step"), Column("Saved"), Column("", grows=True))
    return html.table(columns, (_tier(tier, safety.tiers[tier], now) for tier in TIER_NAMES if tier in safety.tiers), caption="Newest safe checkpoint")


def _tier(tier: str, safe: SafeStep, now: float) -> Sequence[object]:
    step = f"{safe.step:,}" if safe.step >= 0 else html.badge("none", "warning")
    return formatting.capital(TIER_NAMES[tier]), step, formatting.relative(safe.time or None, now), html.badge(safe.failure, "warning") if safe.failure else ""


def shared(pair: str) -> Safe:
    """Copies that one failure takes together with their originals."""
    return html.tagged("p", f"Both copies of {pair}: if that fails, the job goes on from storage.", "ee-second")


# --- over time -------------------------------------------------------------------------------------------------------


def _timeline(known: Sources, reader: Viewer, chosen: str, span: str) -> None:
    import streamlit as st

    since, until = viewer.written_window(known, span)
    timeline = job.timeline(known, chosen, since=since, until=until)
    if timeline.empty:
        st.html(html.empty(f"No step in the last {span}", "Choose a longer time above. Steps are written once the script marks them: two lines in its loop.", command="monitor = eagle_eye.monitor()"))
        return
    begins = max(since, float(timeline.times[0]))
    figure = viewer.drawn("timeline", (chosen, span), lambda: job_timeline(timeline, reader.palette, reader.zone, since=begins, until=until))
    st.plotly_chart(figure, theme=None, key="timeline", config=figure_style.SETTINGS, alt=f"loss, step time, throughput and goodput of {chosen}")
    if timeline.printed:
        st.html(as_printed(timeline.printed))
    if timeline.pauses:
        st.html(paused(timeline.pauses, reader, until))
    if timeline.marks:
        st.html(html.joined(html.section("What happened", formatting.count(len(timeline.marks), "mark")), marks_table(timeline.marks, reader, until)))


def as_printed(names: Sequence[str]) -> Safe:
    """Which lines are not from the script's own marks."""
    told = formatting.listed([PRINTED_NAMES[name] for name in names], nothing="")
    return html.tagged("p", f"{formatting.capital(told)}: as the workers print it, for the script does not log it.", "ee-second")


def paused(pauses: Sequence[Pause], reader: Viewer, now: float) -> Safe:
    """Why the lines break, the longest pauses by name."""
    rest = len(pauses) - MOST_PAUSES
    more = f" And {formatting.count(rest, 'shorter one')}." if rest > 0 else ""
    return html.tagged("p", " ".join(_pause(each, reader, now) for each in pauses[:MOST_PAUSES]) + more, "ee-second ee-pauses")


def _pause(pause: Pause, reader: Viewer, now: float) -> str:
    lasted = f"for {formatting.duration(pause.seconds)}, {formatting.date_time(pause.begin, reader.zone, now)} to {formatting.clock_time(pause.end, reader.zone)}"
    if pause.sampled:
        return f"No step {lasted}: the job was stalled, while its nodes sent telemetry."
    return f"No number {lasted}: nothing was written, so what the job did is not known; the server or the stream was away."


def marks_table(marks: Sequence[TimelineMark], reader: Viewer, now: float) -> Safe:
    """Newest first."""
    newest = sorted(marks, key=lambda mark: -mark.time)[:MOST_MARKS]
    return html.table((Column("Time"), Column("What"), Column("", grows=True)), (_mark(mark, reader, now) for mark in newest), caption="What happened to the job")


def _mark(mark: TimelineMark, reader: Viewer, now: float) -> Sequence[object]:
    action, of, cause = mark.text.partition(" for ")
    text = formatting.capital(formatting.spoken(action) + of + cause if mark.what == "heal" else mark.text)
    told = html.link(text, "incident", incident=mark.incident) if mark.incident else text
    when = html.joined(formatting.date_time(mark.time, reader.zone, now), Safe("&ensp;"), html.muted(formatting.relative(mark.time, now)))
    return when, html.badge(*MARKS[mark.what]), told


# --- workers ---------------------------------------------------------------------------------------------------------


def _workers(known: Sources, reader: Viewer, chosen: str, span: str) -> None:
    import streamlit as st

    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="bottom", gap="small"):
        st.html(html.section("Workers beside each other", "blue is faster than the others at that time, orange slower"), width="content")
        metric = st.selectbox("Metric", job.worker_metrics(known), key="of", format_func=_spoken, bind="query-params", label_visibility="collapsed", width=220)
    error_boundary.shown(lambda: _map(known, reader, chosen, span, metric or WORKER_METRICS[0]))


def _spoken(metric: str) -> str:
    """As it stands in the list, and in the address."""
    return formatting.spoken(metric.removesuffix("_s"))


def _metric_of(spoken: str) -> str:
    return next((metric for metric in (*WORKER_METRICS, *FURTHER_METRICS) if _spoken(metric) == spoken), WORKER_METRICS[0])


def _map(known: Sources, reader: Viewer, chosen: str, span: str, metric: str) -> None:
    import streamlit as st

    since, until = viewer.written_window(known, span)
    heat = job.workers(known, chosen, since=since, until=until, metric=metric)
    if not heat.workers:
        st.html(html.empty("No worker has reported this metric", "Choose another one, or a longer time."))
        return
    st.html(straggler(_lately(known, chosen, metric, heat, until)))
    figure = viewer.drawn("workers", (chosen, span, metric), lambda: worker_map(heat, reader.palette, reader.zone))
    st.plotly_chart(figure, theme=None, key="workers", config=figure_style.SETTINGS, alt=f"{metric} of {len(heat.workers)} workers of {chosen}")
    if heat.total > len(heat.workers):
        st.html(html.tagged("p", f"The slowest {len(heat.workers)} of {heat.total:,} workers.", "ee-second"))


def _lately(known: Sources, chosen: str, metric: str, heat: WorkerHeat, until: float) -> WorkerHeat:
    """Fine enough to see who is slow now: a column of a long span is many minutes."""
    return heat if heat.every <= LATELY_S else job.workers(known, chosen, since=until - viewer.SPANS["10m"], until=until, metric=metric)


def straggler(heat: WorkerHeat) -> Safe:
    """Who is slow now, in words."""
    found = slowest(heat)
    if found is None or found[1] < STRAGGLES:
        return html.banner(html.joined(html.badge("No straggler", "good"), " ", html.muted("all workers take about as long as their peers")), "quiet")
    return html.banner(html.joined(html.badge(f"{named(found[0])} is slow", "warning"), " ", html.muted(f"{formatting.number(found[1])} times its peers lately")), "warning")
