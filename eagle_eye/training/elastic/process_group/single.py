"""The group of a worker that is alone: every sum is its own, and torch.distributed is not asked."""

from typing import TYPE_CHECKING

from eagle_eye.errors import Broken

if TYPE_CHECKING:
    from torch import Tensor


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
        self._cut = False

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

    def cut(self) -> None:
        self._cut = True

    def close(self) -> None:
        self.cut()

    def _check(self) -> None:
        if self._cut:
            raise Broken(f"the group of epoch {self.epoch} was cut")
