"""A loss that is NaN or infinite, or that spikes."""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio
from eagle_eye.types import Claim, Entity, Evidence, Kind, Layout, Step

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps
from .features.gradient_origins import GradientOrigin, GradientOrigins, companions, not_finite
from .features.printed_losses import PrintedLoss, PrintedLosses
from .features.robust_deviation import NORMAL_MAD

Truths = NDArray[np.bool_]
NOT_FINITE, BAD_STEP = "loss.not_finite", "loss.bad_step"
NO_NUMBER = re.compile(r"\b(nans?|infs?|infinity|infinite|finite)\b", re.IGNORECASE)
"""In an exception: the script has ended itself because of such a number."""


class _BadStep(NamedTuple):
    """The first step of which a loss was no number, while it is not known whether that lasts."""

    number: int
    end: float
    workers: tuple[str, ...]
    """Whose it was; (): that of all who logged one."""
    times: int = 1
    """Steps in succession in which it was theirs, and not that of most."""


@dataclass
class Loss:
    """Claims loss.not_finite of the worker that had it first; loss.bad_step and loss.spike of the job, which inform.

    One worker's NaN reaches all workers with the next gradient exchange, and their gradient norms at once. So only the
    loss of the first bad step accuses, and only once the next step that tells shows that it has done so: most losses are none there, or a gradient norm is none;
    or once its worker has raised an exception that names such a number, so that no step follows. Until then, and where the next losses are numbers again (a batch
    that was masked as a whole, a step that a scaler left out), it is a bad step, and there is nothing to roll back.
    A NaN of the same workers alone, again and again, is theirs after `norm_steps` steps: no others have it from them.

    Where other stages, or others of a tensor, context or expert group, compute the same batches, the one that logs the loss is not the one in which it began: nobody is accused by a loss.

    Where all have it in the same step, the gradients of the step before were bad: whoever told of its own, before they were exchanged, and
    alone had none that is a number, is accused; nobody is where all were numbers, or most were none, or other workers' were none a little before.
    A bad gradient norm alone counts after `norm_steps` successive steps: a loss scaler produces a single one and skips that step.

    A step value of NaN alone means "not logged"; a worker that logged NaN sets the value LOGGED_NAN beside it.

    Where the script logs no loss, what its workers print is judged: it names no worker, for it is not known whose loss a line tells and which
    was the first. One bad line is none: a loss scaler makes some, and the next line is a number again. Gradients tell who: that one is accused instead, once those of all are none for
    `norm_steps` steps, and what is printed as well; or, where nothing is printed, for `printed_norms` steps.
    """

    needs_job: ClassVar[bool] = True
    norm_steps: Count = 3
    """Successive steps with a gradient norm that is no number, while the loss still is one."""
    window: Count = 50
    """Steps that a spike is measured against; judged from 20 on."""
    deviations: Ratio = 8.0
    """A spike is above the window's median by so many robust standard deviations ..."""
    factor: Ratio = 1.5
    """... and by this factor; where the loss is below zero, by as much of its size. One around zero has none: there it is above the highest of the window by this factor."""
    printed_losses: Count = 3
    """Successive lines of a worker's log whose loss is no number, and no overflow step explains it; of a script that logs no loss."""
    printed_norms: Count = 20
    """The same of the gradient norm, while the loss still is a number: a loss scaler that looks for its scale makes a dozen."""
    _logged: bool = field(default=False, init=False, repr=False)
    """The script has logged a loss: what it prints does not count."""
    _printed: PrintedLosses = field(init=False, repr=False)
    _bad_norms: int = field(default=0, init=False, repr=False)
    _layout: Layout | None = field(default=None, init=False, repr=False)
    _gradients: GradientOrigins = field(default_factory=GradientOrigins, init=False, repr=False)
    _first: _BadStep | None = field(default=None, init=False, repr=False)
    _raised: set[str] = field(default_factory=set, init=False, repr=False)
    """Workers of this epoch that have ended themselves because of such a number."""
    _finite: int = field(default=0, init=False, repr=False)
    """Successive steps that told numbers, and nothing else."""
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _losses: deque[float] = field(default_factory=deque, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def __post_init__(self) -> None:
        self._printed = PrintedLosses(self.printed_losses, self.printed_norms)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._losses.clear()
            self._printed.begin_epoch(event.time)
            self._bad_norms, self._first = 0, None
            self._gradients.clear()
            self._raised.clear()
            yield from self._claims.withdraw_all(event.time, why)
        self._gradients.read(frame)
        self._layout = frame.layout or self._layout
        for event in frame.events:
            if event.name == "exception" and NO_NUMBER.search(f"{event.attributes.get('type', '')} {event.attributes.get('message', '')}"):
                self._raised.add(event.entity.name)
        job = Entity(kind=Kind.JOB, name=frame.job)
        for step in self._steps.of(frame):
            self._gradients.add(step, frame.layout)
            yield from self._judge(step, job)
            if not self._logged:
                yield from self._judge_gradients(step)
        if (first := self._first) is not None and self._raised and (not first.workers or self._raised.intersection(first.workers)):
            self._first = None
            yield from self._lasting(first, Evidence(text="its worker has ended itself because of it"), job)
        if frame.tick and not self._logged and (printed := self._printed.update(frame)) is not None:
            yield from self._judge_printed(printed, job, frame.time)

    def _judge(self, step: Step, job: Entity) -> Iterator[Claim]:
        loss = step.values.get("loss")
        if loss is None:
            return
        bad, good = not_finite(step, "loss"), np.isfinite(loss)
        self._logged = self._logged or bool(good.any() or bad.any())
        norms = bool(not_finite(step, "grad_norm").any())
        self._bad_norms = self._bad_norms + 1 if norms else 0
        tells = bool(good.any() or np.isfinite(step.values.get("grad_norm", np.nan)).any())
        self._finite = 0 if bad.any() or norms else self._finite + tells
        if bad.any() or self._bad_norms >= self.norm_steps or (norms and self._first is not None):
            if not self._is_open():
                yield from self._not_finite(step, bad, good, job)
            return
        if tells and not norms:
            self._first = None
        if self._finite >= self.norm_steps:
            for entity, kind in list(self._claims.open):
                if kind in (NOT_FINITE, BAD_STEP):
                    yield from self._claims.withdraw(entity, kind, step.end, "the loss is a number again")
        if good.any():
            place = Evidence(text=f"in step {step.number}", metric="step", value=float(step.number))
            yield from self._spike(place, float(np.nanmean(loss)), job, step.end)

    def _not_finite(self, step: Step, bad: Truths, good: Truths, job: Entity) -> Iterator[Claim]:
        origin = self._gradients.origin(step.number)
        if bad.any() and not good.any() and origin is not None and origin.step < step.number:
            self._first = None
            yield from self._from_origin(origin, f"after the exchange the loss of all workers is, in step {step.number}", "step", step.end)
            return
        first, self._first = self._first, None
        norms = not_finite(step, "grad_norm")
        if first is None and not bad.any():
            yield from self._lasting(_BadStep(step.number, step.end, ()), None, job, "gradient norm")
            return
        if first is not None and (bad.sum() > good.sum() or not bad.any()):
            what = f"the loss of {bad.sum()}" if bad.any() else f"the gradient norm of {norms.sum()}"
            yield from self._lasting(first, Evidence(text=f"in step {step.number} {what} of {len(bad)} workers is"), job)
            return
        names = tuple(step.workers[index] for index in np.flatnonzero(bad).tolist()) if good.any() else ()
        again = tuple(name for name in names if first is not None and name in first.workers)
        if first is not None and again:
            first = _BadStep(first.number, first.end, again, first.times + 1)
        if first is not None and again and first.times >= self.norm_steps:
            yield from self._lasting(first, Evidence(text=f"it is in {first.times} steps in succession, while others have numbers"), job)
            return
        self._first = first if first is not None and again else _BadStep(step.number, step.end, names)
        whose = f"worker {names[0]}{f' and of {len(names) - 1} others' if len(names) > 1 else ''}" if names else "all workers"
        proof = Evidence(text=f"the loss of {whose} is NaN or infinite in step {step.number}; the next steps show whether that reaches the others, and lasts", metric="bad_step", value=float(step.number))
        yield from self._claims.report(Claim(entity=job, kind=BAD_STEP, score=0.9, since=step.end, evidence=(proof,)), revise=False)

    def _lasting(self, first: _BadStep, why: Evidence | None, job: Entity, which: str = "loss") -> Iterator[Claim]:
        """It did not pass. `why`: what shows that."""
        doubtful = self._gradients.doubtful(first.number, first.workers) or any(companions(name, self._layout) for name in first.workers)
        named = () if doubtful else first.workers
        for entity in [Entity(kind=Kind.WORKER, name=name) for name in named] or [job]:
            who = f"worker {entity.name}" if named else " and ".join(first.workers[:3]) or "all workers"
            proof = Evidence(text=f"the {which} of {who} is NaN or infinite in step {first.number}, the first such step", metric="step", value=float(first.number))
            claim = Claim(entity=entity, kind=NOT_FINITE, score=1.0, since=first.end, evidence=(proof, why) if why else (proof,))
            yield from self._claims.report(claim, revise=False)

    def _from_origin(self, origin: GradientOrigin, what: str, metric: str, since: float) -> Iterator[Claim]:
        """These workers gave all others what is no number. `what`: came of it; `metric`: how the number of the step is to be read."""
        for name in origin.workers:
            tensor = self._gradients.tensor(name)
            whose = f"worker {name}{f', of tensor {tensor},' if tensor else ''}"
            text = f"the gradient of {whose} is NaN or infinite in step {origin.step}, before it is exchanged, and those of the others are not; {what}"
            proof = Evidence(text=text, metric=metric, value=float(origin.step))
            claim = Claim(entity=Entity(kind=Kind.WORKER, name=name), kind=NOT_FINITE, score=1.0, since=since, evidence=(proof,))
            yield from self._claims.report(claim, revise=False)

    # --- what gradients and lines tell, where the script logs no loss

    def _judge_gradients(self, step: Step) -> Iterator[Claim]:
        """Without a word of losses: a scaler that looks for its scale makes some bad steps, too."""
        if self._gradients.all_bad >= self.printed_norms:
            yield from self._unlogged(step.number, step.end)
        elif self._gradients.good:
            for entity, _ in [key for key in self._claims.open if key[1] == NOT_FINITE and key[0].kind is Kind.WORKER]:
                yield from self._claims.withdraw(entity, NOT_FINITE, step.end, "the gradients of all are numbers again")

    def _unlogged(self, number: int, time: float) -> Iterator[Claim]:
        """Who was first, if that is known. The numbers of the steps may be ours, and not the script's: no roll-back goes by them."""
        origin = self._gradients.origin(number)
        if origin is not None and self._gradients.all_bad >= self.norm_steps and not self._is_open():
            yield from self._from_origin(origin, f"those of all are, in {self._gradients.all_bad} steps in succession", "optimizer_step", time)

    def _is_open(self) -> bool:
        return any(kind == NOT_FINITE for _, kind in self._claims.open)

    def _judge_printed(self, printed: PrintedLoss, job: Entity, time: float) -> Iterator[Claim]:
        """The job's claim, which accuses nobody where no gradient does: its evidence names no step that could be rolled back to."""
        if printed.bad:
            yield from self._unlogged(self._gradients.newest, time)
            if self._is_open():
                return
            worker, what = next(iter(printed.bad.items()))
            lines = self.printed_losses if what == "loss" else self.printed_norms
            others = f" (and {len(printed.bad) - 1} others)" if len(printed.bad) > 1 else ""
            at = f", up to its step {printed.step:.0f}" if np.isfinite(printed.step) else ""
            proof = Evidence(text=f"the {what} that {worker}{others} prints is NaN or infinite in {lines} lines in succession{at}", metric="printed_step", value=_known(printed.step))
            yield from self._claims.report(Claim(entity=job, kind=NOT_FINITE, score=0.9, since=time, evidence=(proof,)), revise=False)
        elif printed.good:
            for entity, _ in [key for key in self._claims.open if key[1] == NOT_FINITE]:
                yield from self._claims.withdraw(entity, NOT_FINITE, time, "the loss is a number again")
            place = Evidence(text=f"printed as step {printed.step:.0f}" if np.isfinite(printed.step) else "as printed", metric="printed_step", value=_known(printed.step))
            yield from self._spike(place, printed.loss, job, time)

    # --- spikes

    def _spike(self, place: Evidence, loss: float, job: Entity, time: float) -> Iterator[Claim]:
        """`place`: which step that is."""
        if len(self._losses) >= 20:
            known = np.array(self._losses)
            median = float(np.median(known))
            spread = NORMAL_MAD * float(np.median(np.abs(known - median))) or float(known.std())  # 0.0: most are the same
            spread = max(spread, 1e-6 * abs(median))
            least = (self.factor - 1.0) * abs(median)
            if abs(median) < self.deviations * spread:  # around zero its size says nothing
                least = max(least, self.factor * (float(known.max()) - median))
            rise = loss - median
            if rise > self.deviations * spread > 0.0 and rise > least:
                proof = Evidence(text=f"loss {loss:.4g} {place.text}, {rise / spread:.0f} deviations above {median:.4g}", metric=place.metric, value=place.value)
                claim = Claim(entity=job, kind="loss.spike", score=0.6, since=time, evidence=(proof,))
                yield from self._claims.report(claim, revise=False)
                return
            yield from self._claims.withdraw(job, "loss.spike", time, "the loss is where it was")
        self._losses.append(loss)
        while len(self._losses) > self.window:
            self._losses.popleft()


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None
