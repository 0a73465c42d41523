"""What a collector may return: what every reader of the stream can read. Anything else fails this collector, and no other one.

A batch holds the readings of all collectors: one that cannot be written, or read, would cost all of them.
"""

from collections.abc import Iterable
from itertools import islice

import msgspec
import numpy as np

from eagle_eye import wire
from eagle_eye.types import Event, Kind, Reading, StepReading
from eagle_eye.types.entity import Name, Time

MOST = 100_000
"""Results of one run; what yields for ever must not fill the memory."""
_Names = tuple[str, ...]
_reader = wire.RecordReader()


def checked(results: Iterable[object]) -> tuple[Reading | StepReading | Event, ...]:
    """The results as records can hold them. Raises what is wrong with the first that no record can hold."""
    found = tuple(islice(results, MOST + 1))
    if len(found) > MOST:
        raise ValueError(f"it returned more than {MOST} results at once")
    return tuple(map(_checked, found))


def _checked(result: object) -> Reading | StepReading | Event:
    if isinstance(result, Event):
        _reader.read(wire.encode(result))
        return result
    if not isinstance(result, Reading | StepReading):
        raise TypeError(f"it returned {type(result).__name__}, which is no Reading, StepReading or Event")
    try:
        _check(result)
    except UnicodeEncodeError:
        return wire.writable_record(result)
    return result


def _check(reading: Reading | StepReading) -> None:
    """Raises msgspec.ValidationError, TypeError or WireError; UnicodeEncodeError for text that has no encoding."""
    if isinstance(reading, Reading):
        msgspec.convert((reading.source, reading.kind, reading.entities, reading.names, reading.time), tuple[Name, Kind, _Names, _Names, Time], strict=True)
        tables = (reading.entities, reading.names)
        arrays: list[tuple[object, type]] = [(reading.matrix, np.floating)]
    else:
        msgspec.convert((reading.source, reading.workers, reading.names), tuple[Name, _Names, _Names], strict=True)
        tables = (reading.workers, reading.names)
        arrays = [(reading.numbers, np.integer), (reading.epochs, np.integer), (reading.ends, np.floating), (reading.values, np.floating)]
    if not all(isinstance(table, tuple) for table in tables):
        raise TypeError(f"the names in a reading of {reading.source!r} are no tuple")
    for array, kind in arrays:
        if not isinstance(array, np.ndarray) or not np.issubdtype(array.dtype, kind):
            raise TypeError(f"an array of {reading.source!r} is {getattr(array, 'dtype', type(array).__name__)}, not {kind.__name__}")
    wire.check_shapes(reading)
    "".join((reading.source, *tables[0], *tables[1])).encode()
