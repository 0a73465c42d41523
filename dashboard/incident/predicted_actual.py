"""Predicted and actual values of an action, as rows of text. Pure."""

from collections.abc import Iterator, Mapping

from dashboard import formatting

NAMES: Mapping[str, tuple[str, str]] = {
    "throughput_per_s": ("Throughput", "tokens/s"),
    "downtime_s": ("Downtime", "duration"),
    "verify_s": ("Verified after", "duration"),
    "loss": ("Loss", ""),
    "bad_step": ("First bad step", "step"),
    "bill_gpu_hours": ("Bill", "GPU-hours"),
}
"""Name of remediation/policy/prediction.py → its label, and its unit."""
BOUNDS = "_high"


def rows(predicted: Mapping[str, float], actual: Mapping[str, float], work: str = "tokens/s") -> Iterator[tuple[str, str, str]]:
    """(what, predicted, actual), in the order of NAMES; what only bounds another number stands beside it. work: unit of the throughput.

    >>> list(rows({"loss": 2.0, "loss_high": 2.2}, {"loss": 2.05, "bill_gpu_hours": 0.5}))
    [('Loss', '2 (at most 2.2)', '2.05'), ('Bill', '–', '0.500\\u202fGPU-hours')]
    """
    known = [*NAMES, *sorted({*predicted, *actual} - set(NAMES))]
    for name in known:
        if name.endswith(BOUNDS) or (name not in predicted and name not in actual):
            continue
        said, unit = NAMES.get(name, (formatting.capital(formatting.spoken(name)), ""))
        unit = work if name == "throughput_per_s" else unit
        high = predicted.get(f"{name}{BOUNDS}")
        most = f" (at most {_told(high, unit)})" if high is not None else ""
        yield said, _told(predicted.get(name), unit) + most, _told(actual.get(name), unit)


def _told(value: float | None, unit: str) -> str:
    if unit == "duration":
        return formatting.duration(value)
    if unit == "GPU-hours":
        return formatting.gpu_hours(value)
    if unit == "step":
        return formatting.NOTHING if value is None else f"{value:.0f}"
    return formatting.number(value, unit)
