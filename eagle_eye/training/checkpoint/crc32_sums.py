"""The CRC-32 of data that is summed up in pieces, by several threads.

A CRC-32 is the remainder of the data, as a polynomial over GF(2), divided by P: that of A followed by n bytes B is that of A, times x^(8n), plus
that of B. So pieces are summed up in any order, and the sums are put together (zlib's crc32_combine, which Python does not have).
"""

from collections.abc import Iterable
from functools import lru_cache

_P = 0xEDB88320
"""x^32 + x^26 + x^23 + … + 1 without x^32, the lowest power in the highest bit, as in zlib."""
_ONE = 1 << 31


def joined(pieces: Iterable[tuple[int, int]]) -> int:
    """CRC-32 of all pieces together; each is given by its CRC-32 and its bytes.

    >>> import zlib
    >>> joined([(zlib.crc32(b"check"), 5), (zlib.crc32(b""), 0), (zlib.crc32(b"points"), 6)]) == zlib.crc32(b"checkpoints")
    True
    """
    crc = 0
    for piece, size in pieces:
        crc = (_product(_power(8 * size), crc) if crc else 0) ^ piece
    return crc


def _product(one: int, other: int) -> int:
    """Of two polynomials, modulo P."""
    found = 0
    while one:
        if one & _ONE:
            found ^= other
        one = (one << 1) & 0xFFFFFFFF
        other = other >> 1 ^ (_P if other & 1 else 0)
    return found


@lru_cache(64)
def _power(exponent: int) -> int:
    """x^exponent modulo P: a file has pieces of two lengths at the most."""
    found, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            found = _product(square, found)
        square, exponent = _product(square, square), exponent >> 1
    return found
