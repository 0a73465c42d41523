"""What-if events of the command line: `lose:node3`, `join:node17`, `slow:node3:0.7`, `finish:JOB`, `launch:JOB`."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from eagle_eye.errors import ConfigError
from remediation.planner.allocation.next_events import NextEvent, NextEventKind

KINDS = "lose:NODE, join:NODE, slow:NODE:SPEED, finish:JOB or launch:JOB"


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Parsed events, all at once."""

    events: tuple[NextEvent, ...] = ()
    """For the allocation."""
    lost: dict[str, str] = field(default_factory=dict)
    """Node -> the job that had it; '' for a free node or a spare."""
    slow: dict[str, float] = field(default_factory=dict)
    """Node -> its speed, 1 being healthy."""


def parse(texts: Sequence[str], owners: dict[str, str], jobs: Sequence[str]) -> WhatIf:
    """owners: each node's job, '' for none. Raises ConfigError for what cannot happen."""
    events: list[NextEvent] = []
    lost: dict[str, str] = {}
    slow: dict[str, float] = {}
    for word in texts:
        kind, _, rest = word.partition(":")
        if kind == "lose":
            lost[rest] = _owner(word, rest, owners, lost)
            events.append(NextEvent(NextEventKind.LOST, lost[rest]))
        elif kind == "join":
            if rest in owners or not rest:
                raise ConfigError(f"what-if {word!r}: {rest or 'a node without a name'} cannot join; name one that is not there yet")
            events.append(NextEvent(NextEventKind.JOINED))
        elif kind == "slow":
            node, _, speed = rest.rpartition(":")
            _owner(word, node, owners, lost)
            slow[node] = _speed(word, speed)
        elif kind in ("finish", "launch"):
            if rest not in jobs:
                raise ConfigError(f"what-if {word!r}: no job is called {rest!r}; the jobs are {', '.join(jobs)}")
            events.append(NextEvent(NextEventKind.FINISHED if kind == "finish" else NextEventKind.LAUNCHED, rest))
        else:
            raise ConfigError(f"what-if {word!r}: not known; write {KINDS}")
    return WhatIf(tuple(events), lost, slow)


def _owner(word: str, node: str, owners: dict[str, str], lost: dict[str, str]) -> str:
    if node not in owners:
        names = list(owners)
        raise ConfigError(f"what-if {word!r}: no node is called {node!r}; they are {names[0]} to {names[-1]}")
    if node in lost:
        raise ConfigError(f"what-if {word!r}: {node} is lost already")
    return owners[node]


def _speed(word: str, text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= 1:
        raise ConfigError(f"what-if {word!r}: the speed is {text!r}; write a number above 0 and at most 1, e.g. slow:node3:0.7")
    return speed
