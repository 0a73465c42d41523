"""Unexpected end of a worker process: a signal, an exit code other than 0, or 0 while the others still need it."""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.error_statuses import BY_NAME, ErrorStatus, classify
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Event, Evidence

from .features.active_claims import ActiveClaims, ends_epoch, epoch_over, integer_attribute

_RAISED = re.compile(r"\s*[\w.]*(Error|Exception|Interrupt)\b")
"""The line of a traceback that names the exception; other output is not read for causes."""

FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
"""Signals from outside the script: a person, the scheduler or the kernel's out-of-memory killer sent them."""


EARLY_S = 1.0
"""A connection may seem to be lost so long before the end that broke it: clocks differ, and the kernel announces a death late."""


@dataclass
class Exits:
    """Claims worker.exited, one for each `exit` event of a launcher or agent.

    Exit code 0 (`worker.finished`) is a normal end, unless at least as many others lose their connections afterwards: they were not done.
    Withdrawn when a new epoch starts: then the worker runs again or is no longer part of the job. An exit that arrives after that is
    claimed and withdrawn at once if it is the first of its epoch; further ones are what the first led to, and of no use any more.
    """

    lines: int = 5
    """So many last lines of the worker's output are kept as evidence."""
    _over: int = field(default=-1, init=False, repr=False)
    """The newest epoch that is over."""
    _claimed: deque[int] = field(default_factory=lambda: deque(maxlen=64), init=False, repr=False)
    """Epochs of which an exit was claimed."""
    _raised: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=64), init=False, repr=False)
    """(worker, epoch) of the last exceptions: each is a finding of its own, and tells why its worker has ended."""
    _finished: dict[str, Event] = field(default_factory=dict, init=False, repr=False)
    """Workers of this epoch that have ended with 0 → how that was told."""
    _forsaken: dict[str, float] = field(default_factory=dict, init=False, repr=False)
    """Workers of this epoch that have lost a connection → when."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name in ("exit", "exception", "worker.finished"):
                if event.name == "exception":
                    self._raised.append((event.entity.name, integer_attribute(event, "epoch")))
                yield from self._exited(event) if event.name == "exit" else ()
                yield from self._too_early(event)
            elif why := ends_epoch(event):
                self._over = max(self._over, epoch_over(event))
                self._finished = {name: told for name, told in self._finished.items() if integer_attribute(told, "epoch") > epoch_over(event)}
                self._forsaken.clear()
                yield from self._claims.withdraw_epoch(event, why)

    def _exited(self, event: Event) -> Iterator[Claim]:
        code = integer_attribute(event, "code")
        signal = event.attributes.get("signal", "")
        epoch = integer_attribute(event, "epoch")
        late = 0 <= epoch <= self._over
        explained = late and (epoch in self._claimed or (event.entity.name, epoch) in self._raised)
        if explained or (code == 0 and not signal) or event.attributes.get("expected") == "1":
            return
        status = _status(event, signal)
        how = f"was ended by {signal}" if signal else f"exited with code {event.attributes.get('code') or 'unknown'}"
        proof = Evidence(
            text=f"worker {event.entity.name} {how}{_where(event)}{_why(event)}",
            event=event.id,
            metric="exit_code",
            value=float(code),
            status=status.name,
        )
        last = event.attributes.get("last_lines", "").strip().splitlines()[-self.lines :] if self.lines else []
        words = tuple(Evidence(text=f"its last words: {line.strip()}", event=event.id) for line in last)
        claim = Claim(
            entity=event.entity, kind="worker.exited", score=1.0, since=event.time, evidence=(proof, *words)
        )
        if epoch not in self._claimed:
            self._claimed.append(epoch)
        yield from self._claims.report(claim, revise=False, epoch=epoch)
        if late:
            yield from self._claims.withdraw(event.entity, "worker.exited", event.time, f"epoch {epoch} was over when it was reported")


    def _too_early(self, event: Event) -> Iterator[Claim]:
        """Do others miss those that have ended with 0? The nodes' reports arrive in any order."""
        if 0 <= integer_attribute(event, "epoch") <= self._over:
            return
        if event.name == "worker.finished":
            self._finished[event.entity.name] = event
        elif _words_status(event).symptom:
            self._forsaken.setdefault(event.entity.name, event.time)
        since = min((finished.time for finished in self._finished.values()), default=float("inf")) - EARLY_S
        missing = [name for name, time in self._forsaken.items() if time >= since and name not in self._finished]
        if not self._finished or len(missing) < len(self._finished):
            return
        for finished in self._finished.values():
            text = f"worker {finished.entity.name} exited with code 0{_where(finished)} while others were still training: they lost their connections to it"
            proof = Evidence(text=text, event=finished.id, metric="exit_code", value=0.0, status="exited abnormally")
            claim = Claim(entity=finished.entity, kind="worker.exited", score=1.0, since=finished.time, evidence=(proof,))
            yield from self._claims.report(claim, revise=False, epoch=integer_attribute(finished, "epoch"))


def _status(event: Event, signal: str) -> ErrorStatus:
    """What the launcher knows; else `killed` for a signal from outside; else what the exception or the last lines of output name."""
    if (known := event.attributes.get("status", "")) in BY_NAME:
        return BY_NAME[known]
    if signal in FROM_OUTSIDE:
        return BY_NAME["killed"]
    status = _words_status(event)
    return status if status.name != "other software error" else BY_NAME["exited abnormally"]


def _words_status(event: Event) -> ErrorStatus:
    """What an exception says, or the last lines of a process that has ended."""
    last = event.attributes.get("last_lines", "").splitlines()
    lines = [event.attributes.get("exception", ""), *(line for line in last if _RAISED.match(line))]
    lines += [event.attributes.get("type", ""), event.attributes.get("message", "")]
    return classify("\n".join(lines))


def _where(event: Event) -> str:
    rank, step = event.attributes.get("rank", ""), event.attributes.get("step", "")
    parts = [f"rank {rank}" if rank else "", f"in step {step}" if step else ""]
    known = ", ".join(part for part in parts if part)
    return f" ({known})" if known else ""


def _why(event: Event) -> str:
    """What the launcher found out about it."""
    reason = event.attributes.get("reason", "")
    return f": {reason}" if reason else ""
