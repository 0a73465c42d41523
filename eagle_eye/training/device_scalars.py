"""`DeviceScalars`: logged values that are still on a device, read later and never waited for."""

import sys
from typing import Any


class DeviceScalars:
    """Device scalars that were logged, each with the event after which its copy in pinned memory is whole."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, int], tuple[Any, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def keep(self, step: int, column: int, tensor: Any) -> None:
        """Begin to copy a tensor of one element to the host; returns at once.

        `.item()` would wait for everything that the device still has to do, hence the copy and the event.
        """
        torch = sys.modules["torch"]
        host = torch.empty((), dtype=tensor.dtype, pin_memory=True)
        host.copy_(tensor.detach().reshape(()), non_blocking=True)
        event = torch.Event(tensor.device)
        event.record(torch.accelerator.current_stream(tensor.device.index))
        self._waiting[step, column] = (host, event)

    def ready(self, step: int) -> bool:
        """Whether all values of a step have been copied."""
        return all(event.query() for (number, _), (_, event) in self._waiting.items() if number == step)

    def take(self, step: int) -> dict[int, float]:
        """Column → value of the values of a step that have been copied; values that have not, and those of older steps, are dropped."""
        values = {}
        for key in [key for key in self._waiting if key[0] <= step]:
            host, event = self._waiting.pop(key)
            if key[0] == step and event.query():
                values[key[1]] = float(host)
        return values
