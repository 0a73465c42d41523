"""What an evaluation prints: one row for each figure, beside its goal and what others reach."""

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from eagle_eye.errors import DataSetError

from . import data_sets
from .labelled_files import REMEDY

OF_NONE = "0 of 0"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One row."""

    data_set: str = ""
    """Filled in by `figures_of`."""
    what: str
    figure: str
    goal: str = ""
    met: bool | None = None
    """None: it has no goal."""
    others: str = ""
    """What other programs reach on the same data."""
    reason: str = ""
    """Why a goal is missed."""


def names() -> tuple[str, ...]:
    """Every data set that has an adapter."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(data_sets.__path__)))


def chosen(data: Path, only: Sequence[str]) -> tuple[str, ...]:
    """The data sets to evaluate: those that are named, else those that the folder has. Raises DataSetError where one that is named, or all, are missing."""
    if not data.is_dir():
        raise DataSetError(f"{data} is no folder: name with --data the folder that has a folder for each data set ({', '.join(names())})")
    there = tuple(name for name in names() if (data / name).is_dir())
    for name in only:
        if name not in names():
            raise DataSetError(f"there is no adapter of a data set {name!r}: --only takes {', '.join(names())}")
        if name not in there:
            raise DataSetError(f"{data / name} is missing: name with --data the folder that has it")
    if not there:
        raise DataSetError(f"{data} has none of the folders {', '.join(names())}: name with --data the folder that has them")
    return tuple(dict.fromkeys(only)) or there


def figures_of(data: Path, name: str) -> Iterator[Figure]:
    """Evaluate one data set; where nothing in it is judged, that is a miss. Raises DataSetError for what it cannot read."""
    adapter = importlib.import_module(f".data_sets.{name}", __package__)
    judged = False
    for figure in adapter.figures(data / name):
        met = None if figure.figure.startswith(OF_NONE) else figure.met  # "all" of no case is neither met nor missed
        judged = judged or met is not None
        yield msgspec.structs.replace(figure, data_set=name, met=met)
    if not judged:
        yield Figure(data_set=name, what="all of it", figure="nothing evaluated", goal="evaluated", met=False, reason=f"{data / name} has no case with a label that is known; {REMEDY}")
