"""What was done, what was expected of it, what came of it; and what stood in the way."""

from collections.abc import Iterable, Iterator, Sequence

from dashboard import error_boundary, formatting, html, viewer
from dashboard.figures import figure_style
from dashboard.figures.prediction_figure import PredictionPair, prediction_figure
from dashboard.html import Column, Safe, Tile
from dashboard.page_header import heading_with_span
from dashboard.queries import actions
from dashboard.queries.actions import ActionRow, ActiveSuppressions, GuardRow
from dashboard.sources import Sources
from dashboard.viewer import Viewer

PAGE = {"title": "Actions", "order": 4}

MOST = 100
TONES: dict[str, html.Tone] = {"helped": "good", "failed": "warning", "under way": "accent"}
DOWNTIME = "downtime_s"
THROUGHPUT = "throughput_per_s"
BILL = "bill_gpu_hours"


def show() -> None:
    """Draw the page."""
    known, reader = viewer.sources(), viewer.reader()
    span = heading_with_span(known, "Actions", usual="24h")
    known.ledger  # noqa: B018 -- where there is none, that is said once, not in each part
    every = viewer.every(known)
    error_boundary.live(lambda: _done(known, reader, span), every=every)
    error_boundary.live(lambda: _suppressions(known, reader), every=every)
    error_boundary.live(lambda: _guards(known, reader, span), every=every)


# --- predicted and actual -------------------------------------------------------------------------------------------------------


def _done(known: Sources, reader: Viewer, span: str) -> None:
    import streamlit as st

    since, now = viewer.window(known, span)
    lines = [line for line in actions.done(known, since=since) if reader.person.sees(line.job)]
    if not lines:
        st.html(html.empty(f"Nothing was done in the last {span}", "That is good news, or the mode is observe: then plans are only written down. A drill shows what would happen.", command="eagle-eye drill --help"))
        return
    st.html(html.tiles(tiles(lines)))
    st.html(html.joined(html.section("What was done", "below each number: what was expected of it"), table(lines, reader, now)))
    entries = list(downtimes(lines))
    if len(entries) > 1:
        st.html(html.section("Predicted and actual downtime", "ring: predicted, dot: actual"))
        st.plotly_chart(prediction_figure(entries, reader.palette, "s"), theme=None, key="predictions", config=figure_style.SETTINGS, alt="predicted and actual downtime of each action")


