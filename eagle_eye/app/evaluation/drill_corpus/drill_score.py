"""Verdicts of a corpus beside the truth: class, culprit, healthy nodes that would be evicted, how far stated confidence is from what was right, and each kind."""

from collections.abc import Iterable, Sequence

import numpy as np

from eagle_eye.app.evaluation.figures import Figure

from .drill_run import Accusation, DrillVerdict

RIGHT, CALIBRATION = 0.97, 0.05
BINS = 10
NAMED = 6


def score(verdicts: Sequence[DrillVerdict]) -> list[Figure]:
    """Over all, then of faults and twins, then each kind; those that were made hard by themselves, behind them, and last the accusations of all by the confidence that they state."""
    plain, hard = [each for each in verdicts if not each.handicap], [each for each in verdicts if each.handicap]
    rows = [*(_corpus(plain) if plain or not hard else []), *(_hard(hard) if hard else [])]
    return [*rows, *_table([accusation for each in verdicts for accusation in each.accusations])]


def _hard(verdicts: Sequence[DrillVerdict]) -> list[Figure]:
    """Of drills with a handicap, in which nobody need be accused."""
    accusations = [accusation for each in verdicts for accusation in each.accusations]
    both = [each for each in verdicts if each.class_right and each.culprit_right]
    evicted = [each for each in verdicts if each.evicted]
    return [
        Figure(what="hard drills: class and culprit right, or nobody accused", figure=_share(len(both), len(verdicts)), reason=_names(each for each in verdicts if each not in both)),
        Figure(what="hard drills: faults that are named", figure=_share(sum(each.fault and bool(each.accused) and each.culprit_right for each in verdicts), sum(each.fault and bool(each.culprits) for each in verdicts))),
        Figure(what="hard drills: healthy nodes that a proposed plan evicts", figure=str(sum(len(each.evicted) for each in verdicts)), goal="0", met=not evicted, reason=_names(evicted)),
        Figure(what=f"hard drills: expected calibration error of {len(accusations)} accusations", figure=f"{calibration_error(accusations):.3f}" if accusations else "nobody is accused"),
        *(_group(f"hard drills, {name}", [each for each in verdicts if each.handicap == name]) for name in sorted({each.handicap for each in verdicts})),
    ]


def _table(accusations: Sequence[Accusation]) -> list[Figure]:
    """A row for each bin that is not empty."""
    return [
        Figure(what=f"accusations that state {_bin(each[0])}", figure=f"{_share(sum(one.right for one in each), len(each))} right", reason=f"they state {_confidence(each):.3f} on average")
        for each in _binned(accusations)
    ]


def _bin(accusation: Accusation) -> str:
    low = min(BINS - 1, int(accusation.confidence * BINS)) / BINS
    return f"{low:.1f} to {low + 1 / BINS:.1f}"


def _corpus(verdicts: Sequence[DrillVerdict]) -> list[Figure]:
    count = len(verdicts)
    both = [each for each in verdicts if each.class_right and each.culprit_right]
    evicted = [each for each in verdicts if each.evicted]
    accused = [each for each in verdicts if each.ever_accused]
    accusations = [accusation for each in verdicts for accusation in each.accusations]
    error = calibration_error(accusations)
    rows = [
        Figure(what="class and culprit right", figure=_share(len(both), count), goal=f"≥ {RIGHT:.0%}", met=len(both) >= RIGHT * count, reason=_names(each for each in verdicts if each not in both)),
        Figure(what="class right; culprit right", figure=f"{_share(sum(each.class_right for each in verdicts), count)}; {_share(sum(each.culprit_right for each in verdicts), count)}"),
        Figure(what="healthy nodes that a proposed plan evicts", figure=str(sum(len(each.evicted) for each in verdicts)), goal="0", met=not evicted, reason=_names(evicted)),
        Figure(what="drills in which somebody healthy stood accused for a second", figure=_share(len(accused), count), reason=_names(accused)),
        Figure(
            what=f"expected calibration error of {len(accusations)} accusations, {BINS} bins", figure=f"{error:.3f}" if accusations else "nobody is accused", goal=f"≤ {CALIBRATION}",
            met=error <= CALIBRATION, reason=_bins(accusations),
        ),
        Figure(what="stated confidence; accusations that are right", figure=_mean(accusations)),
    ]  # fmt: skip
    rows += [_group("faults", [each for each in verdicts if each.fault]), _group("innocent twins", [each for each in verdicts if not each.fault])]
    rows += [_group(f"class {family}", [each for each in verdicts if each.family == family]) for family in dict.fromkeys(each.family for each in sorted(verdicts, key=lambda each: each.family))]
    return rows + [_kind(name, [each for each in verdicts if each.kind == name]) for name in sorted({each.kind for each in verdicts})]


def calibration_error(accusations: Sequence[Accusation]) -> float:
    """Guo et al. 2017: Σ over ten bins of equal width of (accusations in it / all) · |share that is right − mean confidence|; 0.0 where nobody is accused."""
    return sum(len(each) / len(accusations) * abs(_right(each) - _confidence(each)) for each in _binned(accusations))


def _binned(accusations: Sequence[Accusation]) -> list[list[Accusation]]:
    """Those that are not empty, from the least confident on."""
    bins: list[list[Accusation]] = [[] for _ in range(BINS)]
    for each in accusations:
        bins[min(BINS - 1, int(each.confidence * BINS))].append(each)
    return [each for each in bins if each]


def _right(accusations: Sequence[Accusation]) -> float:
    return float(np.mean([each.right for each in accusations]))


def _confidence(accusations: Sequence[Accusation]) -> float:
    return float(np.mean([each.confidence for each in accusations]))


def _bins(accusations: Sequence[Accusation]) -> str:
    return "; ".join(f"{len(each)} at {_confidence(each):.2f}: {_right(each):.2f} right" for each in _binned(accusations))


def _mean(accusations: Sequence[Accusation]) -> str:
    return f"{_confidence(accusations):.1%}; {_right(accusations):.1%}" if accusations else "nobody is accused"


def _group(name: str, verdicts: Sequence[DrillVerdict]) -> Figure:
    right = sum(each.class_right and each.culprit_right for each in verdicts)
    return Figure(what=f"{name}: class and culprit", figure=_share(right, len(verdicts)))


def _kind(name: str, verdicts: Sequence[DrillVerdict]) -> Figure:
    delays = [each.delay_s for each in verdicts if each.delay_s is not None]
    delay = f", after {np.median(delays):.1f} s" if delays and verdicts[0].fault else ""
    right = sum(each.class_right and each.culprit_right for each in verdicts)
    wrong = next((f"; told {', '.join(each.told) or 'nothing'}" for each in verdicts if not each.class_right), "")
    return Figure(what=f"{'fault' if verdicts[0].fault else 'twin'}: {name}", figure=f"{right} of {len(verdicts)}{delay}{wrong}")


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({count / of:.1%})" if of else "none"


def _names(verdicts: Iterable[DrillVerdict]) -> str:
    named = [_wrong(each) for each in verdicts]
    return "; ".join(named[:NAMED]) + (f"; and {len(named) - NAMED} more" if len(named) > NAMED else "")


def _wrong(verdict: DrillVerdict) -> str:
    accused = "" if verdict.culprit_right else f", accused {', '.join(verdict.accused) or 'nobody'}"
    return f"{verdict.number} ({verdict.kind}: told {', '.join(verdict.told) or 'nothing'}{accused})"
