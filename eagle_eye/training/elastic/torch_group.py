"""A Group over one of torch's backends. gloo and NCCL differ in how an operation ends, not in how it is asked for."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import AllreduceOptions, BroadcastOptions, ReduceOp

from eagle_eye.errors import Broken

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = timedelta(minutes=30)
"""Of one operation. It is no detector: a hang is noticed outside, and ended by a cut."""


class TorchWork:
    """An operation of a group; keeps its tensors alive until it is over."""

    def __init__(self, group: "TorchGroup", issued: Any, tensors: "list[Tensor]") -> None:
        self._group = group
        self._issued = issued
        self._tensors = tensors

    def wait(self) -> None:
        """Until it is done. Raises Broken, if anything went wrong and after a cut."""
        self._group.finish(self._issued)


class TorchGroup:
    """The workers of an epoch over `backend`, made by gloo.py or nccl.py."""

    def __init__(self, backend: Any, *, epoch: int, rank: int, world: int, device: str) -> None:
        self.epoch = epoch
        self.rank = rank
        self.world = world
        self.device = device
        self._backend: list[Any] = [backend]
        self._lock = threading.Lock()
        self._was_cut = False

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

    def cut(self) -> None:
        with self._lock:
            if self._was_cut:
                return
            self._was_cut = True
        self._end()

    def close(self) -> None:
        self.cut()
        # To destroy a backend may take long. No daemon: a process that ends in the middle of it would abort.
        threading.Thread(target=self._backend.clear, name="eagle-eye-graveyard").start()

    def finish(self, issued: Any) -> None:
        """Wait for an operation. Raises Broken."""
        self._attempt(lambda: self._complete(issued))
        self._check()

    def _issue(self, tensors: "list[Tensor]", start: Callable[[Any], Any]) -> TorchWork:
        self._check()
        return TorchWork(self, self._attempt(lambda: start(self._backend[0])), tensors)

    def _attempt(self, act: Callable[[], Any]) -> Any:
        """What `act` returns. Its error is told in words: the traceback would keep tensors and the group alive."""
        try:
            return act()
        except (RuntimeError, IndexError) as error:  # IndexError: closed between the check and here
            words = str(error)
        raise Broken(f"epoch {self.epoch}: {words}")

    def _check(self) -> None:
        if self._was_cut:
            raise Broken(f"the group of epoch {self.epoch} was cut")

    def _complete(self, issued: Any) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        raise NotImplementedError
