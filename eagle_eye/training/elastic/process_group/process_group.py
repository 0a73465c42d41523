"""One epoch's connection between its workers, and how it comes to be.

A group is made for one epoch and never repaired: when a worker is lost, the session's thread cuts it (every
operation in flight raises Broken within milliseconds) and the next epoch forms another. torch's own ways to end one
do not suffice: gloo's abort() leaves a stuck operation running until its time-out.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from eagle_eye.errors import Broken, Fenced
from eagle_eye.training.elastic.epoch_protocol import EpochAssignment, EpochSession

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BACKENDS", "Broken", "Fenced", "ProcessGroup", "Work", "form"]


class Work(Protocol):
    """An operation that is under way."""

    def wait(self) -> None:
        """Until it is done. Raises Broken; what it was to write into is then half written and worth nothing."""


class ProcessGroup(Protocol):
    """The workers of one epoch. Each operation raises Broken once a peer is gone or the group was cut."""

    @property
    def epoch(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def device(self) -> str:
        """Where tensors lie that are made for its operations: cpu, cuda:0."""

    def all_reduce(self, tensor: "Tensor", *, wait: bool = True) -> Work:
        """Sum of `tensor` over all ranks, in place; with `wait` it is there on return."""

    def all_gather(self, outputs: "list[Tensor]", tensor: "Tensor") -> None:
        """Every rank's `tensor` into outputs[rank]; all of one shape and type."""

    def broadcast(self, tensor: "Tensor", root: int) -> None:
        """`tensor` of rank `root` into everybody's, in place."""

    def send(self, tensor: "Tensor", to: int, tag: int) -> Work:
        """Send to a rank, which receives under the same tag; `tensor` may not change before the work is done."""

    def receive(self, tensor: "Tensor", frm: int, tag: int) -> Work:
        """Receive from a rank into `tensor`, which has the shape and type of what was sent."""

    def abort(self) -> None:
        """End it: all that is pending raises Broken. From any thread, any number of times, in milliseconds."""

    def close(self) -> None:
        """Cut it and let go of what it holds, in the background."""


class Done:
    """An operation that is over already."""

    def wait(self) -> None:
        """At once."""


class SingleProcessGroup:
    """A ProcessGroup of world 1."""

    rank = 0
    world = 1
    device = "cpu"
    """Of what is agreed on; sums stay where they are."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._aborted = False

    def all_reduce(self, tensor: "Tensor", *, wait: bool = True) -> Done:  # noqa: ARG002 - the sum of one is itself
        self._check()
        return Done()

    def all_gather(self, outputs: "list[Tensor]", tensor: "Tensor") -> None:
        self._check()
        outputs[0].copy_(tensor)

    def broadcast(self, tensor: "Tensor", root: int) -> None:  # noqa: ARG002 - it is the root's already
        self._check()

    def send(self, tensor: "Tensor", to: int, tag: int) -> Done:  # noqa: ARG002 - a ProcessGroup's words
        raise ValueError(f"a group of one has no rank {to} to send to")

    def receive(self, tensor: "Tensor", frm: int, tag: int) -> Done:  # noqa: ARG002 - a ProcessGroup's words
        raise ValueError(f"a group of one has no rank {frm} to receive from")

    def abort(self) -> None:
        self._aborted = True

    def close(self) -> None:
        self.abort()

    def _check(self) -> None:
        if self._aborted:
            raise Broken(f"the group of epoch {self.epoch} was aborted")


Builder = Callable[[EpochSession, EpochAssignment], ProcessGroup]


def _gloo(session: EpochSession, assignment: EpochAssignment) -> ProcessGroup:
    from . import gloo

    return gloo.form(session, assignment)


def _nccl(session: EpochSession, assignment: EpochAssignment) -> ProcessGroup:
    from . import nccl

    return nccl.form(session, assignment)


BACKENDS: dict[str, Builder] = {"gloo": _gloo, "nccl": _nccl}


def form(session: EpochSession, assignment: EpochAssignment, backend: str = "gloo") -> ProcessGroup:
    """Meet the other workers of the epoch. A group of one needs nobody, and no torch.distributed.

    Raises Fenced as soon as a newer epoch is being formed, even while the construction hangs, and Broken when a peer
    cannot be reached. What was begun is taken apart in the background. Use the group at once: `session.use_group(group)`.
    """
    if backend not in BACKENDS:
        raise ValueError(f"no backend {backend!r}: one of {', '.join(BACKENDS)}")
    session.check(assignment.epoch)
    if assignment.world == 1:
        return SingleProcessGroup(assignment.epoch)
    return BACKENDS[backend](session, assignment)
