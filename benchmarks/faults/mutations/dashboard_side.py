"""The dashboard's reading side: what pages draw of a ledger and a history that hold whatever mutated records the leader has let pass."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from dashboard.errors import NotShown
from dashboard.figures.colours import palette
from dashboard.figures.evidence_figure import evidence
from dashboard.figures.heat_map import heat_map
from dashboard.figures.job_timeline import job_timeline
from dashboard.figures.prediction_figure import prediction_figure
from dashboard.figures.worker_map import worker_map
from dashboard.incident import incident_html
from dashboard.incident.incident_html import ViewTime
from dashboard.pages import actions as actions_page
from dashboard.pages import cluster as cluster_page
from dashboard.pages import eagle_eye as server_page
from dashboard.pages import incidents as incidents_page
from dashboard.pages import job as job_page
from dashboard.queries import actions, cluster, incident, incidents, job, self_monitoring
from dashboard.sources import Sources
from dashboard.viewer import Viewer
from eagle_eye.access import Person, Role
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config, HistoryConfig, ServerConfig
from eagle_eye.errors import UNREADABLE
from eagle_eye.ledger import Ledger
from eagle_eye.types import Finding, Incident, IncidentState, Layout, Notice, Outcome, Plan, Severity
from eagle_eye.types import Target as PlanTarget

from . import history_files
from .history_files import WrittenHistory
from .mutation import Mutation
from .sample_findings import SampleFindings, tree_of
from .sample_job import JOB, SampleJob
from .target import Tally, Target

ALL = 250
"""Records after which the pages that show everything are drawn."""
LEDGER_KEPT = 4_000
"""Records after which the ledger begins anew, as its retention would see to."""
KINDS: dict[str, type] = {"incident": Incident, "finding": Finding, "outcome": Outcome, "layout": Layout, "notice": Notice, "plan": Plan}


class ReadingSide:
    """One deployment's ledger and history, and the pages over them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clock = FakeClock()
        self._numbers = WrittenHistory(folder)
        self._findings = SampleFindings(SampleJob())
        self._viewer = Viewer(Person(name="ada", role=Role.ADMIN), "", UTC, palette("dark"))
        self._others: list[Any] = []
        self._taken = self._refused = 0
        self._ledger, self._sources = self._open()

    def take(self, random: Random) -> None:
        self._taken += 1
        self._clock.advance(0.05)
        self._numbers.take(random)
        if self._taken % LEDGER_KEPT == 0:
            self.close()
            (self._folder / "ledger.sqlite").unlink()
            self._ledger, self._sources = self._open()
        kind = random.choice(list(KINDS))
        noun = self._mutated(kind, Mutation(random), random)
        if noun is None:
            self._refused += 1
        else:
            self._save(noun)
            if isinstance(noun, Incident):
                self._draw_incident(noun.id)
        if self._taken % ALL == 0:
            self._draw_all()

    def tally(self) -> Tally:
        return Tally(self._refused, self._refused)  # the leader counts them, and keeps them aside

    def close(self) -> None:
        self._sources.close()
        self._ledger.close()

    # --- what is there -------------------------------------------------------------------------------------------

    def _open(self) -> tuple[Ledger, Sources]:
        ledger = Ledger.open(self._folder / "ledger.sqlite")
        config = Config(state_dir=str(self._folder), server=ServerConfig(http=""), history=HistoryConfig(file_s=history_files.FILE_S))
        return ledger, Sources(config, self._clock)

    def _mutated(self, kind: str, mutation: Mutation, random: Random) -> Any:
        """None for what the leader would not let pass."""
        tree = tree_of(self._sample(kind, random))
        if len(self._others) < 64:
            self._others.append(tree)
        try:
            return msgspec.json.decode(mutation.encoded(tree, "json", self._others), type=KINDS[kind])
        except UNREADABLE:
            return None

    def _sample(self, kind: str, random: Random) -> Any:
        now = self._clock.now()
        if kind == "layout":
            return SampleJob().layout(now, epoch=1 + self._taken)
        if kind == "notice":
            return Notice(name="record.unreadable", time=now, message="offset 3: x")
        if kind == "plan":
            target = PlanTarget(job=JOB, epoch=1, basis="b", exclude=("node-b",))
            return Plan(id=f"plan-{self._taken}", incident=f"incident-{self._taken}", action="evict_node", targets=(target,), made=now, expires=now + 600.0, severity=Severity.SEV1, reason="ECC")
        return {"incident": self._findings.incident, "finding": self._findings.finding, "outcome": self._findings.outcome}[kind](random, now)

    def _save(self, noun: Any) -> None:
        """As intake and engine do."""
        ledger = self._ledger
        if isinstance(noun, Incident):
            ledger.save_incident(noun, IncidentState.OPEN)
        elif isinstance(noun, Finding):
            ledger.save_findings([noun])
        elif isinstance(noun, Layout):
            ledger.save_job(noun.job, noun, "node-a:7000", "restart:3", 2)
        elif isinstance(noun, Notice):
            ledger.save_notice(noun)
        elif isinstance(noun, Plan):
            ledger.save_plan(noun)
        elif isinstance(noun, Outcome):
            ledger.save_outcome(noun)

    # --- what is drawn -------------------------------------------------------------------------------------------

    def _draw_incident(self, name: str) -> None:
        sources, view = self._sources, ViewTime(zone=UTC, now=self._clock.now())
        try:
            story = incident.story(sources, name)
        except NotShown:
            return
        for draw in (incident_html.head, incident_html.action_summary, incident_html.timeline, incident_html.people):
            draw(story, view)
        incident_html.facts(story)
        incident_html.track(story)
        incident_html.proofs(story.evidence, view)
        incident_html.rivals(story.rivals)
        for plan in story.plans:
            incident_html.plan(plan, view, story.work)
        for plot in incident.plots(sources, story):
            evidence(plot, self._viewer.palette, UTC)

    def _draw_all(self) -> None:
        sources, viewer, now = self._sources, self._viewer, self._clock.now()
        since = now - 600.0
        self._drawn(lambda: incidents_page.table(incidents.listed(sources), ViewTime(zone=UTC, now=now)))
        self._drawn(lambda: self._cluster(since, now))
        self._drawn(lambda: self._job(since, now))
        self._drawn(lambda: self._server(now))
        self._drawn(lambda: self._actions(since, now))
        self._drawn(lambda: list(actions_page.suppression_rows(actions.active_suppressions(sources), viewer, now)))

    @staticmethod
    def _drawn(draw: Any) -> None:
        """What a page cannot show it says in its place (dashboard/error_boundary.py); all else would be a part that has failed."""
        try:
            draw()
        except NotShown:
            return

    def _cluster(self, since: float, now: float) -> None:
        seen = cluster.overview(self._sources, since=since, until=now)
        cluster_page.jobs_table(seen)
        cluster_page.nodes_part(seen, self._viewer)
        metrics = cluster.metrics(self._sources)
        for metric in metrics[:: max(1, len(metrics) // 4)]:
            heat_map(cluster.heat(self._sources, metric=metric.name, table=metric.table, until=now, since=since), self._viewer.palette)

    def _job(self, since: float, now: float) -> None:
        for line in cluster.overview(self._sources, since=since, until=now).jobs[:20]:
            job_page.tiles(line, now)
        timeline = job.timeline(self._sources, JOB, since=since, until=now)
        if not timeline.empty:
            job_timeline(timeline, self._viewer.palette, UTC, since=since, until=now)
            job_page.marks_table(timeline.marks, self._viewer, now)
        heat = job.workers(self._sources, JOB, since=since, until=now)
        if heat.workers:
            job_page.straggler(heat)
            worker_map(heat, self._viewer.palette, UTC)

    def _server(self, now: float) -> None:
        status = self_monitoring.status(self._sources)
        server_page.tiles(status, now)
        server_page._notices(status, self._viewer, now)
        server_page._blind(status, now)

    def _actions(self, since: float, now: float) -> None:
        lines = actions.done(self._sources, since=since)
        actions_page.tiles(lines)
        actions_page.table(lines, self._viewer, now)
        entries = list(actions_page.downtimes(lines))
        if entries:
            prediction_figure(entries, self._viewer.palette, "s")


@contextmanager
def reading_side(folder: Path) -> Iterator[ReadingSide]:
    """A state directory in the folder."""
    os.environ.pop("EAGLE_EYE_DASHBOARD", None)
    subject = ReadingSide(folder)
    try:
        yield subject
    finally:
        subject.close()
        shutil.rmtree(folder, ignore_errors=True)


TARGET = Target("dashboard", "incidents, findings, outcomes, plans, layouts and numbers, drawn by the dashboard's pages", reading_side)
