"""`ProcessGroup`: the connection between the workers of one epoch, and `form`, which makes one.

A group is made for one epoch and never repaired: when a worker is lost, the session's thread aborts it (every
operation in flight raises Broken within milliseconds) and the next epoch forms another. torch's own ways to abort one
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
    """An operation that is in flight."""

    def wait(self) -> None:
        """Until it is done. Raises Broken; the content of its output is then undefined."""


class ProcessGroup(Protocol):
    """The workers of one epoch. Each operation raises Broken once a peer is gone or the group was aborted."""

    @property
    def epoch(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    @property
    def device(self) -> str:
        """Device of the tensors for its operations: cpu, cuda:0."""

    def all_reduce(self, tensor: "Tensor", *, wait: bool = True) -> Work:
        """Sum of `tensor` over all ranks, in place; with `wait` it is there on return."""

    def all_gather(self, outputs: "list[Tensor]", tensor: "Tensor") -> None:
        """Every rank's `tensor` into outputs[rank]; all of one shape and type."""

    def broadcast(self, tensor: "Tensor", root: int) -> None:
        """`tensor` of rank `root` to all ranks, in place."""

    def send(self, tensor: "Tensor", to: int, tag: int) -> Work:
        """Send to a rank, which receives under the same tag; `tensor` may not change before the work is done."""

    def receive(self, tensor: "Tensor", frm: int, tag: int) -> Work:
        """Receive from a rank into `tensor`, which has the shape and type of what was sent."""

    def abort(self) -> None:
        """End it: all pending operations raise Broken. From any thread, any number of times, in milliseconds."""

    def close(self) -> None:
        """Abort it and free what it holds, in the background."""


class CompletedWork:
    """The Work of an operation that is done already."""

    def wait(self) -> None:
        """Return at once."""


class SingleProcessGroup:
    """A ProcessGroup of one worker, which needs no torch.distributed."""

    rank = 0
    world = 1
    device = "cpu"
    """Of the tensors that workers agree on; gradients stay on their own device."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._aborted = False

    def all_reduce(self, tensor: "Tensor", *, wait: bool = True) -> CompletedWork:  # noqa: ARG002 - the sum of one is itself
        self._check()
        return CompletedWork()

    def all_gather(self, outputs: "list[Tensor]", tensor: "Tensor") -> None:
        self._check()
        outputs[0].copy_(tensor)

    def broadcast(self, tensor: "Tensor", root: int) -> None:  # noqa: ARG002 - it is the root's already
        self._check()

    def send(self, tensor: "Tensor", to: int, tag: int) -> CompletedWork:  # noqa: ARG002 - the signature of ProcessGroup
        raise ValueError(f"a group of one has no rank {to} to send to")

    def receive(self, tensor: "Tensor", frm: int, tag: int) -> CompletedWork:  # noqa: ARG002 - the signature of ProcessGroup
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
    """Form the group with the other workers of the epoch.

    Raises Fenced as soon as a newer epoch is being formed, even while the construction hangs, and Broken when a peer
    cannot be reached. What was begun is destroyed in the background. The caller passes the group to
    `session.use_group` at once, so that a fence can abort it.
    """
    if backend not in BACKENDS:
        raise ValueError(f"no backend {backend!r}: one of {', '.join(BACKENDS)}")
    session.check(assignment.epoch)
    if assignment.world == 1:
        return SingleProcessGroup(assignment.epoch)
    return BACKENDS[backend](session, assignment)
