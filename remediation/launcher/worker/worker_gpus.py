"""Which GPU each worker of this node has: the local rank's of those that the workers see."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from eagle_eye.gpu_devices import GpuDevice, gpu_devices, visible_devices

log = logging.getLogger(__name__)

ANSWER_S = 5.0
"""How long the driver is waited for: a broken one may hang."""


def gpus_of_workers(nproc: int, devices: Sequence[GpuDevice], visible: str | None) -> tuple[str, ...]:
    """UUID of each worker's GPU, by local rank; () where there are fewer GPUs than workers: nobody knows who shares which.

    `visible`: CUDA_VISIBLE_DEVICES of the workers, None if it is not set.
    """
    seen = visible_devices(devices, visible)
    return tuple(device.uuid for device in seen[:nproc]) if len(seen) >= nproc else ()


async def find_gpus(nproc: int, visible: str | None, load: Callable[[], Any]) -> tuple[str, ...]:
    """The same, asked of the driver; () where there is none. `load` returns the module `pynvml` or raises ImportError."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[GpuDevice, ...]] = loop.create_future()

    def ask() -> None:
        try:
            found: tuple[GpuDevice, ...] = gpu_devices(load())
        except Exception as error:  # noqa: BLE001 -- whatever NVML does, the job is started; its GPUs have no worker then
            log.debug("the GPUs of the workers are not known: %s", error)
            found = ()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the answer came too late for anybody
            loop.call_soon_threadsafe(_answered, answer, found)

    threading.Thread(target=ask, name="eagle-eye-nvml", daemon=True).start()  # one that hangs keeps no launcher from ending
    try:
        return gpus_of_workers(nproc, await asyncio.wait_for(answer, ANSWER_S), visible)
    except TimeoutError:
        log.warning("the GPU driver did not answer within %g s: the GPUs of the workers are not known", ANSWER_S)
        return ()


def _answered(answer: asyncio.Future[tuple[GpuDevice, ...]], found: tuple[GpuDevice, ...]) -> None:
    if not answer.done():
        answer.set_result(found)


def pynvml() -> Any:
    """The module, which is an extra."""
    import pynvml

    return pynvml
