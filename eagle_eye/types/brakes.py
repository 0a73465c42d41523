"""What stands in the way of automatic action: a person's silences and windows, breakers, and telemetry that may lie."""

from fnmatch import fnmatchcase

from .entity import Noun


class Silence(Noun, frozen=True, kw_only=True):
    """A person wants no automatic action on what matches. All three patterns must match; `*` matches everything.

    >>> silence = Silence(id="s", person="ada", reason="benchmark", since=0.0, until=60.0, job="team/gpt")
    >>> silence.covers("team/gpt/run-1", ("node-a",), "slow node"), silence.covers("team/bert/run-1", (), "slow node")
    (True, False)
    """

    id: str
    person: str
    reason: str
    since: float
    until: float
    job: str = "*"
    """Pattern of tenant/name/run; the run may be left out."""
    node: str = "*"
    """Pattern; it matches when one node of several does."""
    cause: str = "*"
    """Pattern of an incident's cause."""
    ended_by: str = ""
    """Who ended it before its time."""

    def covers(self, job: str, nodes: tuple[str, ...], cause: str) -> bool:
        """Whether a plan for this job, about these nodes and this cause, is meant."""
        there = self.node == "*" or any(fnmatchcase(node, self.node) for node in nodes)
        return there and matches_job(self.job, job) and fnmatchcase(cause, self.cause)


class Window(Noun, frozen=True, kw_only=True):
    """Planned work: faults of these nodes, and of the nodes of these jobs, are expected; nobody is isolated for them."""

    id: str
    person: str
    reason: str
    since: float
    until: float
    nodes: tuple[str, ...] = ()
    """Patterns."""
    jobs: tuple[str, ...] = ()
    """Patterns of tenant/name/run; the run may be left out."""
    ended_by: str = ""
    """Who ended it before its time."""

    def open_at(self, time: float) -> bool:
        """Whether the work is under way."""
        return self.since <= time < self.until

    def expects(self, job: str, node: str) -> bool:
        """Whether a fault of this node of this job belongs to the work."""
        return any(fnmatchcase(node, known) for known in self.nodes) or self.expects_job(job)

    def expects_job(self, job: str) -> bool:
        """Whether the work is on the job itself."""
        return any(matches_job(known, job) for known in self.jobs)


class Breaker(Noun, frozen=True, kw_only=True):
    """An action did not help a job: it is not tried on it again until a person closes the breaker."""

    id: str
    job: str
    action: str
    plan: str
    """Whose outcome opened it."""
    incident: str
    reason: str
    since: float
    until: float | None = None
    """When it was closed; None: it is open."""
    person: str = ""
    """Who closed it."""


class Note(Noun, frozen=True, kw_only=True):
    """What a person wrote about an incident."""

    incident: str
    person: str
    time: float
    text: str


class Telemetry(Noun, frozen=True, kw_only=True):
    """How far a node's numbers can be trusted."""

    node: str
    heard: float = 0.0
    """When its newest batch came in, by the server's clock; 0: none did."""
    skew_s: float = 0.0
    """Time of that batch by the node's own clock minus `heard`: a second or two is the batch's way."""


def matches_job(pattern: str, job: str) -> bool:
    """Whether a job's full name is meant: `team/gpt` and `team/*` mean every run of theirs.

    >>> matches_job("team/gpt", "team/gpt/run-1"), matches_job("team/gp", "team/gpt/run-1")
    (True, False)
    """
    return fnmatchcase(job, pattern) or fnmatchcase(job, f"{pattern}/*")
