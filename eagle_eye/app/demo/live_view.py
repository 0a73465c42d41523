"""The demo's live terminal view, and its final table."""

import math
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from eagle_eye.app.printing import TableCell, TableColumn, print_table
from eagle_eye.types import Incident

from .fault_verdict import FaultVerdict
from .step_trace import StepTrace

BARS = "▁▂▃▄▅▆▇█"
TITLES = ["fault", "found after", "culprit named", "cause named", "action", "training again", "steps lost", "loss off by", "healed"]
COLUMNS = (
    TableColumn("fault", name=True), TableColumn("found"), TableColumn("culprit", name=True), TableColumn("cause", name=True, drop=1), TableColumn("action", prose=True, drop=3),
    TableColumn("training", drop=2), TableColumn("steps lost", drop=4), TableColumn("loss off", drop=5), TableColumn("healed", prose=True),
)  # fmt: skip


def live(trace: StepTrace, incidents: Sequence[Incident], doing: str, now: float, began: float) -> RenderableType:
    """Panel with the job and its newest incidents. now, began: seconds since 1970."""
    return Panel(Group(_job(trace, now), Text(), _incidents(incidents, now)), title=f"Eagle Eye  ·  {doing}", subtitle=f"{now - began:.0f} s", title_align="left")


def print_verdicts(console: Console, rows: Sequence[FaultVerdict], *, wide: bool = False) -> None:
    """The table at the end of a demo, one line a fault."""
    print_table(console, COLUMNS, (_row(row) for row in rows), wide=wide)


def _row(row: FaultVerdict) -> list[TableCell]:
    cells: list[TableCell] = [*_cells(row, _sign)]
    for place, right in ((2, row.culprit_right), (3, row.cause_right)):
        cells[place] = (str(cells[place]), "" if right else "red")
    return [*cells, (f"no: {'; '.join(row.wrongs)}", "red") if row.wrongs else ("yes", "green")]


def markdown(rows: Sequence[FaultVerdict]) -> str:
    """The same table as Markdown, with every column."""
    lines = [TITLES, ["---"] * len(TITLES)]
    lines += [[*_cells(row, _verdict_text), "; ".join(row.wrongs) or "yes"] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(row: FaultVerdict) -> dict[str, object]:
    """A row for JSON."""
    return {
        "fault": row.fault.kind, "target": row.fault.target, "found_s": row.found_s, "culprit": row.culprit, "culprit_right": row.culprit_right,
        "cause": row.cause, "cause_right": row.cause_right, "actions": row.actions, "training_s": row.training_s, "steps_lost": row.steps_lost,
        "throughput": row.throughput, "loss_off": row.loss_off, "wrongs": row.wrongs,
    }  # fmt: skip


def _job(trace: StepTrace, now: float) -> Table:
    job = Table(box=None, show_header=False, pad_edge=False)
    job.add_column(style="dim")
    job.add_column(no_wrap=True, overflow="ellipsis")
    layout = trace.layout
    recent = trace.steps[-40:]
    if layout is None or not recent:
        job.add_row("job", f"{trace.job}: starting")
        return job
    last = recent[-1]
    job.add_row("job", f"{trace.job}   epoch {layout.epoch} ({layout.reason})   coordinator {layout.coordinator}")
    job.add_row("step", f"{last.number}   {now - last.end:.1f} s ago")
    job.add_row("loss", f"{last.loss:.4f}   {_line([step.loss for step in recent])}")
    job.add_row("step time", f"{last.seconds * 1000:.0f} ms   {_line([step.seconds for step in recent])}")
    job.add_row("ranks", "   ".join(f"{place.rank}:{place.node}" for place in layout.placements) + (f"   evicted: {', '.join(layout.excluded)}" if layout.excluded else ""))
    return job


def _incidents(incidents: Sequence[Incident], now: float) -> Table:
    shown = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("incident", "cause", "culprit", "severity", "age"):
        shown.add_column(column, no_wrap=True, overflow="ellipsis")
    for incident in sorted(incidents, key=lambda each: -each.time)[:6]:
        culprit = ", ".join(str(culprit.entity) for culprit in incident.culprits) or "unknown"
        shown.add_row(incident.id, incident.cause, culprit, incident.severity.upper(), f"{now - incident.time:.0f} s")
    return shown


def _line(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[int((value - low) * scale)] if math.isfinite(value) else "✗" for value in values)


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "never"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _cells(row: FaultVerdict, verdict: Callable[[str, bool], str]) -> list[str]:
    """All columns but the last."""
    return [
        row.fault.name,
        _seconds(row.found_s),
        verdict(row.culprit, row.culprit_right),
        verdict(row.cause or "none", row.cause_right),
        ", ".join(row.actions) or "none",
        _seconds(row.training_s),
        str(row.steps_lost),
        "–" if math.isnan(row.loss_off) else f"{row.loss_off:.0e}",
    ]


def _verdict_text(label: str, right: bool) -> str:
    return f"{label} ({'right' if right else 'WRONG'})"


def _sign(label: str, right: bool) -> str:
    return f"{label} {'✓' if right else '✗'}"
