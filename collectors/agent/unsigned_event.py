"""Events as collectors create them, before the agent sets node, incarnation and number."""

from collections.abc import Mapping

from eagle_eye.types import Entity, Event, Kind


def unsigned_event(
    name: str, kind: Kind, entity: str, time: float, message: str, job: str = "", **attributes: object
) -> Event:
    """An event without node, incarnation and number: the agent sets them when it writes the event.

    `job` empty: the event concerns the node, and the agent writes it for every job there.
    """
    return Event(
        name=name,
        job=job,
        entity=Entity(kind=kind, name=entity),
        time=time,
        node="",
        incarnation="",
        number=0,
        message=message,
        attributes={key: str(value) for key, value in attributes.items()},
    )


def filled(attributes: Mapping[str, object]) -> dict[str, object]:
    """Those that say something: an attribute that is not there means the same as an empty one."""
    return {name: value for name, value in attributes.items() if value != ""}
