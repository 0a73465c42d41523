"""Faults written into real loss curves, and their innocent twins: what is told of them, after how many steps, and whether anybody is accused.

Each is written at a moment drawn from a seed, which has as many losses before it and behind it as the fault needs; those are shown. A deviation is that of a loss from the one before it, by √2, shortly before the moment.
The curves have no gradient norm: where one is needed it is drawn around 1 (log-normal, `NORM_SPREAD`).
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from detectors.features.robust_deviation import NORMAL_MAD
from detectors.runtime.evaluator import Prototypes
from eagle_eye.types import Doubles

from .figures import Figure
from .judged_frames import judged
from .loss_curves import LAYOUT, LossCurve, WrittenCurve, frames_of

DRIFT, DRIFT_STEPS, TIMES, NORM, NORM_SPREAD, PASSING = 10.0, 100, 2.0, 50.0, 0.3, 3
RECALL = 0.99
Written = Callable[[LossCurve, int, np.random.Generator], WrittenCurve]
"""(curve, place, generator) → the curve with the fault."""


@dataclass(frozen=True)
class CurveFault:
    """What is written, and what is to be told of it."""

    words: str
    write: Written
    kind: str = ""
    """Is to be told; '': nothing is."""
    quiet: frozenset[str] = frozenset()
    """Kinds that may not be told, if they are not told of the curve as it is."""
    culprit: bool = False
    """The second worker's node is to be named; else nobody."""
    before: int = 160
    after: int = 150
    """Losses from the moment on."""


class JudgedFault(NamedTuple):
    """One case."""

    found: bool
    right: bool
    """Whoever is at fault is named, and nobody else."""
    delay: float
    """Steps until it was told; infinite if it was not, or need not be."""


def figures_of_faults(curves: Sequence[LossCurve], detectors: Prototypes, faults: Sequence[CurveFault] | None = None) -> Iterator[Figure]:
    """One row for each fault and twin, all of them if none are given. Nothing is written into a curve that is too short."""
    faults = FAULTS if faults is None else faults
    cases: dict[str, list[JudgedFault]] = {}
    for curve in (each.with_losses() for each in curves):
        rng = np.random.default_rng(zlib.crc32(curve.name.encode()))
        for fault in faults:
            if len(curve.losses) < fault.before + fault.after:
                continue
            place = int(rng.integers(fault.before, len(curve.losses) - fault.after + 1))
            cut = curve.part(slice(place - fault.before, place + fault.after))
            cases.setdefault(fault.words, []).append(_judged(cut, fault.before, fault, rng, detectors))
    for fault in faults:
        if cases.get(fault.words):
            yield _figure(fault, cases[fault.words])


def _judged(curve: LossCurve, place: int, fault: CurveFault, rng: np.random.Generator, detectors: Prototypes) -> JudgedFault:
    verdict = judged(frames_of(fault.write(curve, place, rng)), LAYOUT, detectors)
    began = curve.times[place]
    after = [(time, kind) for time, kind in verdict.told if time >= began]
    wrong = {kind for _, kind in after} & fault.quiet
    if wrong:
        wrong -= {kind for _, kind in judged(frames_of(WrittenCurve(curve)), LAYOUT, detectors).told}
    told = [time for time, kind in after if kind == fault.kind]
    named = {node for node, time in verdict.named.items() if time >= began}
    delay = float(np.searchsorted(curve.times, told[0]) - place) if told else np.inf
    return JudgedFault((bool(told) or not fault.kind) and not wrong, named == ({LAYOUT.nodes[1]} if fault.culprit else set()), delay)


