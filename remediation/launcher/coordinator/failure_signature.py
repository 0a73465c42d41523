"""Tells failures of the program or its data from failures of the machine: the former come back as the same exception, whoever runs the step.

A lack of memory can be either: it is the program's only if it comes back on another node, in the same step of a later epoch. So can an end
without an exception of the program's own (an exit code, a signal, a CUDA error): `FailureLog` says what it takes.
"""

import re
import signal

import msgspec

from eagle_eye.error_statuses import BY_NAME, ErrorStatus
from eagle_eye.exception_status import status_raised, user_frame, words_of_the_network
from eagle_eye.topology import node_of_worker

_PROGRAMS_OWN = "other software error"
"""What no row of the table knows as an error of hardware, network or memory."""
_MEMORY = "out of memory"
ON_THE_GPU = frozenset({"cuda error", "illegal memory access"})
"""What a program may do to its GPU, and a GPU to its program."""
OF_ITS_OWN = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals that a process brings upon itself, or a broken machine upon it."""
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that come from outside the script."""
_SHELL = 128
"""A shell tells a signal of its command as an exit code above this one."""
_NUMBERS = re.compile(r"0x[0-9a-f]+|\b(?=[a-f]*\d)[0-9a-f]{8,}\b|\d+(\.\d+)?", re.IGNORECASE)
"""Indices, counts, ranks and addresses in a message: they differ from process to process."""


