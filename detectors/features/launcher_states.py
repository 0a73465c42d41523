"""Which launchers of a job are stopped by a signal, as the agents of their nodes see them."""

from dataclasses import dataclass, field

from eagle_eye.types import Event, Evidence, Kind

OF_A_STOP = "stopped"
"""Status of the evidence: the launcher does not answer since it is stopped, and not because it has ended."""
KEPT = 1000
"""Launchers of one job; further ones are not known as stopped."""


@dataclass(slots=True)
class LauncherStates:
    """By node; what the agent of another one says of it does not count."""

    stopped: dict[str, Event] = field(default_factory=dict)
    """Node → the event that told it."""
    _over: dict[str, tuple[Event, float]] = field(default_factory=dict)
    """Node → the last stop that is over, and when that was told."""

    def take(self, event: Event) -> str:
        """Take an event in; why the launcher on its node is not stopped any more, '' if it is, or never was."""
        name = event.entity.name
        known = self.stopped.get(name)
        if event.name == "launcher.stopped" and event.entity.kind is Kind.NODE and event.node == name:
            if known is not None or len(self.stopped) < KEPT:
                self.stopped[name] = event
        elif known is not None and (why := _over(event, known)):
            del self.stopped[name]
            self._over[name] = known, event.time
            while len(self._over) > KEPT:
                del self._over[next(iter(self._over))]
            return why
        return ""

    def evidence(self, node: str, since: float = float("inf")) -> tuple[Evidence, ...]:
        """That the launcher there is stopped, or was at `since`; nothing if it was not."""
        event = self.stopped.get(node)
        before, ended = self._over.get(node, (None, 0.0))
        if event is None and ended >= since:
            event = before
        return (Evidence(text=event.message or f"the launcher on {node} is stopped by a signal", event=event.id, status=OF_A_STOP),) if event is not None else ()


def _over(event: Event, told: Event) -> str:
    if event.name == "launcher.continued" and event.node == event.entity.name:
        return "it is not stopped any more"
    if event.name != "session.opened":
        return ""
    if event.attributes.get("role") == "launcher":
        return "its session is open again"
    return "another agent reports from there" if event.attributes.get("incarnation", told.incarnation) != told.incarnation else ""
