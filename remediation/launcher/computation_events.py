"""Events about what a worker computes, of which its probe tells the launcher: a gradient that is no number, a step that gives another one when it is run again."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from eagle_eye.redaction import redact

LONGEST_NAME = 256
"""Characters of what a worker says a tensor is called."""
LONGEST_REASON = 500


class ComputationEvent(NamedTuple):
    """What is told of a worker."""

    name: str
    message: str
    attributes: dict[str, str]


def computation_event(worker: str, kind: str, message: Mapping[str, Any]) -> ComputationEvent | None:
    """None for a message of another kind."""
    tell = _KINDS.get(kind)
    return None if tell is None else tell(worker, message)


def _bad_gradient(worker: str, message: Mapping[str, Any]) -> ComputationEvent:
    told = {name: str(message.get(name, ""))[:LONGEST_NAME] for name in ("step", "tensor", "shape")}
    tensor = told["tensor"] or f"a tensor of {told['shape']}"
    return ComputationEvent("gradient.not_finite", f"the gradient of {tensor} of worker {worker} is NaN or infinite in step {told['step']}, before it is exchanged", told)


def _replay_differs(worker: str, message: Mapping[str, Any]) -> ComputationEvent:
    step = str(message.get("step", ""))[:LONGEST_NAME]
    text = f"worker {worker} ran step {step} again from the same state and its gradient was another one, for the second time in succession: its device or memory may compute wrongly"
    return ComputationEvent("step.replayed_differs", text, {"step": step})


def _replay_ended(worker: str, message: Mapping[str, Any]) -> ComputationEvent:
    told = {"step": str(message.get("step", ""))[:LONGEST_NAME], "reason": redact(str(message.get("reason", "")))[:LONGEST_REASON]}
    text = f"steps of worker {worker} are not run again any more to see whether its device computes the same twice: {told['reason']}"
    return ComputationEvent("step.replay_ended", text, told)


_KINDS: Mapping[str, Callable[[str, Mapping[str, Any]], ComputationEvent]] = {
    "bad_gradient": _bad_gradient,
    "replay_differs": _replay_differs,
    "replay_ended": _replay_ended,
}
