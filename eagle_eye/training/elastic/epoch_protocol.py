"""What an elastic worker and its launcher tell each other about an epoch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from eagle_eye.errors import WireError
from eagle_eye.training import messages

PHASES = ("starting", "computing", "reducing", "committing", "applying", "idle")


@dataclass(frozen=True, slots=True)
class HeldState:
    """What a worker holds at a moment."""

    step: int
    """Number of the first step still to do that its state is for."""
    done: tuple[int, ...] = ()
    """Micro-batches of that step whose gradients it has, or is about to have."""
    segments: tuple[int, ...] = ()
    """Segments of the summed gradient it has; all of them in the phases committing and applying."""
    phase: str = "starting"
    """One of PHASES."""
    fresh: bool = True
    """The state is but the initial one: worth nothing if anybody holds more."""


@dataclass(frozen=True, slots=True)
class EpochAssignment:
    """A new epoch as one worker is told it: who is in it, and how the step in flight goes on."""

    epoch: int
    rank: int
    world: int
    workers: tuple[str, ...]
    """Names, by rank."""
    step: int
    """The step that the new group works on first."""
    current: tuple[tuple[int, ...], ...]
    """Micro-batches that each rank contributes to that step; it computes those of them that it has not done."""
    shares: tuple[tuple[int, ...], ...]
    """Micro-batches of each rank in the steps after it."""
    finish: tuple[int, ...] = ()
    """If not empty: which rank has each segment of the sum; nothing is computed again."""
    moves: tuple[tuple[int, int, int], ...] = ()
    """(giver's rank, taker's rank, layer): state that goes from one to another before the step."""
    source: str = ""
    """"checkpoint" if nobody holds state: everybody loads the newest one, or begins anew where there is none."""
    resume_step: int = 0
    """Step of the checkpoint that is to be loaded, where the launcher knows it."""

    def onward(self) -> "EpochAssignment":
        """The same epoch once its first step is done."""
        return replace(self, step=self.step + 1, current=self.shares, finish=(), moves=(), source="")


class AbortableGroup(Protocol):
    """What the session needs of a group."""

    @property
    def epoch(self) -> int: ...

    def cut(self) -> None: ...

    def close(self) -> None: ...


class EpochSession(Protocol):
    """What forming a group needs of a session; each raises Fenced once an epoch above `epoch` is being formed."""

    def check(self, epoch: int) -> None:
        """At once."""

    def wait_until(self, epoch: int, ready: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Block until `ready()`; whoever makes it so calls `wake`. Raises TimeoutError, LauncherLost."""

    def wake(self) -> None:
        """Let those who wait look again."""

    def ask(self, epoch: int, timeout_s: float, **question: Any) -> messages.Message:
        """The launcher's answer to a question to its store. Raises TimeoutError, LauncherLost."""


def read_assignment(message: Mapping[str, Any]) -> EpochAssignment:
    """A EpochAssignment as it came over the wire. Raises WireError for what is none."""
    known = {field.name for field in fields(EpochAssignment)}
    try:
        return EpochAssignment(**{name: _frozen(value) for name, value in message.items() if name in known})
    except TypeError as error:
        raise WireError(f"not an assignment: {error}") from error


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
