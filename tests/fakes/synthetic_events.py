"""Cut frames and events of a job that was never run; `synthetic` makes the ticks.

>>> frame = cut_frame(12.5, event("exit", worker("node-0", 1), 12.4, code="-9", signal="SIGKILL"))
>>> frame.tick, frame.events[0].entity.name
(False, 'run/node-0/1')
"""

from collections.abc import Iterable
from dataclasses import replace

from eagle_eye.frames import Frame
from eagle_eye.protocols import Detector
from eagle_eye.types import Claim, Entity, Event, Kind, Layout, digest_of

from .synthetic_frames import JOB


def worker(name: str, slot: int, job: str = JOB) -> Entity:
    """The worker in a slot of a node."""
    return Entity(kind=Kind.WORKER, name=f"{job.rsplit('/', 1)[-1]}/{name}/{slot}")


def node(name: str) -> Entity:
    """A node."""
    return Entity(kind=Kind.NODE, name=name)


def job(name: str = JOB) -> Entity:
    """A job."""
    return Entity(kind=Kind.JOB, name=name)


def event(name: str, entity: Entity, time: float, **attributes: object) -> Event:
    """An event as its writer would send it: the server of sessions, who saw it, or the entity's node; the same words give the same event."""
    told = {key: str(value) for key, value in attributes.items()}
    here = entity.name.split("/")[1] if entity.kind is Kind.WORKER else entity.name
    writer = "server" if name.startswith("session.") else told.get("seen_by", here)
    number = int(digest_of(name, entity, time, told)[:7], 16)
    return Event(
        name=name, job=JOB, entity=entity, time=time, node=writer, incarnation="b", number=number, attributes=told
    )


def cut_frame(time: float, *events: Event, layout: Layout | None = None, number: int = 0) -> Frame:
    """What a cut at `time` gives: events alone."""
    return Frame(
        job=JOB, number=number, generation=1, time=time, tick=False, events=events, layout=layout
    )


def with_events(frame: Frame, *events: Event) -> Frame:
    """A tick frame that also holds events."""
    return replace(frame, events=(*frame.events, *events))


def claims_of(detector: Detector, frames: Iterable[Frame]) -> list[Claim]:
    """Everything that a detector says about these frames, in order."""
    return [claim for frame in frames for claim in detector.update(frame)]
