"""Short, stable digests of values."""

import hashlib
from typing import Any

import msgspec


def digest_of(*parts: Any) -> str:
    """A short, stable digest of values that msgspec can encode: the same on every machine and run."""
    return hashlib.blake2b(msgspec.json.encode(parts, order="deterministic"), digest_size=8).hexdigest()