class FailureSignature(msgspec.Struct, frozen=True, kw_only=True):
    """An exception of a worker, or how it ended without one, without what differs from process to process."""

    type: str
    message: str
    frame: str
    """The innermost frame of the user's own code, such as `train.py:212 in validate`; '' if the traceback has none."""
    step: int
    """-1 if it is not known."""
    memory: bool = False
    """A lack of memory: other processes on the node may have used it up."""
    on_gpu: str = ""
    """Status of an error of CUDA, which is told later and elsewhere than where it arose; '' for none."""
    exit_code: int | None = None
    """How it ended without an exception, as subprocess has it; None: it raised one."""
    note: str = ""
    """First of its notes, such as `in step 40, micro-batch 3`; '' for none."""
    service: bool = False
    """Its words are the network's, but not where it was raised: of a service that the program asks, perhaps."""

    @property
    def ambiguous(self) -> bool:
        """A broken machine shows the same, and so may the peers of the one that is to blame."""
        return bool(self.on_gpu) or self.exit_code is not None

    @property
    def may_be_the_nodes(self) -> bool:
        """A GPU or memory that is broken may end all workers of its node in this way."""
        return bool(self.on_gpu) or (self.exit_code is not None and self.exit_code < 0)

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for two failures that are the same; where no step is known the message has to be, but for its numbers and addresses."""
        if self.on_gpu:
            return self.on_gpu, "", str(self.step)
        return self.type, self.frame, str(self.step) if self.step >= 0 else _NUMBERS.sub("#", self.message)

    @property
    def kind(self) -> str:
        """The same at every step, such as `ValueError at train.py:212 in validate`."""
        return f"{self.type} at {self.frame}" if self.frame else self.type

    def __str__(self) -> str:
        """On one line, such as `ValueError: negative length, at train.py:212 in validate, in step 40, micro-batch 3`."""
        where = [f"at {self.frame}"] if self.frame else []
        step = f"step {self.step}" if self.step >= 0 else ""
        when = [told for told in (step if step not in self.note else "", self.note) if told]
        return ", ".join([f"{self.type}: {self.message}".removesuffix(": "), *where, *when])


def signature_of(type_name: str, message: str, traceback: str, step: int, notes: str = "") -> FailureSignature | None:
    """None for an exception that tells of broken hardware, network or storage: another node, or another try, may help against it.

    >>> str(signature_of("ValueError", "negative length", '  File "/home/a/train.py", line 3, in load\\n    check(x)\\n', 40))
    'ValueError: negative length, at train.py:3 in load, step 40'
    >>> signature_of("RuntimeError", "Connection closed by peer", "", 40) is None
    True
    """
    told = status_raised(type_name, message, traceback)
    status = told.name
    if not type_name or status not in {_PROGRAMS_OWN, _MEMORY, *ON_THE_GPU}:
        return None
    first_line = message.strip().partition("\n")[0]
    return FailureSignature(
        type=type_name, message=first_line[:200], frame=user_frame(traceback), step=step, memory=status == _MEMORY,
        on_gpu=status if status in ON_THE_GPU else "", note=notes.partition("\n")[0],
        service=words_of_the_network(type_name, message, told),
    )  # fmt: skip


def signature_of_end(code: int | None, step: int) -> FailureSignature | None:
    """Of an end that no exception explains. None for an end from outside, by code 0, or in a step that is not known.

    >>> str(signature_of_end(3, 40)), str(signature_of_end(128 + signal.SIGSEGV, 40))
    ('worker ended with code 3, step 40', 'worker ended by SIGSEGV, step 40')
    >>> signature_of_end(-signal.SIGKILL, 40) is None
    True
    """
    if not code or step < 0:
        return None
    code = behind_shell(code)
    if code < 0 and -code not in OF_ITS_OWN:
        return None
    return FailureSignature(type=kind_of_death(None, code), message="", frame="", step=step, exit_code=code)


def behind_shell(code: int) -> int:
    """The exit code of what a shell has run, where that was ended by a signal; any other as it is.

    >>> behind_shell(137), behind_shell(3), behind_shell(-9)
    (-9, 3, -9)
    """
    return _SHELL - code if code - _SHELL in OF_ITS_OWN | FROM_OUTSIDE else code


def ended_by_itself(code: int | None) -> bool:
    """Whether it ended otherwise than by code 0 or by a signal that others sent."""
    return bool(code) and -(code or 0) not in FROM_OUTSIDE


def other_cause(status: ErrorStatus) -> str:
    """Its name, if it is one of hardware, network or storage; '' for what a program may bring about by itself.

    >>> other_cause(BY_NAME["connection refused or reset"]), other_cause(BY_NAME["cuda error"])
    ('connection refused or reset', '')
    """
    return "" if status.name == _PROGRAMS_OWN or status.name in ON_THE_GPU else status.name


def missed_a_peer(failure: FailureSignature | None, explained: str, *, symptom: bool) -> bool:
    """It ended of what also a healthy worker ends of when a peer is gone.

    >>> missed_a_peer(None, "connection refused or reset", symptom=False), missed_a_peer(None, "ecc error", symptom=False)
    (True, False)
    """
    return failure is None and (symptom or (bool(explained) and BY_NAME[explained].symptom))


def kind_of_death(failure: FailureSignature | None, code: int | None, explained: str = "") -> str:
    """What a heal budget counts as one cause, whichever worker it was.

    >>> kind_of_death(None, -9), kind_of_death(None, 1), kind_of_death(None, None)
    ('worker ended by SIGKILL', 'worker ended with code 1', 'worker died')
    """
    if failure is not None:
        return failure.kind
    if explained:
        return explained
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


SignatureKey = tuple[str, str, str]


class FailureLog:
    """The failures that a coordinator has seen.

    What all ranks raise in one epoch is one sighting: a shared service may have failed them all, once. Only a restart, or another elastic worker
    that the step is dealt on to (which is another epoch, too), shows whether it comes back. An end without an exception of the program's own is
    the program's only where it strikes other workers than before (other nodes, if a broken machine shows the same) while those of before live
    on, and nothing else has ended a worker of the two epochs: peers of a broken machine may end in the same way, too.
    """

    def __init__(self) -> None:
        self._ended: dict[int, dict[str, SignatureKey]] = {}
        """Epoch → worker → what ended it, in the order in which they were told; without those that died of a peer's absence."""

    def missed_a_peer(self, worker: str, epoch: int) -> None:
        """Whatever it was taken for when it ended: it died of a peer's absence."""
        self._ended.get(epoch, {}).pop(worker, None)

    def repeated(self, failure: FailureSignature | None, worker: str, epoch: int, *, one_node: bool = False) -> str:
        """Why the failure is the program's or the data's: it was there in another epoch. '' if it was not, or is something else's (None).

        `one_node`: an elastic job whose workers are all on one node, which no step can be dealt away from.
        """
        self._ended.setdefault(epoch, {})[worker] = failure.key if failure is not None else _OTHER
        return self.told_again(failure, worker, epoch, one_node=one_node) if failure is not None else ""

    def told_again(self, failure: FailureSignature, worker: str, epoch: int, *, one_node: bool = False) -> str:
        """The same of a failure that is in the log already, by what was told since."""
        before = self._before(failure, worker, epoch, one_node=one_node)
        if before is None:
            return ""
        whose = "the program, or a service that it asks," if failure.service else "the program or its data"
        return (
            f"{failure}: the same as of worker {before[0]} in epoch {before[1]}, now of worker {worker}; {whose} fails, and neither "
            "a restart nor another node helps: mend it, or have the job skip that data, and start the job again"
        )

    def _before(self, failure: FailureSignature, worker: str, epoch: int, *, one_node: bool) -> tuple[str, int] | None:
        """Worker and epoch of the first time that shows it."""
        for at in sorted(self._ended.keys() - {epoch}):
            struck = [known for known, key in self._ended[at].items() if key == failure.key]
            if failure.ambiguous:
                struck = struck if self._struck_others(failure, at, epoch, one_node=one_node) else []
            elif failure.memory:
                struck = [known for known in struck if failure.step >= 0 and node_of_worker(known) != node_of_worker(worker)]
            if struck:
                return struck[0], at
        return None

    def _struck_others(self, failure: FailureSignature, at: int, epoch: int, *, one_node: bool) -> bool:
        """It alone ended workers of both epochs, and other ones in each."""
        if failure.step < 0 or any(key != failure.key for known in (at, epoch) for key in self._ended[known].values()):
            return False
        by_node = failure.may_be_the_nodes and not one_node
        before, now = ({node_of_worker(each) if by_node else each for each in self._ended[known]} for known in (at, epoch))
        return bool(now) and before.isdisjoint(now)


_OTHER: SignatureKey = ("", "", "")
"""What ended a worker that was no failure of the program, as far as its end tells."""
