"""A device whose copies are done when it is waited for, or when what comes after them is queued: for tensors of this process's own memory."""

from collections.abc import Callable, Mapping, Sequence

import torch

from eagle_eye.training.checkpoint.cuda_copy import CudaCopy
from eagle_eye.training.checkpoint.cuda_sums import CheckedTensor, RowKernel
from fakes.cuda_streams import FakeCuda
from fakes.sum_rows import sum_rows


class DeviceQueue:
    """As CudaCopy."""

    def __init__(self) -> None:
        here = torch.device("cpu")
        self._cuda = CudaCopy([here], {here: RowKernel(here, sum_rows)}, FakeCuda())
        self._queued: list[Callable[[], None]] = []
        self.log: list[str] = []
        self.looks = True
        """It can make sums."""

    def holds(self, tensor: torch.Tensor) -> bool:
        return self._cuda.holds(tensor)

    def copy(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        self.log.append(f"copy {len(sources)}")
        self._queued.append(lambda: self._cuda.copy(targets, sources))

    def keep_pace(self) -> None:
        self.log.append("keep pace")

    def check(self, sources: Sequence[torch.Tensor]) -> None:
        self.log.append(f"check {len(sources)}")
        if self.looks:
            self._cuda.check(sources)

    def checked(self) -> Mapping[int, CheckedTensor]:
        return self._cuda.checked()

    def release(self) -> None:
        self._run("release")

    def wait(self) -> None:
        self._run("wait")

    def _run(self, why: str) -> None:
        self.log.append(why)
        while self._queued:
            self._queued.pop(0)()
