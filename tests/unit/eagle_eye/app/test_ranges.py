"""No number of the configuration is out of its range, whoever has it: a section, the engine, a plugin."""

import math
import typing
from collections.abc import Iterator

import pytest

from collectors.agent.schedule import ScheduleOptions
from eagle_eye import config, plugins
from eagle_eye.app import plugin_wiring
from eagle_eye.config import Config, Section
from eagle_eye.errors import EagleEyeError
from remediation.policy.engine_settings import EngineSettings

CLASSES = {f"{table}.{name}": plugins.load(room, name) for table, room in plugin_wiring.TABLES.items() for name in plugins.available(room)} | {
    "engine": EngineSettings,
    "collectors.any": ScheduleOptions,
}
"""Table of the configuration → class of its options."""
ABSURD = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf, "-7": -7, "1e18": 10**18}


def fields(table: str, cls: type) -> Iterator[tuple[str, str, object]]:
    """(table, field, type) of every field below a section or in a table of a plugin."""
    hints = typing.get_type_hints(cls, include_extras=True)
    names = cls.__struct_fields__ if issubclass(cls, Section) else [option.name for option in plugins.describe(cls)]
    for name in names:
        hint = hints[name]
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from fields(f"{table}.{name}".strip("."), hint)
        else:
            yield table, name, hint


def every_field() -> Iterator[tuple[str, str, object]]:
    yield from fields("", Config)
    for table, cls in CLASSES.items():
        yield from fields(table, cls)


def numbers_without_range(hint: object) -> Iterator[object]:
    if typing.get_origin(hint) is typing.Annotated:
        return
    if hint in (int, float):
        yield hint
    for inner in typing.get_args(hint):
        yield from numbers_without_range(inner)


NUMBERS = [(table, name) for table, name, hint in every_field() if typing.get_origin(hint) is typing.Annotated]


def test_every_number_has_a_range() -> None:
    without = [f"{table}.{name}" for table, name, hint in every_field() if list(numbers_without_range(hint))]
    assert not without, "give each a type of eagle_eye/ranges.py"
    assert len(NUMBERS) > 90


@pytest.mark.parametrize("absurd", ABSURD)
def test_what_no_number_can_be_is_refused_with_its_key(absurd) -> None:
    accepted = [f"{table}.{name}" for table, name in NUMBERS if not refused(table, name, ABSURD[absurd])]
    assert not accepted


def refused(table: str, name: str, value: float) -> bool:
    """Whether that value is refused, by an error that names the key."""
    try:
        config.check(config.parse(f"[{table}]\n{name} = {value}", "mine.toml"), "mine.toml")
        if table in CLASSES:
            plugins.configure(CLASSES[table], {name: value})
    except EagleEyeError as error:
        return name in str(error)
    return False


def test_a_plugins_number_out_of_range_is_refused_with_its_table() -> None:
    with pytest.raises(EagleEyeError, match=r"mine\.toml: \[detectors\.straggler\] option 'ratio' .*nan"):
        plugin_wiring.check(config.parse("[detectors.straggler]\nratio = nan", "mine.toml"), "mine.toml")


def test_the_defaults_are_within_their_ranges() -> None:
    config.check(Config(), "the defaults")
    for table, room in plugin_wiring.TABLES.items():
        for name in plugins.available(room):
            cls = plugins.load(room, name)
            plugins.configure(cls, {option.name: option.default for option in plugins.describe(cls) if (f"{table}.{name}", option.name) in NUMBERS})
