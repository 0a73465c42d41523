"""What changed in the states of a GPU: rows of its memory that were remapped, a remapping that failed, the driver's advice."""

import math
from collections.abc import Iterator, Mapping

from eagle_eye.xids import RECOVERY_ACTIONS

from .gpu_change import GpuChange


class StateChanges:
    """The states as they were known last. One that is NaN for a while is compared with what it was before."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def compare(self, values: Mapping[str, float]) -> Iterator[GpuChange]:
        """What is told of these values. What was so when the agent began is none, but an advice."""
        yield from self._rows(values)
        if self._rose("remap_failed", values):
            yield GpuChange("gpu.remap_failed", "a row of its memory could not be remapped", {"rows": _count(values["remapped_rows"])})
        yield from self._advice(values)
        self._known |= {name: value for name, value in values.items() if not math.isnan(value)}

    def _rows(self, values: Mapping[str, float]) -> Iterator[GpuChange]:
        if not self._rose("remapped_rows", values) and not self._rose("remap_pending", values):
            return
        rows, before = values["remapped_rows"], self._known.get("remapped_rows", math.nan)
        pending = values["remap_pending"] == 1
        message = f"{_count(rows)} rows of its memory are remapped, {_count(before)} before{'; a reset of the GPU completes it' if pending else ''}"
        attributes = {"rows": _count(rows), "before": _count(before), "uncorrected": _count(values["remapped_rows_uncorrected"]), "pending": int(pending)}
        yield GpuChange("gpu.rows_remapped", message, attributes)

    def _advice(self, values: Mapping[str, float]) -> Iterator[GpuChange]:
        advice = values["recovery_action"]
        if math.isnan(advice) or advice == self._known.get("recovery_action", 0.0):
            return
        code = int(advice)
        action = RECOVERY_ACTIONS[code][0] if code in RECOVERY_ACTIONS else f"action {code}"  # what 5 and above mean differs between drivers
        yield GpuChange("gpu.recovery_action", f"the driver advises: {action}", {"action": action, "code": code})

    def _rose(self, name: str, values: Mapping[str, float]) -> bool:
        return values[name] > self._known.get(name, math.inf)


def _count(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.0f}"
