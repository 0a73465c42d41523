"""/healthz: what a person, a load balancer or an orchestrator asks first.

`/healthz/live`: is it worth keeping, or should it be started again? `/healthz/ready`: does it do its work now? A
stream or ledger that is away makes it unready, not dead: starting it again would not help. Both answer 200 or 503.
"""

from collections.abc import Callable

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from .http_server import Route, RouteHandler

STALE_S = 10.0
"""The owner of a partition ticks each second; so long without one, something is stuck."""
BEAT_S = 30.0
"""The process's own loop goes round several times a second."""


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a process. Ages in seconds."""

    role: str
    """all, detect or lead."""
    leads: bool = False
    leader: str = ""
    """Who leads, in words; '' if there is no leader, or the ledger is unavailable."""
    term: int = 0
    partitions: tuple[int, ...] = ()
    """Those that this process owns."""
    stream: str = ""
    """'' or why it does not answer."""
    ledger: str = ""
    """'' or why it does not answer."""
    tick_age_s: float | None = None
    """Of the partition whose last tick is oldest; None: it owns none, or none has ticked yet."""
    heartbeat_age_s: float = 0.0
    """Since the process's own loop last went round."""

    @property
    def dead(self) -> list[str]:
        """Why it should be started again."""
        return [f"the main loop has not run for {self.heartbeat_age_s:.0f} s"] if self.heartbeat_age_s > BEAT_S else []

    @property
    def unready(self) -> list[str]:
        """Why it does not do its work now."""
        problems = [f"{name}: {why}" for name, why in (("stream", self.stream), ("ledger", self.ledger)) if why]
        if self.tick_age_s is not None and self.tick_age_s > STALE_S:
            problems.append(f"no detection for {self.tick_age_s:.0f} s")
        if self.role != "detect" and not self.ledger and not self.leader:
            problems.append("no leader")
        return [*self.dead, *problems]


def routes(report: Callable[[], HealthReport]) -> list[Route]:
    """The three paths; `report` may block for a moment."""
    return [
        Route(path="/healthz", answer=_answer(report, lambda health: health.unready)),
        Route(path="/healthz/ready", answer=_answer(report, lambda health: health.unready)),
        Route(path="/healthz/live", answer=_answer(report, lambda health: health.dead)),
    ]


def _answer(report: Callable[[], HealthReport], problems_of: Callable[[HealthReport], list[str]]) -> RouteHandler:
    async def answer(_request: Request) -> Response:
        health = await run_in_threadpool(report)
        problems = problems_of(health)
        body = {"status": "failing" if problems else "ok", "problems": problems, **msgspec.to_builtins(health)}
        return Response(msgspec.json.encode(body), 503 if problems else 200, media_type="application/json")

    return answer
