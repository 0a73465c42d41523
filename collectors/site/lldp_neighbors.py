"""What the switches say of themselves by LLDP, asked of lldpd (`lldpctl -f json0`), which must run here and be readable.

lldpctl is never waited for: a look starts it, later looks take what it has written. A neighbour is remembered while nothing is heard of it: a port
whose cable or switch is down still hangs there.
"""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import msgspec

from collectors.node.polled_program import PolledProgram, ProgramAnswer

COMMAND = ("lldpctl", "-f", "json0")
EVERY_S = 60.0
"""Switches tell of themselves each 30 s (IEEE 802.1AB, msgTxInterval)."""
ANSWER_S = 5.0
"""Within which lldpctl has to answer."""
LARGEST = 4 << 20
"""Bytes; a neighbour takes two thousand."""
PORTS_KEPT = 1024
_Text = Annotated[str, msgspec.Meta(max_length=400)]


class LldpNeighbor(NamedTuple):
    """The other end of a port."""

    switch: str
    """System name of the neighbour; its chassis id where it has none."""
    port: str
    """As the neighbour calls it."""


class _Value(msgspec.Struct, frozen=True):
    value: _Text = ""
    type: _Text = ""


class _Chassis(msgspec.Struct, frozen=True):
    name: tuple[_Value, ...] = ()
    id: tuple[_Value, ...] = ()


class _Port(msgspec.Struct, frozen=True):
    id: tuple[_Value, ...] = ()
    descr: tuple[_Value, ...] = ()


class _Interface(msgspec.Struct, frozen=True):
    name: _Text
    via: _Text = ""
    chassis: tuple[_Chassis, ...] = ()
    port: tuple[_Port, ...] = ()


class _Neighbors(msgspec.Struct, frozen=True):
    interface: tuple[_Interface, ...] = ()


class _Answer(msgspec.Struct, frozen=True):
    lldp: tuple[_Neighbors, ...] = ()


_decoder = msgspec.json.Decoder(_Answer)


def neighbors_of(answer: bytes) -> dict[str, LldpNeighbor]:
    """Interface → neighbour. Raises ValueError for what is no answer of lldpctl (lldpd 1.0)."""
    found: dict[str, LldpNeighbor] = {}
    for interface in (each for part in _decoder.decode(answer).lldp for each in part.interface):
        chassis, port = interface.chassis[:1], interface.port[:1]
        switch = _first([value for each in chassis for value in (*each.name, *each.id)])
        # a port whose id is an address is known by its description
        named = _first([value for each in port for value in sorted((*each.id, *each.descr), key=lambda value: value.type == "mac")])
        if switch and len(found) < PORTS_KEPT:
            found.setdefault(interface.name, LldpNeighbor(switch, named))
    return found


def _first(values: list[_Value]) -> str:
    return next((value.value for value in values if value.value), "")


class LldpNeighbors:
    """Of this node's interfaces."""

    def __init__(self, command: tuple[str, ...] = COMMAND) -> None:
        """`command`: () asks nobody."""
        self.problem = ""
        """Why there is no answer, and what to do; '' where there is one, and where lldpd is not installed."""
        self.known: Mapping[str, LldpNeighbor] = {}
        """Interface → its newest neighbour."""
        self.settled = not command
        """It has answered, or it cannot."""
        self._command = command
        self._program = PolledProgram(command, "no switch is asked for its name", every_s=EVERY_S, answer_s=ANSWER_S, largest=LARGEST)

    def look(self, now: float) -> None:
        """Ask, or take an answer; never waits. `now`: monotonic time."""
        answer = self._program.look(now)
        if answer is not None:
            self._take(answer)
        self.settled = self.settled or self._program.missing

    def _take(self, answer: ProgramAnswer) -> None:
        self.settled = True
        try:
            if answer.problem:
                raise ValueError(answer.problem)
            found = neighbors_of(answer.output)
        except (ValueError, RecursionError) as error:
            self._refuse(str(error))
            return
        self.problem = ""
        self.known = {**self.known, **found} if len(self.known) < PORTS_KEPT else found

    def _refuse(self, why: str) -> None:
        self.problem = f"{' '.join(self._command)}: {why}; start lldpd, and let the agent's user use its socket (group _lldpd), or set lldp = false"
