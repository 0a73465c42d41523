"""The messages of an epoch between an elastic worker and its launcher: `HeldState` (worker → launcher) and `EpochAssignment` (launcher → worker)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from eagle_eye.errors import WireError
from eagle_eye.training import messages

HELD_STATE_PHASES = ("starting", "computing", "reducing", "committing", "applying", "idle")


@dataclass(frozen=True, slots=True)
class HeldState:
    """What a worker holds at one moment: its answer to a fence. The launcher plans the next epoch from these."""

    step: int
    """Number of the first step still to do that its state is for."""
    done: tuple[int, ...] = ()
    """Micro-batches of that step whose gradients it has, or is about to have."""
    segments: tuple[int, ...] = ()
    """Segments of the summed gradient it has; all of them in the phases committing and applying."""
    phase: str = "starting"
    """One of HELD_STATE_PHASES."""
    fresh: bool = True
    """The state is the initial one, or incomplete: it is not used if any other worker holds more."""


@dataclass(frozen=True, slots=True)
class EpochAssignment:
    """A new epoch for one worker: its rank, the other workers, and how the step in flight goes on."""

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
    """If not empty: the rank that has each segment of the reduced gradient; nothing is computed again."""
    moves: tuple[tuple[int, int, int], ...] = ()
    """(sender's rank, receiver's rank, layer): state that is transferred before the step."""
    source: str = ""
    """"checkpoint" if no worker holds state: all load the newest checkpoint, or start from the initial state if there is none."""
    resume_step: int = 0
    """Step of the checkpoint to load, where the launcher knows it."""

    def after_first_step(self) -> "EpochAssignment":
        """The same epoch once its first step is committed."""
        return replace(self, step=self.step + 1, current=self.shares, finish=(), moves=(), source="")


class AbortableGroup(Protocol):
    """What the session needs of a process group."""

    @property
    def epoch(self) -> int: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...


class FenceCheck(Protocol):
    """What the work of one epoch needs of a session: to stop as soon as a newer epoch is being formed."""

    def check(self, epoch: int) -> None:
        """Raises Fenced at once if an epoch above `epoch` is being formed, and whatever ended this worker's part in the job."""


class EpochSession(FenceCheck, Protocol):
    """What forming a process group needs of a session; each call raises Fenced once an epoch above `epoch` is being formed."""

    def wait_until(self, epoch: int, ready: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Block until `ready()`; the thread that makes it true calls `notify`. Raises TimeoutError, LauncherLost."""

    def notify(self) -> None:
        """Let those that wait check `ready` again."""

    def ask_store(self, epoch: int, timeout_s: float, **question: Any) -> messages.ProbeMessage:
        """The answer of the launcher's key-value store to a question. Raises TimeoutError, LauncherLost."""


def read_assignment(message: Mapping[str, Any]) -> EpochAssignment:
    """The assignment in a message from the launcher. Raises WireError if a field is missing."""
    known = {field.name for field in fields(EpochAssignment)}
    try:
        return EpochAssignment(**{name: _frozen(value) for name, value in message.items() if name in known})
    except TypeError as error:
        raise WireError(f"not an assignment: {error}") from error


def _frozen(value: Any) -> Any:
    return tuple(_frozen(each) for each in value) if isinstance(value, list) else value
