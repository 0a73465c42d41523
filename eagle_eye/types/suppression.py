"""What suppresses automatic actions: silences, maintenance windows and circuit breakers."""

from fnmatch import fnmatchcase

from .entity import Noun, Time


class Silence(Noun, frozen=True, kw_only=True):
    """An operator's silence: no automatic action on what matches. All three patterns must match; `*` matches everything.

    >>> silence = Silence(id="s", person="ada", reason="benchmark", since=0.0, until=60.0, job="team/gpt")
    >>> silence.covers("team/gpt/run-1", ("node-a",), "slow node"), silence.covers("team/bert/run-1", (), "slow node")
    (True, False)
    """

    id: str
    person: str
    reason: str
    since: Time
    until: Time
    job: str = "*"
    """Pattern of tenant/name/run; the run may be omitted."""
    node: str = "*"
    """Pattern; of several nodes one must match."""
    cause: str = "*"
    """Pattern of an incident's cause."""
    ended_by: str = ""
    """Operator who ended it early; '' if nobody did."""

    def covers(self, job: str, nodes: tuple[str, ...], cause: str) -> bool:
        """Whether a plan for this job, these nodes and this cause is silenced."""
        there = self.node == "*" or any(fnmatchcase(node, self.node) for node in nodes)
        return there and matches_job(self.job, job) and fnmatchcase(cause, self.cause)


class Window(Noun, frozen=True, kw_only=True):
    """A maintenance window: faults of these nodes and jobs are expected; no node is evicted for them."""

    id: str
    person: str
    reason: str
    since: Time
    until: Time
    nodes: tuple[str, ...] = ()
    """Patterns of node names."""
    jobs: tuple[str, ...] = ()
    """Patterns of tenant/name/run; the run may be omitted."""
    ended_by: str = ""
    """Operator who ended it early; '' if nobody did."""

    def open_at(self, time: float) -> bool:
        """Whether the window is open at this time."""
        return self.since <= time < self.until

    def expects(self, job: str, node: str) -> bool:
        """Whether a fault of this node of this job is expected."""
        return any(fnmatchcase(node, known) for known in self.nodes) or self.expects_job(job)

    def expects_job(self, job: str) -> bool:
        """Whether the window covers the job itself."""
        return any(matches_job(known, job) for known in self.jobs)


class Breaker(Noun, frozen=True, kw_only=True):
    """A circuit breaker: an action did not help a job and is not used on it again until an operator closes the breaker."""

    id: str
    job: str
    action: str
    plan: str
    """Id of the plan whose outcome opened it."""
    incident: str
    reason: str
    since: Time
    until: Time | None = None
    """Time at which it was closed; None: it is open."""
    person: str = ""
    """Operator who closed it."""


def matches_job(pattern: str, job: str) -> bool:
    """Whether a pattern matches a job's full name: `team/gpt` and `team/*` match every run.

    >>> matches_job("team/gpt", "team/gpt/run-1"), matches_job("team/gp", "team/gpt/run-1")
    (True, False)
    """
    return fnmatchcase(job, pattern) or fnmatchcase(job, f"{pattern}/*")
