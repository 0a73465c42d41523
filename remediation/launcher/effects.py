"""What the coordinator's state machine wants done: values, carried out by `coordination.py`."""

import msgspec

from eagle_eye.types import Layout


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """Something to do in the world outside."""


class Prepare(Effect, frozen=True, kw_only=True):
    """Tell these nodes to end their old workers and to vote for the layout."""

    nodes: tuple[str, ...]
    layout: Layout


class AskGrant(Effect, frozen=True, kw_only=True):
    """Exactly half of the launchers acknowledged: ask the leader for its voice."""

    layout: Layout
    """Of the epoch that is being formed."""
    missing: tuple[str, ...]


class Start(Effect, frozen=True, kw_only=True):
    """The epoch is valid: write it down, make its store, tell the nodes to start their workers."""

    nodes: tuple[str, ...]
    layout: Layout
    cause: str
    budget_left: int


class Halt(Effect, frozen=True, kw_only=True):
    """End the workers of these nodes: until there are enough nodes the job cannot go on."""

    nodes: tuple[str, ...]
    reason: str


class Tell(Effect, frozen=True, kw_only=True):
    """Write an event about the job (or, with `node`, about a node)."""

    name: str
    message: str
    attributes: dict[str, str] = {}
    node: str = ""


class Answer(Effect, frozen=True, kw_only=True):
    """A command is done (error empty) or refused."""

    command: str
    epoch: int = 0
    error: str = ""


class End(Effect, frozen=True, kw_only=True):
    """The job is over: every launcher ends with this code."""

    code: int
    reason: str
