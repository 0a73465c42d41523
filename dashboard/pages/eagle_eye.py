"""Eagle Eye itself: who leads, how far it lags, what it cannot see, what it lost."""

import math
from collections.abc import Sequence

from dashboard import error_boundary, formatting, html, viewer
from dashboard.html import Column, Safe, Tile
from dashboard.page_header import heading
from dashboard.queries import self_monitoring
from dashboard.queries.self_monitoring import ServerStatus
from dashboard.sources import Sources
from dashboard.viewer import Viewer

PAGE = {"title": "Eagle Eye", "order": 5}

LATE_S = 10.0
"""Behind the stream: detection takes that much longer than it should."""
MOST = 50
UNKNOWN = "The server's own figures cannot be read, so lag is not known: set `server.http`, and look whether it answers."
UNKNOWN_THEN = "How far they lagged was not recorded."


def show() -> None:
    """Draw the page."""
    known, reader = viewer.sources(), viewer.reader()
    heading("Eagle Eye", "how it is itself")
    error_boundary.live(lambda: _all(known, reader), every=viewer.every(known))


def _all(known: Sources, reader: Viewer) -> None:
    import streamlit as st

    status, now = self_monitoring.status(known, token=reader.token), known.now()
    if not status.leader and known.recorded is None:
        st.html(html.banner(html.joined(html.badge("No leader", "alarm"), " ", html.muted("nothing is diagnosed or healed until a server runs: "), html.tagged("code", "eagle-eye server")), "alarm"))
    st.html(html.tiles(tiles(status, now)))
    for part in (_partitions(status, known, now), _blind(status, now), _dropped(status), _notices(status, reader, now)):
        if part:
            st.html(part)


def tiles(status: ServerStatus, now: float) -> Sequence[Tile]:
    """What is read first."""
    lags = [line.lag_s for line in status.partitions if math.isfinite(line.lag_s)]
    late = bool(lags) and max(lags) > LATE_S
    lost = sum(status.dropped.values())
    return (
        _leader(status, now),
        Tile("Lag", formatting.duration(max(lags)) if lags else formatting.NOTHING, "behind the stream, at most" if lags else "not known", "alarm" if late else "quiet"),
        Tile("Newest sample", formatting.relative(status.newest, now), "in the history"),
        Tile("Blind spots", len(status.collectors), "collectors that fail", "warning" if status.collectors else "quiet"),
        Tile("Clocks off", len(status.clocks), "nodes, by more than 3 s", "warning" if status.clocks else "quiet"),
        Tile("Lost", formatting.number(lost) if status.figures else formatting.NOTHING, "records and metrics" if status.figures else "not known", "warning" if lost else "quiet"),
    )


def _leader(status: ServerStatus, now: float) -> Tile:
    """Who leads, or who did last."""
    if status.leader:
        process, _, host = status.last_leader.partition(" on ")
        return Tile("Leader", host, f"{process}, term {status.term}, since {formatting.relative(status.leads_since, now)}")
    if not status.last_leader:
        return Tile("Leader", formatting.NOTHING, "no leader so far")
    return Tile("Leader", formatting.NOTHING, f"last {status.last_leader}, term {status.term}, until {formatting.relative(status.led_until, now)}")


def _partitions(status: ServerStatus, known: Sources, now: float) -> Safe:
    head = html.section("Partitions of the stream", "each is judged by one process at a time")
    if not status.partitions:
        advice = "In a recorded run no process runs any more." if known.recorded is not None else "A server takes them when it starts."
        return html.joined(head, html.empty("No partition is owned", advice, command="" if known.recorded is not None else "eagle-eye server"))
    columns = (Column("Partition", number=True), Column("Owner", grows=True), Column("Term", number=True, wide_only=True), Column("Lag", number=True), Column("Records", number=True, wide_only=True), Column("Last tick", number=True), Column("History", number=True, wide_only=True))
    rows = (
        (line.partition, line.owner or html.badge("none", "alarm"), line.term, formatting.duration(line.lag_s), formatting.number(line.lag_records), formatting.relative(line.last_tick, now), formatting.duration(line.history_lag_s))
        for line in status.partitions
    )
    unknown = "" if status.figures else html.tagged("p", html.prose(UNKNOWN_THEN if known.recorded is not None else UNKNOWN), "ee-second")
    return html.joined(head, html.table(columns, rows, caption="Partitions"), unknown)


def _blind(status: ServerStatus, now: float) -> Safe:
    collectors = [(line.node, html.badge("collector fails", "warning"), line.reason, formatting.relative(line.since, now)) for line in status.collectors[:MOST]]
    clocks = [
        (line.node, html.badge("clock is off", "warning"), f"{formatting.duration(abs(line.offset_s))} {'ahead of' if line.offset_s > 0 else 'behind'} the server's{'' if line.measured else ', at least: it made a guard hold a plan'}", "now" if line.measured else formatting.relative(line.time, now))
        for line in status.clocks[:MOST]
    ]
    head = html.section("What it cannot see", "collectors that fail, clocks that are off")
    if not collectors and not clocks:
        return html.joined(head, html.banner(html.joined(html.badge("No blind spot known", "good"), " ", html.muted("no collector reports a failure, no guard a wrong clock")), "quiet"))
    return html.joined(head, html.table((Column("Node"), Column("What"), Column("Why", grows=True), Column("When")), [*collectors, *clocks], caption="Blind spots"))


def _dropped(status: ServerStatus) -> Safe:
    if not status.figures:
        return Safe("")
    head = html.section("What was lost", "since the server started")
    rows = [(name, formatting.number(many)) for name, many in sorted(status.dropped.items(), key=lambda item: -item[1])]
    return html.joined(head, html.table((Column("What", grows=True), Column("How much", number=True)), rows, caption="What was lost"))


def _notices(status: ServerStatus, reader: Viewer, now: float) -> Safe:
    head = html.section("Notices", "what it noted about itself")
    if not status.notices:
        return html.joined(head, html.banner(html.muted("Nothing was noted: no leader changed, the stream was never away."), "quiet"))
    rows = ((formatting.date_time(notice.time, reader.zone, now), html.muted(formatting.relative(notice.time, now)), html.tagged("code", notice.name), html.prose(notice.message)) for notice in status.notices[:MOST])
    return html.joined(head, html.table((Column("Time"), Column("", wide_only=True), Column("Notice"), Column("", grows=True)), rows, caption="Notices"))
