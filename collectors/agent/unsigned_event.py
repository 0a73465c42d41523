"""Events as collectors make them: what happened, not yet who says so."""

from eagle_eye.types import Entity, Event, Kind


def unsigned_event(
    name: str, kind: Kind, entity: str, time: float, message: str, job: str = "", **attributes: object
) -> Event:
    """An event that the agent has yet to sign with its node, boot and number.

    Without a job it concerns the node: the agent sends it to every job there.
    """
    return Event(
        name=name,
        job=job,
        entity=Entity(kind=kind, name=entity),
        time=time,
        node="",
        boot="",
        number=0,
        message=message,
        attributes={key: str(value) for key, value in attributes.items()},
    )
