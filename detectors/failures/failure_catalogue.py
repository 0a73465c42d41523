"""The catalogue of known failures: which signs speak for which one, what repairs it, and what tells its rivals apart.

`known/*.toml` are the failures, in a form that known/hardware.toml describes. Rules of one failure count as independent pieces of evidence, so a
failure's weight is 1 - (1 - w1)(1 - w2)... of the rules that hold. The weights are an order of evidence set by hand, no probability.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from importlib import resources
from math import prod
from typing import Annotated, NamedTuple

import msgspec

from eagle_eye.errors import UNREADABLE, ConfigError

from .report_signs import ReportSign

LEAST_WEIGHT = 0.3
"""Below it nothing is said: "unknown" is an answer."""
LINES_KEPT = 8
"""Lines that are shown for a failure."""


class FailureRepair(StrEnum):
    """What helps."""

    EVICT = "evict"
    RESTART = "restart"
    RETRY = "retry"
    ADVISE = "advise"
    """A person has to change something first."""
    NOTHING = "nothing"


class FailureOrigin(StrEnum):
    """Where it comes from: who has to do something."""

    HARDWARE = "hardware"
    NETWORK = "network"
    STORAGE = "storage"
    CONFIGURATION = "configuration"
    PROGRAM = "program"
    TRAINING = "training"
    SITE = "site"


class SignRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """These signs together speak for a failure."""

    all: tuple[str, ...]
    """Each `a|b`: one of them is enough."""
    weight: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)]
    unless: tuple[str, ...] = ()
    """Not where one of these is there."""
    in_order: bool = False
    """The first lines of `all` come in this order."""

    @property
    def names(self) -> Iterator[str]:
        """All signs that it asks for."""
        for each in self.all:
            yield from each.split("|")
        yield from self.unless

    def holds(self, first: Mapping[str, ReportSign]) -> tuple[ReportSign, ...]:
        """The signs that fulfil it; () where it does not hold. `first`: the first sign of each name."""
        if not first.keys().isdisjoint(self.unless):
            return ()
        found: list[ReportSign] = []
        for each in self.all:
            there = [first[name] for name in each.split("|") if name in first]
            if not there:
                return ()
            found.append(min(there, key=lambda sign: sign.line))
        lines = [sign.line for sign in found]
        return tuple(found) if not self.in_order or lines == sorted(lines) else ()


class KnownFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the catalogue."""

    name: str
    title: str
    origin: FailureOrigin
    repair: FailureRepair
    cause: str
    remedy: str
    source: str
    shown_by: Annotated[tuple[SignRule, ...], msgspec.Meta(min_length=1)]
    rivals: tuple[tuple[str, str], ...] = ()
    """(name of another failure, what tells the two apart)"""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    failure: tuple[KnownFailure, ...] = ()


class SuspectedFailure(NamedTuple):
    """A known failure that a report's signs speak for."""

    failure: KnownFailure
    weight: float
    signs: tuple[ReportSign, ...]
    """What speaks for it, in the order of the report, each once."""


class FailureCatalogue:
    """The known failures of this release, in their order."""

    def __init__(self, failures: Sequence[KnownFailure]) -> None:
        self.failures = tuple(failures)

    @classmethod
    def load(cls) -> "FailureCatalogue":
        """Raises ConfigError, with the file, for a row that is not in order."""
        folder = resources.files(__package__).joinpath("known")
        found: list[KnownFailure] = []
        for name in ORDER:
            try:
                found += msgspec.convert(tomllib.loads(folder.joinpath(name).read_text(encoding="utf-8")), _File).failure
            except (OSError, *UNREADABLE) as error:
                raise ConfigError(f"detectors/failures/known/{name}: {error}") from error
        return cls(found)

    @cached_property
    def by_name(self) -> Mapping[str, KnownFailure]:
        """Every failure by its name."""
        return {failure.name: failure for failure in self.failures}

    def suspected(self, signs: Sequence[ReportSign]) -> tuple[SuspectedFailure, ...]:
        """The failures that the signs speak for, the strongest first; () if none is strong enough. Of equal ones the upper row.

        One for which nothing speaks but what speaks for a stronger one is left out.
        """
        first: dict[str, ReportSign] = {}
        for sign in sorted(signs, key=lambda sign: sign.line):
            first.setdefault(sign.name, sign)
        found = [each for failure in self.failures if (each := _suspected(failure, first)).weight >= LEAST_WEIGHT]
        kept: list[SuspectedFailure] = []
        for each in sorted(found, key=lambda each: -each.weight):
            if not any(set(each.signs) <= set(stronger.signs) for stronger in kept):
                kept.append(each)
        return tuple(kept)


ORDER = ("hardware.toml", "network.toml", "machine.toml", "program.toml", "training.toml", "site.toml")
"""Files of known/: of failures with equal weights the upper one counts."""


def _suspected(failure: KnownFailure, first: Mapping[str, ReportSign]) -> SuspectedFailure:
    holding = [(rule, signs) for rule in failure.shown_by if (signs := rule.holds(first))]
    weight = round(1.0 - prod(1.0 - rule.weight for rule, _ in holding), 3)
    lines = sorted({sign for _, signs in holding for sign in signs}, key=lambda sign: (sign.line, sign.name))
    return SuspectedFailure(failure, weight, tuple(lines))
