"""A ProcessGroup over one of torch's backends. gloo and NCCL differ in how an operation ends, not in how it is issued."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import AllreduceOptions, BroadcastOptions, ReduceOp

from eagle_eye.errors import Broken
from eagle_eye.training.elastic.worker_threads import worker_threads

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = timedelta(minutes=30)
"""Time-out of one operation. It is no detector: the launcher notices a hang, and the group is aborted."""

GRACE_S = 0.05
"""Seconds after an abort in which an operation may end by itself before its thread is abandoned."""


class _Wait:
    """Waits for an operation in a background thread."""

    def __init__(self, complete: Callable[[], None], over: threading.Condition) -> None:
        self._complete = complete
        self._condition = over
        self.over = False
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._complete()
        except Exception as error:  # noqa: BLE001 - raised in the thread that waits
            self.error = error.with_traceback(None)  # it would keep tensors and the group alive
        with self._condition:
            self.over = True
            self._condition.notify_all()


class TorchWork:
    """An operation of a group; keeps its tensors alive until it is over."""

    def __init__(self, group: "TorchGroup", issued: Any, tensors: "list[Tensor]") -> None:
        self._group = group
        self._issued = issued
        self._tensors = tensors

    def wait(self) -> None:
        """Until it is done. Raises Broken if anything went wrong, and after an abort."""
        self._group.finish(self._issued)


class TorchGroup:
    """The workers of an epoch over `backend`, made by gloo.py or nccl.py."""

    def __init__(self, backend: Any, *, epoch: int, rank: int, world: int, device: str) -> None:
        self.epoch = epoch
        self.rank = rank
        self.world = world
        self.device = device
        self._backend: list[Any] = [backend]
        self._changed = threading.Condition()
        self._aborted = False

    def all_reduce(self, tensor: "Tensor", *, wait: bool = True) -> TorchWork:
        options = AllreduceOptions()
        options.reduceOp = ReduceOp.SUM
        work = self._issue([tensor], lambda backend: backend.allreduce([tensor], options))
        if wait:
            work.wait()
        return work

    def all_gather(self, outputs: "list[Tensor]", tensor: "Tensor") -> None:
        self._issue([*outputs, tensor], lambda backend: backend.allgather([outputs], [tensor])).wait()

    def broadcast(self, tensor: "Tensor", root: int) -> None:
        options = BroadcastOptions()
        options.rootRank = root
        options.rootTensor = 0
        self._issue([tensor], lambda backend: backend.broadcast([tensor], options)).wait()

    def send(self, tensor: "Tensor", to: int, tag: int) -> TorchWork:
        return self._issue([tensor], lambda backend: backend.send([tensor], to, tag))

    def receive(self, tensor: "Tensor", frm: int, tag: int) -> TorchWork:
        return self._issue([tensor], lambda backend: backend.recv([tensor], frm, tag))

    def abort(self) -> None:
        with self._changed:
            if self._aborted:
                return
            self._aborted = True
            self._end()
            self._changed.notify_all()

    def close(self) -> None:
        self.abort()
        worker_threads().run(self._backend.clear)  # destroying it takes as long as an operation that hangs in it

    def finish(self, issued: Any) -> None:
        """Wait for an operation. Raises Broken.

        Not in torch itself: gloo loses the end of a send whose connection breaks while it is begun, and would wait
        for it until its time-out, aborted or not.
        """
        wait = _Wait(lambda: self._complete(issued), self._changed)
        worker_threads().run(wait.run)
        with self._changed:
            self._changed.wait_for(lambda: wait.over or self._aborted)
            self._changed.wait_for(lambda: wait.over, GRACE_S)
        self._check()
        if wait.error is not None:
            raise self._broken(wait.error)

    def _issue(self, tensors: "list[Tensor]", start: Callable[[Any], Any]) -> TorchWork:
        self._check()
        try:
            issued = start(self._backend[0])
        except (RuntimeError, IndexError) as error:  # IndexError: closed between the check and here
            failure = self._broken(error)
        else:
            return TorchWork(self, issued, tensors)
        raise failure  # outside, for the first error's traceback would keep tensors and the group alive

    def _broken(self, error: Exception) -> Broken:
        return Broken(f"epoch {self.epoch}: {error}")

    def _check(self) -> None:
        if self._aborted:
            raise Broken(f"the group of epoch {self.epoch} was aborted")

    def _complete(self, issued: Any) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError
