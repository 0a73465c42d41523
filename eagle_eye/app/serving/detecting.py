"""What `detect` runs: a runner over each partition that this process owns."""

from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue

from detectors.diagnosis import Diagnosis
from detectors.learning import Learning, learners
from detectors.runner import Runner
from eagle_eye.app import parts
from eagle_eye.frames import Frame
from eagle_eye.types import ConfigChange, Finding, Incident, Pulse

from .services import Around

Inbox = SimpleQueue[Sequence[Incident | Pulse]]
"""What a runner hands to an engine in the same process, in order."""


def runner_of(around: Around, partition: int, term: int, inbox: Inbox, on_findings: Callable[[list[Finding]], None]) -> Runner:
    """The runner of a partition; `term` becomes the generation of its marks."""
    config, clock, ledger = around.config, around.clock, around.ledger
    found = parts.detectors(config)
    lessons = learners((name, type(detector)) for name, detector in found)
    return Runner(
        around.stream, partition, found, Diagnosis(), clock=clock, generation=term, on_pulses=_pulses_to(around, inbox), on_incidents=inbox.put,
        on_frame=partial(_count, around),
        on_findings=on_findings, on_notice=ledger.save_notice, records=config.state / "records",
        learning=Learning(lessons, directory=config.state / "baselines", clock=clock, on_notice=ledger.save_notice),
        config=ConfigChange(digest=config.digest, text=""),
    )  # fmt: skip


def _pulses_to(around: Around, inbox: Inbox) -> Callable[[list[Pulse]], None]:
    def told(pulses: list[Pulse]) -> None:
        inbox.put(pulses)
        if around.metrics is not None:
            for pulse in pulses:
                around.metrics.follow(pulse)

    return told


def _count(around: Around, frame: Frame) -> None:
    if around.metrics is not None:
        around.metrics.hear(frame.events)