def _figure(fault: CurveFault, cases: Sequence[JudgedFault]) -> Figure:
    found, right = sum(case.found for case in cases), sum(case.right for case in cases)
    delays = np.array([case.delay for case in cases if np.isfinite(case.delay)])
    after = f" after {np.median(delays):.0f} steps, at most {delays.max():.0f}" if len(delays) else ""
    whom = "its node named" if fault.culprit else "nobody accused"
    words = " and ".join([*([fault.kind] if fault.kind else []), *([f"no {' or '.join(sorted(fault.quiet))}"] if fault.quiet else [])])
    met = found >= RECALL * len(cases) and right == len(cases)
    return Figure(
        what=f"{fault.words}: {words}", figure=f"{found / len(cases):.3f} of {len(cases)}{after}; {whom}: {right} of {len(cases)}", goal=f"≥ {RECALL}; {whom}: all", met=met,
        reason="" if met else f"{len(cases) - found} missed",
    )  # fmt: skip


# --- what is written


def _drifts(curve: LossCurve, place: int, rng: np.random.Generator) -> WrittenCurve:
    flat, deviation = _flat(curve, place, rng)
    flat += DRIFT * deviation * np.minimum(np.arange(len(flat)) / DRIFT_STEPS, 1.0)
    return WrittenCurve(curve._replace(losses=np.concatenate([curve.losses[:place], flat])))


def _doubles(curve: LossCurve, place: int, _: np.random.Generator) -> WrittenCurve:
    return WrittenCurve(curve._replace(losses=np.concatenate([curve.losses[:place], TIMES * curve.losses[place:]])))


def _spikes(curve: LossCurve, place: int, _: np.random.Generator) -> WrittenCurve:
    losses = curve.losses.copy()
    losses[place : place + PASSING] *= TIMES
    return WrittenCurve(curve._replace(losses=losses))


def _stops_falling(curve: LossCurve, place: int, rng: np.random.Generator) -> WrittenCurve:
    return WrittenCurve(curve._replace(losses=np.concatenate([curve.losses[:place], _flat(curve, place, rng)[0]])), restart=place)


def _is_no_number(curve: LossCurve, place: int, _: np.random.Generator) -> WrittenCurve:
    return WrittenCurve(curve, first_bad=place)


def _norm_jumps(curve: LossCurve, place: int, rng: np.random.Generator) -> WrittenCurve:
    norms = _norms(curve, rng)
    norms[place:] *= NORM
    return WrittenCurve(curve, norms=norms)


def _goes_on(curve: LossCurve, place: int, rng: np.random.Generator) -> WrittenCurve:
    return WrittenCurve(curve, norms=_norms(curve, rng), restart=place)


def _flat(curve: LossCurve, place: int, rng: np.random.Generator) -> tuple[Doubles, float]:
    """Losses that keep the level of the 20 before the moment, with the noise of the 100 before it; and their deviation."""
    before = curve.losses[place - DRIFT_STEPS : place]
    change = np.diff(before)
    deviation = NORMAL_MAD * float(np.median(np.abs(change - np.median(change)))) / np.sqrt(2.0)
    noise = (before - np.convolve(before, np.ones(21) / 21.0, mode="same"))[10:-10]
    flat: Doubles = float(np.median(before[-20:])) + rng.choice(noise, len(curve.losses) - place)
    return flat, deviation


def _norms(curve: LossCurve, rng: np.random.Generator) -> Doubles:
    norms: Doubles = np.exp(rng.normal(0.0, NORM_SPREAD, len(curve.losses)))
    return norms


FAULTS = (
    CurveFault("the loss rises by 10 deviations in 100 steps", _drifts, "loss.risen"),
    CurveFault("it doubles and does not come back", _doubles, "loss.risen"),
    CurveFault("it stops falling with a restart", _stops_falling, "loss.plateau", before=1000, after=1000),
    CurveFault("that of one worker is NaN, then that of all", _is_no_number, "loss.not_finite", culprit=True),
    CurveFault("the gradient norm is 50 times what it was", _norm_jumps, "grad_norm.jump"),
    CurveFault("innocent: the loss doubles for 3 steps", _spikes, "loss.spike", frozenset({"loss.risen"})),
    CurveFault("innocent: a restart, and all goes on", _goes_on, "", frozenset({"loss.risen", "loss.plateau", "loss.spike", "grad_norm.jump"})),
)
