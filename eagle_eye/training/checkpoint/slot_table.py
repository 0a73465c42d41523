"""The table of a slot in memory, in words: JSON as Python writes it, for its worker, for launchers and for commands alike.

It holds what a state may hold and strict JSON may not: NaN, infinite numbers, and texts that are no UTF-8 (names of files, as the operating system has them).
Needs no torch.
"""

import json
from typing import Any


def encode(words: dict[str, Any]) -> bytes:
    """Raises TypeError and ValueError for what JSON cannot hold."""
    return json.dumps(words).encode()


def decode(table: bytes) -> dict[str, Any]:
    """Raises ValueError for what is no table."""
    try:
        words = json.loads(table)
    except RecursionError:
        raise ValueError("its table is nested too deep") from None
    if not isinstance(words, dict):
        raise ValueError("its table is no JSON object")  # noqa: TRY004  # whoever reads it expects one error
    return words
