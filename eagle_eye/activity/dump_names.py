"""Which rank a dump is of, by the names of all dumps: torch's own ends with it, others put dates, hosts and suffixes around it."""

import re
from collections.abc import Sequence
from pathlib import Path

_RANK = re.compile(r"rank[ _.=-]?(\d{1,7})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
LARGEST = 9_999_999


def ranks_of(paths: Sequence[Path]) -> list[int | None]:
    """Of each file, in their order; None where its name does not say it.

    The number behind the word rank, where all have it; else the one number that is another one in each name, and of several such the one that stays smallest, as
    ranks do beside times and process ids; of a single file the last one.

    >>> ranks_of([Path("trace_0"), Path("trace_12")]), ranks_of([Path("node1-rank3.trace"), Path("node1-rank4.trace")])
    ([0, 12], [3, 4])
    >>> ranks_of([Path("_dump_3_20240501.pkl"), Path("_dump_4_20240501.pkl")]), ranks_of([Path("notes"), Path("3.bin")])
    ([3, 4], [None, 3])
    """
    named = [_RANK.search(path.name) for path in paths]
    if paths and all(named):
        return [int(found[1]) for found in named if found]
    numbers = [[int(word) for word in _NUMBER.findall(path.name) if len(word) <= 19] for path in paths]
    longest = max(map(len, numbers), default=0)
    columns = [[each[place] if len(each) >= -place else None for each in numbers] for place in range(-1, -longest - 1, -1)]
    distinct = [column for column in columns if len(paths) > 1 and _tell_apart(column)]
    chosen = min(distinct, key=_largest, default=columns[0] if columns else [None] * len(paths))
    return [number if number is not None and number <= LARGEST else None for number in chosen]


def _tell_apart(column: Sequence[int | None]) -> bool:
    known = [number for number in column if number is not None]
    return len(known) > 1 and len(set(known)) == len(known)


def _largest(column: Sequence[int | None]) -> int:
    return max(number for number in column if number is not None)
