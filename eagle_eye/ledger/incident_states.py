"""Which state of an incident may follow which."""

from eagle_eye.types import IncidentState

_STATE = IncidentState
EDGES: dict[IncidentState | None, frozenset[IncidentState]] = {
    None: frozenset({_STATE.OPEN}),
    _STATE.OPEN: frozenset({_STATE.CONTAINED, _STATE.HEALING, _STATE.HEALED, _STATE.FAILED, _STATE.CLOSED}),
    _STATE.CONTAINED: frozenset({_STATE.OPEN, _STATE.HEALING, _STATE.HEALED, _STATE.FAILED, _STATE.CLOSED}),
    _STATE.HEALING: frozenset({_STATE.OPEN, _STATE.CONTAINED, _STATE.HEALED, _STATE.FAILED, _STATE.CLOSED}),
    _STATE.FAILED: frozenset({_STATE.HEALING, _STATE.HEALED, _STATE.CLOSED}),
    _STATE.HEALED: frozenset({_STATE.OPEN, _STATE.CLOSED}),
    _STATE.CLOSED: frozenset(),
}
"""The legal edges: an incident begins open, and closed is for ever. A healed one that comes back is open again; a
failed one may still be healed by a stronger repair or by a person; back from contained and healing to open when
what was done did not hold."""

UNDER_WAY = (_STATE.OPEN, _STATE.CONTAINED, _STATE.HEALING)
"""States in which something is still to be done."""
