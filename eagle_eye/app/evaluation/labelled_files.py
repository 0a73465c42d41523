"""Files of data sets: JSON, lines of JSON, compressed text and tables. What cannot be read is a DataSetError that names the file."""

import csv
import gzip
import io
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from eagle_eye.errors import UNREADABLE, DataSetError
from eagle_eye.regular_file import read_owned

LARGEST = 1 << 30
"""Bytes of one file, also of a compressed one when it is whole."""
REMEDY = "copy the data set again, or compare its form with the README beside it"


def content_of(path: Path) -> bytes:
    """A file; one whose name ends in .gz, uncompressed."""
    try:
        data, _ = read_owned(path, LARGEST)
        if path.suffix != ".gz":
            return data
        with gzip.open(io.BytesIO(data)) as file:
            whole = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataSetError(f"{path}: {getattr(error, 'strerror', '') or error}; {REMEDY}") from error
    if len(whole) > LARGEST:
        raise DataSetError(f"{path}: more than {LARGEST >> 20} MB when uncompressed; {REMEDY}")
    return whole


def text_of(path: Path) -> str:
    """As `content_of`; what is no UTF-8 is replaced."""
    return content_of(path).decode(errors="replace")


def json_of(path: Path) -> Any:
    """What a file of JSON holds."""
    try:
        return json.loads(content_of(path))
    except UNREADABLE as error:
        raise DataSetError(f"{path}: no JSON: {error}; {REMEDY}") from error


def objects_of(path: Path, *fields: str) -> list[dict[str, Any]]:
    """The objects in a file of JSON (a list) or of lines of JSON (.jsonl), each with these fields."""
    if ".jsonl" not in path.name:
        rows = json_of(path)
        if not isinstance(rows, list):
            raise DataSetError(f"{path}: it is no list; {REMEDY}")
        return [_checked(path, f"object {number}", row, fields) for number, row in enumerate(rows, 1)]
    found = []
    for number, line in enumerate(text_of(path).splitlines(), 1):
        try:
            row = json.loads(line)
        except UNREADABLE as error:
            raise DataSetError(f"{path}, line {number}: no JSON: {error}; {REMEDY}") from error
        found.append(_checked(path, f"line {number}", row, fields))
    return found


def table_of(path: Path, *columns: str) -> list[dict[str, str]]:
    """The rows of a CSV file that has these columns."""
    rows = list(csv.DictReader(text_of(path).splitlines()))
    for number, row in enumerate(rows, 2):
        if missing := [name for name in columns if row.get(name) is None]:
            raise DataSetError(f"{path}, line {number}: {', '.join(missing)} is missing; {REMEDY}")
    if not rows:
        raise DataSetError(f"{path}: it has no row; {REMEDY}")
    return rows


def arrays_of(path: Path, *names: str) -> Mapping[str, Any]:
    """The arrays of a file of NumPy's (.npz), all of these names. Nothing in it is executed."""
    try:
        with np.load(io.BytesIO(content_of(path)), allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    except Exception as error:  # boundary: torn archives raise errors of zipfile, zlib and numpy
        if isinstance(error, DataSetError):
            raise
        raise DataSetError(f"{path}: no archive of arrays (.npz), or a torn one; {REMEDY}") from error
    if missing := [name for name in names if name not in arrays]:
        raise DataSetError(f"{path}: {', '.join(missing)} is missing; {REMEDY}")
    return arrays


def _checked(path: Path, place: str, row: Any, fields: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise DataSetError(f"{path}, {place}: it is no object; {REMEDY}")
    if missing := [name for name in fields if name not in row]:
        raise DataSetError(f"{path}, {place}: {', '.join(missing)} is missing; {REMEDY}")
    return row
