"""Who is told what a runner finds, on the runner's own thread."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from eagle_eye.frames import Frame
from eagle_eye.types import Finding, Incident, JobSnapshot, Notice

_log = logging.getLogger(__name__)
_Told = TypeVar("_Told")


class Subscribers(NamedTuple):
    """One that fails must not end the watch."""

    incidents: Callable[[list[Incident]], None] | None
    findings: Callable[[list[Finding]], None] | None
    snapshots: Callable[[list[JobSnapshot]], None] | None
    frame: Callable[[Frame], None] | None
    notice: Callable[[Notice], None] | None

    def judged(self, incidents: list[Incident], findings: list[Finding], snapshots: list[JobSnapshot], frames: Sequence[Frame]) -> None:
        """What a mark led to; nobody is told of nothing."""
        if incidents:
            _call(self.incidents, incidents)
        if findings:
            _call(self.findings, findings)
        if snapshots:
            _call(self.snapshots, snapshots)
        for frame in frames:
            _call(self.frame, frame)

    def notices(self, notice: Notice) -> None:
        """Something that a person should know of the watch itself."""
        _log.warning("%s: %s", notice.name, notice.message)
        _call(self.notice, notice)


def _call(listener: Callable[[_Told], None] | None, told: _Told) -> None:
    if listener is None:
        return
    try:
        listener(told)
    except Exception:  # noqa: BLE001 -- whoever listens is not the runner's business
        _log.exception("a listener of the runner failed")
