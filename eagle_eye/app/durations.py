"""Durations as people write them."""

import re

import click

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def duration(_context: click.Context, _parameter: click.Parameter, value: str | None) -> float | None:
    """Callback of an option: `30d`, `12h`, `90m`, `45s`, `2w` as seconds. Raises click.BadParameter.

    >>> duration(None, None, "90m")
    5400.0
    """
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", value.strip())
    if found is None or float(found[1]) == 0:
        raise click.BadParameter(f"{value!r} is no duration: write e.g. 45s, 90m, 12h, 30d or 2w")
    return float(found[1]) * UNITS[found[2]]