def tiles(lines: Sequence[ActionRow]) -> Sequence[Tile]:
    """What is read first."""
    judged = [line for line in lines if state_of(line) in ("helped", "failed")]
    failed = sum(line.state == "failed" for line in judged)
    down = [line.actual[DOWNTIME] for line in lines if DOWNTIME in line.actual]
    off = [abs(entry.actual - entry.predicted) / entry.predicted for entry in downtimes(lines) if entry.predicted > 0]
    return (
        Tile("Actions", f"{len(lines):,}", f"{sum(line.own for line in lines):,} by the jobs themselves"),
        Tile("Helped", f"{len(judged) - failed} of {len(judged)}", f"{failed} failed" if failed else "none failed"),
        Tile("Downtime", formatting.duration(sum(down)), f"median {formatting.duration(sorted(down)[len(down) // 2])}" if down else ""),
        Tile("Cost", formatting.gpu_hours(sum(bills(lines).values())), "of the faults that were acted on"),
        Tile("Predictions", formatting.percent(sorted(off)[len(off) // 2]) if off else formatting.NOTHING, "median error of downtime"),
    )


def bills(lines: Iterable[ActionRow]) -> dict[str, float]:
    """Incident → GPU-hours after its last action: what a fault costs is counted from its beginning, so that the bills of two actions against it are not added."""
    found: dict[str, float] = {}
    for line in lines:
        found[line.incident] = max(found.get(line.incident, 0.0), line.actual.get(BILL, 0.0))
    return found


def state_of(line: ActionRow) -> str:
    """In a word; what was done but cannot help by itself (a dump of stacks) is only done."""
    done = "helped" if line.actual else "done"
    return {"done": done, "intended": "under way", "stale": "overtaken"}.get(line.state, line.state)


def downtimes(lines: Sequence[ActionRow]) -> Iterator[PredictionPair]:
    """Of actions whose downtime was both predicted and measured."""
    for line in lines:
        if DOWNTIME in line.predicted and DOWNTIME in line.actual:
            yield PredictionPair(f"{formatting.spoken(line.action)} · {line.cause}", line.predicted[DOWNTIME], line.actual[DOWNTIME])


def table(lines: Sequence[ActionRow], reader: Viewer, now: float) -> Safe:
    """Newest first."""
    columns = (
        Column("When"), Column("Action"), Column("Result"), Column("Downtime", number=True, wide_only=True), Column("Throughput", number=True, wide_only=True),
        Column("Cost", number=True, wide_only=True), Column("What came of it", grows=True),
    )  # fmt: skip
    more = html.tagged("div", f"and {len(lines) - MOST:,} older ones", "ee-second") if len(lines) > MOST else ""
    return html.joined(html.table(columns, (_row(line, reader, now) for line in lines[:MOST]), caption="Actions"), more)


def _row(line: ActionRow, reader: Viewer, now: float) -> Sequence[object]:
    return (
        html.stacked(formatting.date_time(line.time, reader.zone, now), formatting.relative(line.time, now)),
        html.stacked(formatting.spoken(line.action), html.link(line.cause or line.incident, "incident", incident=line.incident)),
        html.badge(state_of(line), TONES.get(state_of(line), "quiet")),
        _beside(formatting.duration(line.predicted.get(DOWNTIME)), formatting.duration(line.actual.get(DOWNTIME, line.transition_s))),
        _beside(formatting.number(line.predicted.get(THROUGHPUT), line.work), formatting.number(line.actual.get(THROUGHPUT), line.work)),
        formatting.gpu_hours(line.actual.get(BILL), "GPU-h"),
        html.stacked(html.linked(line.detail or formatting.NOTHING), line.targets),
    )


def _beside(predicted: str, actual: str) -> Safe:
    """Two numbers; the expected one is quieter."""
    if predicted == actual == formatting.NOTHING:
        return html.text(formatting.NOTHING)
    return html.stacked(actual, f"expected {predicted}")


# --- suppressions ------------------------------------------------------------------------------------------


def _suppressions(known: Sources, reader: Viewer) -> None:
    import streamlit as st

    rows = list(suppression_rows(actions.active_suppressions(known), reader, known.now()))
    head = html.section("Suppressions in force", "breakers, silences, maintenance")
    if not rows:
        st.html(html.joined(head, html.banner(html.joined(html.badge("Nothing", "good"), " ", html.muted("no breaker is open, no silence is active")), "quiet")))
        return
    st.html(html.joined(head, html.table((Column("What"), Column("Of"), Column("Since"), Column("Why", grows=True), Column("How it ends", wide_only=True)), rows, caption="suppressions in force")))


def suppression_rows(active: ActiveSuppressions, reader: Viewer, now: float) -> Iterator[Sequence[object]]:
    """Breakers first: only a person closes them."""
    for breaker in active.breakers:
        if reader.person.sees(breaker.job):
            why = html.stacked(breaker.reason, html.link("the incident", "incident", incident=breaker.incident))
            yield html.badge("breaker open", "alarm"), html.stacked(formatting.spoken(breaker.action), breaker.job), formatting.relative(breaker.since, now), why, html.tagged("code", f"eagle-eye breaker close {breaker.id}")
    for silence in active.silences:
        of = " · ".join(f"{kind} {pattern}" for kind, pattern in (("job", silence.job), ("node", silence.node), ("cause", silence.cause)) if pattern != "*") or "everything"
        yield html.badge("silence", "warning"), of, formatting.relative(silence.since, now), html.stacked(silence.reason, silence.person), f"ends {formatting.relative(silence.until, now)}"
    for window in active.windows:
        of = formatting.listed((*window.nodes, *window.jobs), nothing="everything")
        yield html.badge("maintenance", "quiet"), of, formatting.relative(window.since, now), html.stacked(window.reason, window.person), f"ends {formatting.relative(window.until, now)}"


def _guards(known: Sources, reader: Viewer, span: str) -> None:
    import streamlit as st

    since, now = viewer.window(known, span)
    lines = actions.guards(known, since=since)
    head = html.section("Guards", "what each decided about plans, and its last refusal")
    if not lines:
        st.html(html.joined(head, html.empty("No guard was asked", f"No plan was made in the last {span} that reaches beyond its own job.")))
        return
    columns = (Column("Guard"), Column("Allowed", number=True), Column("Held", number=True), Column("Refused", number=True), Column("Last “no”", grows=True), Column("When", wide_only=True))
    said_no = [line for line in lines if line.held or line.refused]
    others = [formatting.spoken(line.guard) for line in lines if line not in said_no]
    table = html.table(columns, (_guard(line, now, hidden=bool(reader.person.tenant)) for line in said_no), caption="Guards") if said_no else ""
    rest = html.tagged("p", f"Only allowed: {', '.join(others)}.", "ee-second") if others else ""
    st.html(html.joined(head, table, rest))


def _guard(line: GuardRow, now: float, *, hidden: bool) -> Sequence[object]:
    """`hidden`: reasons name jobs, perhaps of other tenants."""
    reason = formatting.NOTHING if not line.last_reason else "of a job" if hidden else html.link(line.last_reason, "incident", incident=line.last_incident)
    return formatting.spoken(line.guard), line.allowed, line.held or formatting.NOTHING, line.refused or formatting.NOTHING, reason, formatting.relative(line.last_time, now)
