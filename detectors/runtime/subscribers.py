"""Callbacks for the results of a runner, called on the runner's own thread."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from eagle_eye.frames import Frame
from eagle_eye.types import Finding, Incident, JobSnapshot, Notice

_log = logging.getLogger(__name__)
_Payload = TypeVar("_Payload")


class Subscribers(NamedTuple):
    """An exception in one of them is logged; detection goes on."""

    incidents: Callable[[list[Incident]], None] | None
    findings: Callable[[list[Finding]], None] | None
    snapshots: Callable[[list[JobSnapshot]], None] | None
    frame: Callable[[Frame], None] | None
    notice: Callable[[Notice], None] | None

    def publish(self, incidents: list[Incident], findings: list[Finding], snapshots: list[JobSnapshot], frames: Sequence[Frame]) -> None:
        """Results of one mark; empty ones are not passed on."""
        if incidents:
            _call(self.incidents, incidents)
        if findings:
            _call(self.findings, findings)
        if snapshots:
            _call(self.snapshots, snapshots)
        for frame in frames:
            _call(self.frame, frame)

    def notify(self, notice: Notice) -> None:
        """A notice about detection itself, for the operator."""
        _log.warning("%s: %s", notice.name, notice.message)
        _call(self.notice, notice)


def _call(subscriber: Callable[[_Payload], None] | None, payload: _Payload) -> None:
    if subscriber is None:
        return
    try:
        subscriber(payload)
    except Exception:  # noqa: BLE001 -- a subscriber is foreign code: detection goes on
        _log.exception("a subscriber of the runner failed")
