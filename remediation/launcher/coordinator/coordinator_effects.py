"""Effects: what the coordinator's state machine wants done. Values, carried out by `effect_executor.py`."""

import msgspec

from eagle_eye.types import Layout, Transition


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do in the world outside."""


class Prepare(Effect, frozen=True, kw_only=True):
    """Tell these nodes to end their old workers (in place: to fence them) and to vote for the layout."""

    nodes: tuple[str, ...]
    layout: Layout
    ballot: str = ""
    """Of elastic workers: digest of the layout that was first asked for under this number, whoever has died since."""
    given_up: tuple[str, ...] = ()
    """Ballots of this coordinator that can no longer win."""
    soft: tuple[str, ...] = ()
    """Workers that finish the step that they are in; all others are fenced hard."""


class AskGrant(Effect, frozen=True, kw_only=True):
    """Exactly half of the launchers acknowledged: ask the leader for a grant."""

    layout: Layout
    """Of the epoch that is being formed."""
    missing: tuple[str, ...]
    last: int = 0
    """Number of the last valid epoch that is known here."""


class Start(Effect, frozen=True, kw_only=True):
    """The epoch is valid: write it down, make its store, tell the nodes to start their workers."""

    nodes: tuple[str, ...]
    layout: Layout
    cause: str
    budget_left: int


class RegroupWorkers(Effect, frozen=True, kw_only=True):
    """The epoch is valid and its workers live: write it down, and bring them the transition."""

    nodes: tuple[str, ...]
    layout: Layout
    transition: Transition
    ballot: str
    """That the launchers have voted for."""
    leaving: tuple[str, ...]
    """Workers that are not needed any more: they end with code 0."""
    budget_left: int


class ForkWorkers(Effect, frozen=True, kw_only=True):
    """Start workers that will join the running epoch."""

    node: str
    slots: tuple[int, ...]
    layout: Layout


class ExcludeWorker(Effect, frozen=True, kw_only=True):
    """A worker lives but is not part of the job any more, until it enters again."""

    node: str
    worker: str
    reason: str
    proved: bool = True
    """False: it may only be at work, so its process is not ended before it is proved to hang."""


class DismissWorker(Effect, frozen=True, kw_only=True):
    """A worker came too late: there is nothing left to join."""

    node: str
    worker: str
    reason: str


class HaltWorkers(Effect, frozen=True, kw_only=True):
    """The elastic workers end with this code, after one of them has saved its state."""

    nodes: tuple[str, ...]
    epoch: int
    reason: str
    code: int
    saver: str
    """Worker; '' if none holds more than the initial state."""


class EndWorkers(Effect, frozen=True, kw_only=True):
    """End the workers of these nodes: until there are enough nodes the job cannot go on."""

    nodes: tuple[str, ...]
    reason: str
    after_death: bool = False
    """Of a worker: who has just ended with an exit code may be the one that the others missed."""


class EmitEvent(Effect, frozen=True, kw_only=True):
    """Write an event about the job (or, with `node`, about a node)."""

    name: str
    message: str
    attributes: dict[str, str] = {}
    node: str = ""


class ReportLayout(Effect, frozen=True, kw_only=True):
    """Tell the server the last layout, and by that who coordinates the job now."""

    layout: Layout


class CommandResult(Effect, frozen=True, kw_only=True):
    """A command is done (error empty) or refused."""

    command: str
    epoch: int = 0
    error: str = ""


class End(Effect, frozen=True, kw_only=True):
    """The job is over: every launcher ends with this code."""

    code: int
    reason: str
