"""NCCL as torch shows it: operations that are queued, a stream that stands still while a peer is missing, an abort."""

import threading
from types import SimpleNamespace
from typing import Any

import torch

from eagle_eye.training.elastic.process_group.nccl import CudaRuntime

PATIENCE_S = 30.0


class Options:
    """ProcessGroupNCCL.Options."""

    def __init__(self) -> None:
        self._timeout: Any = None
        self.config = SimpleNamespace(blocking=True)


class Queued:
    """A Work of NCCL: to wait for it lets the stream wait, not the process."""

    def wait(self) -> bool:
        return True


class FakeNccl:
    """The GPUs of all ranks in this process. `fake.cuda_runtime()` is what one worker sees."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.options: list[Options] = []
        self.aborted = 0
        self._met: dict[str, list[tuple[int, torch.Tensor]]] = {}

    def cuda_runtime(self) -> CudaRuntime:
        stream = Stream(self)

        class ProcessGroupNCCL(FakeProcessGroup):
            fake, queue = self, stream

        return CudaRuntime(ProcessGroupNCCL, torch.device("cpu"), lambda: torch.zeros(1), stream.synchronize)

    def meet(self, key: str, rank: int, tensor: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        with self.changed:
            self._met.setdefault(key, []).append((rank, tensor.clone()))
            self.changed.notify_all()
            return self._met[key]


class Stream:
    """Of one GPU: what was queued is done in order, each once all ranks have come or its group was aborted."""

    def __init__(self, fake: FakeNccl) -> None:
        self.fake = fake
        self.queue: list[Any] = []

    def synchronize(self) -> None:
        while self.queue:
            group, met, tensor = self.queue.pop(0)
            with self.fake.changed:
                assert self.fake.changed.wait_for(
                    lambda met=met, group=group: len(met) == group.world or group.gone, PATIENCE_S
                )
            if not group.gone:
                tensor.copy_(torch.stack([each for _, each in sorted(met, key=lambda each: each[0])]).sum(0))


class FakeProcessGroup:
    """ProcessGroupNCCL."""

    Options = Options
    fake: FakeNccl
    queue: Stream

    def __init__(self, store: Any, rank: int, world: int, options: Options) -> None:
        self.rank, self.world, self.gone, self._number = rank, world, False, 0
        self.fake.options.append(options)
        if rank == 0:
            store.set("0", f"communicator {len(self.fake.options)}")
        self._id = store.get("0").decode()

    def eager_connect_single_device(self, device: torch.device) -> None:
        """Non-blocking: returns before the others are there."""

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Queued:
        if self.gone:
            raise RuntimeError("NCCL communicator was aborted")
        self._number += 1
        met = self.fake.meet(f"{self._id}/{self.world}/{self._number}", self.rank, tensors[0])
        self.queue.queue.append((self, met, tensors[0]))
        return Queued()

    def abort(self) -> None:
        with self.fake.changed:
            self.gone = True
            self.fake.aborted += 1
            self.fake.changed.notify_all()
