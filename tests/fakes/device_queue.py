"""A device whose copies are done when it is waited for, or when what comes after them is queued: for tensors of this process's own memory."""

from collections.abc import Callable, Sequence

import torch

from eagle_eye.training.checkpoint.cuda_copy import CudaCopy
from eagle_eye.training.checkpoint.device_part import DeviceCheck
from fakes.cuda_streams import FakeCuda


class DeviceQueue:
    """As CudaCopy."""

    def __init__(self) -> None:
        self._cuda = CudaCopy([torch.device("cpu")], FakeCuda())
        self._queued: list[Callable[[], None]] = []
        self.log: list[str] = []
        self.looks = True
        """It has time to make sums."""

    def holds(self, tensor: torch.Tensor) -> bool:
        return self._cuda.holds(tensor)

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        self.log.append(f"copy {len(sources)}")
        self._queued.append(lambda: self._cuda.copy(targets, sources))

    def check(self, source: torch.Tensor) -> DeviceCheck:
        self.log.append("check")
        return self._cuda.check(source) if self.looks else DeviceCheck(None, None)

    def fetch(self, checks: Sequence[DeviceCheck]) -> Sequence[DeviceCheck]:
        return self._cuda.fetch(checks)

    def release(self) -> None:
        self._run("release")

    def wait(self) -> None:
        self._run("wait")

    def _run(self, why: str) -> None:
        self.log.append(why)
        while self._queued:
            self._queued.pop(0)()
