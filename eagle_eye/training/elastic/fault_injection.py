"""Fault injection at a named point of a step, for fire drills and tests: nothing unless EAGLE_EYE_FAULTS is set.

    EAGLE_EYE_FAULTS='[{"worker": 2, "step": 5, "phase": "reducing", "act": "kill"}]'

`worker` is the slot on its node (`node`: on this node only), `act` is kill (SIGKILL), stop (SIGSTOP) or hang (the
main thread sleeps for ever), `incarnation` 0 (the default) means the worker that was there from the start, 1 one
that joined later. Each fault happens once in a process.
"""

import json
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass

FAULT_PHASES = ("starting", "computing", "reducing", "committing", "applying", "regrouping", "joining")
ACTS = ("kill", "stop", "hang")


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One fault to inject."""

    step: int
    phase: str
    act: str


class InjectedFaults:
    """The faults to inject into this worker."""

    def __init__(self, faults: list[InjectedFault]) -> None:
        self._faults = faults

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "InjectedFaults":
        """Those for this worker. Raises ValueError for a phase or an act that does not exist."""
        text = environment.get("EAGLE_EYE_FAULTS", "")
        return cls([_fault(fields) for fields in json.loads(text) if _is_for_this_worker(fields, environment)] if text else [])

    def at(self, phase: str, step: int) -> None:
        """Called by the worker at each point of a step: injects the faults that name it."""
        for fault in [fault for fault in self._faults if (fault.phase, fault.step) == (phase, step)]:
            self._faults.remove(fault)
            _act(fault.act)


def _is_for_this_worker(fields: Mapping[str, object], environment: Mapping[str, str]) -> bool:
    joined = environment.get("EAGLE_EYE_JOINING", "") == "1"
    return (
        str(fields.get("worker")) == environment.get("EAGLE_EYE_SLOT", "")
        and fields.get("node", environment.get("EAGLE_EYE_NODE")) == environment.get("EAGLE_EYE_NODE")
        and bool(fields.get("incarnation", 0)) == joined
    )


def _fault(fields: Mapping[str, object]) -> InjectedFault:
    phase, act = str(fields.get("phase")), str(fields.get("act", "kill"))
    if phase not in FAULT_PHASES or act not in ACTS:
        raise ValueError(f"EAGLE_EYE_FAULTS: {dict(fields)} names no phase of {', '.join(FAULT_PHASES)} or no act of {', '.join(ACTS)}")
    return InjectedFault(int(str(fields.get("step", 0))), phase, act)


def _act(act: str) -> None:
    if act == "hang":
        threading.Event().wait()
    os.kill(os.getpid(), signal.SIGKILL if act == "kill" else signal.SIGSTOP)
