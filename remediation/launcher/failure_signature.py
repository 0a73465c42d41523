"""Tells failures of the program or its data from failures of the machine: the former come back as the same exception, whoever runs the step.

A lack of memory can be either: it is the program's only if it comes back on another node, in the same step of a later epoch.
"""

import re
import signal
from collections.abc import Iterator

import msgspec

from eagle_eye.error_statuses import classify
from eagle_eye.topology import node_of_worker

_PROGRAMS_OWN = "other software error"
"""What no row of the table knows as an error of hardware, network or memory."""
_MEMORY = "out of memory"
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)
_LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python", "/eagle_eye/", "<frozen ")


class FailureSignature(msgspec.Struct, frozen=True, kw_only=True):
    """An exception of a worker, without what differs from process to process."""

    type: str
    message: str
    frame: str
    """The innermost frame of the user's own code, such as `train.py:212 in validate`; '' if the traceback has none."""
    step: int
    """-1 if it is not known."""
    memory: bool = False
    """A lack of memory: other processes on the node may have used it up."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for two failures that are the same; where no step is known the message has to be the same."""
        return self.type, self.frame, str(self.step) if self.step >= 0 else self.message

    @property
    def kind(self) -> str:
        """The same at every step, such as `ValueError at train.py:212 in validate`."""
        return f"{self.type} at {self.frame}" if self.frame else self.type

    def __str__(self) -> str:
        """On one line, such as `ValueError: negative length, at train.py:212 in validate, step 40`."""
        where = [f"at {self.frame}"] if self.frame else []
        when = [f"step {self.step}"] if self.step >= 0 else []
        return ", ".join([f"{self.type}: {self.message}".removesuffix(": "), *where, *when])


def signature_of(type_name: str, message: str, traceback: str, step: int) -> FailureSignature | None:
    """None for an exception that tells of hardware, network or storage: another node, or another try, may help against it.

    >>> str(signature_of("ValueError", "negative length", '  File "/home/a/train.py", line 3, in load\\n    check(x)\\n', 40))
    'ValueError: negative length, at train.py:3 in load, step 40'
    >>> signature_of("RuntimeError", "Connection closed by peer", "", 40) is None
    True
    """
    status = classify(f"{type_name}: {message}").name
    if not type_name or status not in {_PROGRAMS_OWN, _MEMORY}:
        return None
    first_line = message.strip().partition("\n")[0]
    return FailureSignature(type=type_name, message=first_line[:200], frame=user_frame(traceback), step=step, memory=status == _MEMORY)


def user_frame(traceback: str) -> str:
    """The innermost frame of the user's own code, such as `train.py:212 in validate`; '' if the traceback has none."""
    return next(_user_frames(traceback), "")


def _user_frames(traceback: str) -> Iterator[str]:
    """Innermost first."""
    for found in reversed(list(_FRAME.finditer(traceback))):
        if not any(part in found["file"] for part in _LIBRARY):
            yield f"{found['file'].rpartition('/')[2]}:{found['line']} in {found['function']}"


def kind_of_death(failure: FailureSignature | None, code: int | None) -> str:
    """What a heal budget counts as one cause, whichever worker it was.

    >>> kind_of_death(None, -9), kind_of_death(None, 1), kind_of_death(None, None)
    ('worker ended by SIGKILL', 'worker ended with code 1', 'worker died')
    """
    if failure is not None:
        return failure.kind
    if code is None:
        return "worker died"
    return f"worker ended by {name}" if (name := signal_name(code)) else f"worker ended with code {code}"


def signal_name(code: int | None) -> str:
    """SIGKILL, ...; '' if it was no signal."""
    if code is None or code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class EarlyEndLog:
    """Workers that ended with code 0 and the deaths of those that needed them, whichever is reported first."""

    def __init__(self) -> None:
        self._finished: dict[int, dict[str, int]] = {}
        """Epoch → worker → step that it was at, -1 if unknown."""
        self._needed: dict[int, int] = {}
        """Epoch → step of the first worker that died of a peer's absence."""

    def finished(self, worker: str, epoch: int, step: int) -> str:
        """A worker ended with code 0. Returns the first that the others needed, '' if none is known."""
        self._finished.setdefault(epoch, {}).setdefault(worker, step)
        return self._first(epoch)

    def needed(self, epoch: int, step: int) -> str:
        """A worker died of a peer's absence. Returns the first that it needed, '' if none is known."""
        self._needed.setdefault(epoch, step)
        return self._first(epoch)

    def signature(self, worker: str, epoch: int) -> FailureSignature:
        """What comes back if the program is to blame."""
        return FailureSignature(type="exit code 0 while the other workers needed it", message="", frame="", step=self._finished[epoch][worker])

    def _first(self, epoch: int) -> str:
        """Nobody that had gone on for more than a step needed it."""
        self._finished = {known: workers for known, workers in self._finished.items() if known >= epoch - 1}
        self._needed = {known: at for known, at in self._needed.items() if known >= epoch - 1}
        if epoch not in self._needed:
            return ""
        step = self._needed[epoch]
        return next((worker for worker, last in self._finished.get(epoch, {}).items() if min(last, step) < 0 or step <= last + 1), "")


class FailureLog:
    """The failures that a coordinator has seen.

    What all ranks raise in one epoch is one sighting: a shared service may have failed them all, once. Only a restart, or another elastic worker
    that the step is dealt on to (which is another epoch, too), shows whether it comes back.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], dict[int, list[str]]] = {}
        """Key → epoch → workers, in the order in which they were told."""

    def repeated(self, failure: FailureSignature | None, worker: str, epoch: int) -> str:
        """Why the failure is the program's or the data's: it was there in another epoch. '' if it was not."""
        if failure is None:
            return ""
        seen = self._seen.setdefault(failure.key, {})
        mine = seen.setdefault(epoch, [])
        if worker not in mine:
            mine.append(worker)
        others = ((known, at) for at in sorted(seen) if at != epoch for known in seen[at])
        before = next((each for each in others if not failure.memory or _is_elsewhere(failure, each[0], worker)), None)
        if before is None:
            return ""
        return (
            f"{failure}: the same as of worker {before[0]} in epoch {before[1]}, now of worker {worker}; the program or its data fails, and neither "
            "a restart nor another node helps: mend it, or have the job skip that data, and start the job again"
        )


def _is_elsewhere(failure: FailureSignature, before: str, now: str) -> bool:
    """Another node has no memory for the same step either."""
    return failure.step >= 0 and node_of_worker(now) != node_of_worker(before)
