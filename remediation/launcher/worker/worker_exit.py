"""How a worker's process ended: its exit code, what is told of it, what explains it, and whether it ended by its own doing before any step."""

import os

from eagle_eye.error_statuses import classify, stronger
from eagle_eye.exception_status import printed_exceptions, printed_lines
from eagle_eye.redaction import last_lines
from remediation.launcher.coordinator.failure_signature import FROM_OUTSIDE, behind_shell, other_cause, signal_name

from .memory_cgroup import OomKill
from .worker_process import Worker


def code_of(status: int | None) -> int | None:
    """Exit code, negative for a signal, as subprocess has it, also of a signal that a shell passes on; None if it is not known."""
    return None if status is None else behind_shell(os.waitstatus_to_exitcode(status))


def exit_attributes(worker: Worker, code: int | None, step: str) -> dict[str, str]:
    """The attributes of the event `exit`."""
    attributes = {
        "pid": str(worker.pid),
        "code": "" if code is None else str(code),
        "signal": signal_name(code),
        "rank": str(worker.place.rank),
        "epoch": str(worker.epoch),
        "step": step,
        "last_lines": last_lines(worker.log, since=worker.log_from),
        "exception": worker.exception,
    }
    return attributes | (kill_attributes(worker.oom_kill) if worker.oom_kill is not None else {})


def kill_attributes(oom_kill: OomKill) -> dict[str, str]:
    """Of the events `exit` and `exception` of a worker that a kill for want of memory has ended."""
    known = {"memory_limit_bytes": oom_kill.limit_bytes, "memory_peak_bytes": oom_kill.peak_bytes}
    told = {name: str(value) for name, value in known.items() if value is not None}
    return {"status": "out of memory", "reason": oom_kill.words, "cgroup": oom_kill.cgroup, **told}


def exit_message(worker: Worker, code: int | None) -> str:
    """One line for a person."""
    name = signal_name(code)
    how = f"was ended by {name}" if name else f"ended with code {'unknown' if code is None else code}"
    what = f" after {worker.exception}" if worker.exception else ""
    why = f": {worker.oom_kill.words}" if worker.oom_kill is not None else ""
    return f"worker {worker.name} (rank {worker.place.rank}, pid {worker.pid}) {how}{what}{why}"


def explanation(worker: Worker, code: int | None, last: str) -> str:
    """Status of hardware, network or storage by which its exception, or else the end of its log, explains its end; '' if they do not.

    Of a process that has chosen to end, only the exceptions are read; of an elastic one none: it has lived through the losses of peers.
    """
    if worker.exception or code is None or (code > 0 and worker.elastic):
        return worker.explained
    return other_cause(classify(last) if code < 0 else stronger(printed_exceptions(printed_lines(last))))


def died_at_start(code: int | None, completed: int | None, *, young: bool) -> bool:
    """Whether it ended by its own doing before any step: restarting such a script helps nobody.

    `completed`: steps of this epoch on this node, None if the script has begun none (or knows nothing of steps); then `young` decides.
    """
    if code is None or (code < 0 and -code in FROM_OUTSIDE):
        return False
    return completed == 0 if completed is not None else young
