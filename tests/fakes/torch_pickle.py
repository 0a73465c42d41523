"""A flight recorder as torch writes it (`torch::jit::pickle`): each text once, and a reference to it from then on; containers are not remembered."""

import struct
from collections.abc import Mapping
from typing import Any


def torch_pickle(record: Mapping[str, Any]) -> bytes:
    """Byte by byte what torch 2.13 writes of the same content."""
    return _TorchPickler().written(record)


class _TorchPickler:
    def __init__(self) -> None:
        self._out = bytearray(b"\x80\x02")
        self._texts: dict[str, int] = {}

    def written(self, record: Mapping[str, Any]) -> bytes:
        self._put(record)
        self._remember(len(self._texts))
        return bytes(self._out + b".")

    def _put(self, value: object) -> None:
        if value is None or isinstance(value, bool):
            self._out += {None: b"N", True: b"\x88", False: b"\x89"}[value]
        elif isinstance(value, int):
            self._out += _integer(value)
        elif isinstance(value, float):
            self._out += b"G" + struct.pack(">d", value)
        elif isinstance(value, str):
            self._text(value)
        elif isinstance(value, tuple):
            self._all(value)
            self._out += b"\x86"
        elif isinstance(value, list):
            self._out += b"]("
            self._all(value)
            self._out += b"e"
        elif isinstance(value, Mapping):
            self._out += b"}("
            self._all([part for pair in value.items() for part in pair])
            self._out += b"u"
        else:
            raise TypeError(value)

    def _all(self, values: list[Any] | tuple[Any, ...]) -> None:
        for each in values:
            self._put(each)

    def _text(self, text: str) -> None:
        number = self._texts.get(text)
        if number is not None:
            self._out += b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)
            return
        number = self._texts[text] = len(self._texts)
        self._out += b"X" + struct.pack("<I", len(text.encode())) + text.encode()
        self._remember(number)

    def _remember(self, number: int) -> None:
        self._out += b"q" + bytes([number]) if number < 256 else b"r" + struct.pack("<I", number)


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)
