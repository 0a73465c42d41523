"""Reads a file of JSON lines while its writer goes on."""

import json
from pathlib import Path
from typing import Any


def json_lines(path: Path) -> list[Any]:
    """The whole lines so far, none without a file: the kernel may show a part of the one that is being written."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
