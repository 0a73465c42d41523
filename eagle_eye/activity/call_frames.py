"""The call frames of a thread that waits in the C library, by the library's own unwind table: a stack also holds return addresses of calls that are over.

`.eh_frame_hdr` and `.eh_frame` lie in the memory of the process beside the code (Linux Standard Base 5, 10.6; DWARF 5, 6.4), so no file is opened.
Only what compilers write for plain functions is understood; of anything else nothing is said.
"""

import struct
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

Memory = Callable[[int, int], bytes]
"""Address, bytes → what is there. Raises OSError."""


class Registers(NamedTuple):
    """DWARF's numbers of two registers of a machine."""

    stack_pointer: int
    return_address: int


REGISTERS = {"x86_64": Registers(7, 16), "aarch64": Registers(31, 30)}
LONGEST_TABLE, LONGEST_ENTRY = 1 << 22, 1 << 12
"""Bytes; what is longer was misread."""
_HEADER_SEGMENT = 0x6474E550
"""PT_GNU_EH_FRAME."""
_POINTERS = b"\x1b\x03\x3b"
"""How .eh_frame_hdr writes its numbers wherever it is found: 32 bits, relative to themselves, absolute, relative to the header."""
_BYTES = {0x00: 8, 0x02: 2, 0x03: 4, 0x04: 8, 0x0A: 2, 0x0B: 4, 0x0C: 8}
"""Of a pointer, by the lower half of its form."""
_SKIPPED = (0x00, 0x2D)
"""Without effect on what is asked: nothing; the signature of a return address."""


class Unreadable(Exception):
    """The table holds what is not understood."""


@dataclass(slots=True)
class FrameRules:
    """Of one place in the code: the frame begins at `register` + `offset`; the caller's registers are saved at these offsets from there, None: somewhere else."""

    register: int = -1
    offset: int = 0
    saved: dict[int, int | None] = field(default_factory=dict)

    def copy(self) -> "FrameRules":
        return FrameRules(self.register, self.offset, dict(self.saved))


class UnwindTable:
    """Of one library, which begins at `base`. Raises OSError, Unreadable, struct.error, IndexError for what is no such table."""

    def __init__(self, base: int, memory: Memory) -> None:
        self._memory = memory
        self._at = _header_of(base, memory)
        head = memory(self._at, 12)
        if head[:1] != b"\1" or head[1:4] != _POINTERS:
            raise Unreadable("another form of .eh_frame_hdr")
        [count] = struct.unpack_from("<I", head, 8)
        if 8 * count > LONGEST_TABLE:
            raise Unreadable("too long")
        places = struct.unpack(f"<{2 * count}i", memory(self._at + 12, 8 * count))
        self._begins, self._entries = places[::2], places[1::2]

    def rules(self, address: int) -> FrameRules:
        """For the instruction there."""
        number = bisect_right(self._begins, address - self._at) - 1
        if number < 0:
            raise Unreadable("no function is there")
        return _rules(self._at + self._entries[number], address, self._memory)


def _header_of(base: int, memory: Memory) -> int:
    head = memory(base, 64)
    if head[:5] != b"\x7fELF\2":
        raise Unreadable("no 64-bit ELF")
    [table] = struct.unpack_from("<Q", head, 32)
    size, count = struct.unpack_from("<2H", head, 54)
    segments = [struct.unpack_from("<2I3Q", memory(base + table + number * size, 32)) for number in range(min(count, 64))]
    bias = base - min(address for kind, _, offset, address, _ in segments if kind == 1 and not offset)
    return int(next(bias + address for kind, _, _, address, _ in segments if kind == _HEADER_SEGMENT))


class _Words:
    """Numbers of an entry, read one after the other."""

    def __init__(self, content: bytes, at: int = 0) -> None:
        self.content, self.at = content, at

    @classmethod
    def of_entry(cls, address: int, memory: Memory) -> Self:
        [length] = struct.unpack("<I", memory(address, 4))
        if not 4 <= length <= LONGEST_ENTRY:
            raise Unreadable("an entry of another form")
        return cls(memory(address + 4, length))

    @property
    def is_over(self) -> bool:
        return self.at >= len(self.content)

    def number(self, form: str) -> int:
        [found] = struct.unpack_from(f"<{form}", self.content, self.at)
        self.at += struct.calcsize(form)
        return int(found)

    def unsigned(self) -> int:
        found = shift = 0
        while True:
            byte = self.number("B")
            found |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return found

    def signed(self) -> int:
        began = self.at
        found = self.unsigned()
        bits = 7 * (self.at - began)
        return found - (1 << bits) if self.content[self.at - 1] & 0x40 else found


def _rules(entry: int, address: int, memory: Memory) -> FrameRules:
    words = _Words.of_entry(entry, memory)
    common = _Common.at(entry + 4 - words.number("I"), memory)
    begin = entry + 8 + words.number("i")
    if not begin <= address < begin + words.number("I"):
        raise Unreadable("no function is there")
    more = words.unsigned()
    words.at += more
    first = _Program(common, FrameRules(), begin)
    first.run(common.instructions, None)
    program = _Program(common, first.rules, begin)
    program.run(words, address)
    return program.rules


class _Common(NamedTuple):
    """What functions have in common (CIE)."""

    code_step: int
    data_step: int
    instructions: _Words

    @classmethod
    def at(cls, address: int, memory: Memory) -> Self:
        words = _Words.of_entry(address, memory)
        if words.number("I"):
            raise Unreadable("no common entry")
        words.number("B")
        letters = words.content[words.at : words.content.index(0, words.at)]
        words.at += len(letters) + 1
        code_step, data_step, _ = words.unsigned(), words.signed(), words.unsigned()
        if letters[:1] != b"z" or not set(letters) <= set(b"zPLR"):  # a signal's frame, for one
            raise Unreadable("an entry of another kind")
        words.unsigned()
        for letter in letters[1:]:
            form = words.number("B")
            if letter == ord("P"):
                words.at += _BYTES[form & 0x0F]
            if letter == ord("R") and form != _POINTERS[0]:
                raise Unreadable("another form of pointers")
        return cls(code_step, data_step, words)


class _Program:
    """Runs the instructions that say how a frame changes in the course of a function."""

    def __init__(self, common: _Common, rules: FrameRules, begin: int) -> None:
        self._common, self._initial, self._place = common, rules, begin
        self.rules = rules.copy()
        self._kept: list[FrameRules] = []

    def run(self, words: _Words, until: int | None) -> None:
        """Up to the instruction at that address."""
        while not words.is_over:
            code = words.number("B")
            step = self._step(code, words)
            if step is None:
                self._change(code, words)
                continue
            self._place += step * self._common.code_step
            if until is not None and self._place > until:
                return

    @staticmethod
    def _step(code: int, words: _Words) -> int | None:
        if code >> 6 == 1:
            return code & 0x3F
        form = {0x02: "B", 0x03: "H", 0x04: "I"}.get(code)
        return None if form is None else words.number(form)

    def _change(self, code: int, words: _Words) -> None:
        if code >> 6 == 2:
            self.rules.saved[code & 0x3F] = words.unsigned() * self._common.data_step
        elif code >> 6 == 3 or code == 0x06:
            self._restore(code & 0x3F if code >> 6 else words.unsigned())
        elif code in (0x05, 0x11):
            register = words.unsigned()
            self.rules.saved[register] = (words.unsigned() if code == 0x05 else words.signed()) * self._common.data_step
        elif code in (0x07, 0x08):
            self.rules.saved[words.unsigned()] = None
        elif code == 0x0A:
            self._kept.append(self.rules.copy())
        elif code == 0x0B:
            self.rules = self._kept.pop()
        else:
            self._begin(code, words)

    def _begin(self, code: int, words: _Words) -> None:
        """Where the frame begins is another place."""
        if code in (0x0C, 0x0D):
            self.rules.register = words.unsigned()
        if code in (0x0C, 0x0E):
            self.rules.offset = words.unsigned()
        elif code == 0x2E:  # bytes of arguments
            words.unsigned()
        elif code not in (0x0D, *_SKIPPED):
            raise Unreadable(f"instruction {code:#x}")

    def _restore(self, register: int) -> None:
        self.rules.saved.pop(register, None)
        if register in self._initial.saved:
            self.rules.saved[register] = self._initial.saved[register]


@dataclass(frozen=True, slots=True)
class CallFrame:
    """Of a thread: where its code goes on, where its stack ends, and the registers that are known."""

    address: int
    stack_pointer: int
    known: Mapping[int, int] = field(default_factory=dict)


def calling(frame: CallFrame, table: UnwindTable, memory: Memory, machine: str, *, returned: bool) -> CallFrame:
    """The frame that called this one; `returned`: it is itself one that called. Raises as `UnwindTable`."""
    registers = REGISTERS[machine]
    rules = table.rules(frame.address - returned)  # a call may be the last instruction of its function
    known = {**frame.known, registers.stack_pointer: frame.stack_pointer}
    if rules.register not in known:
        raise Unreadable("the frame begins at a register that is not known")
    begin = known[rules.register] + rules.offset
    saved = {register: _word(memory, begin + offset) for register, offset in rules.saved.items() if offset is not None}
    if registers.return_address not in saved:
        raise Unreadable("the return address is in a register")
    lost = {register for register, offset in rules.saved.items() if offset is None}
    kept = {register: value for register, value in {**known, **saved}.items() if register not in lost}
    return CallFrame(saved[registers.return_address], begin, kept)


def _word(memory: Memory, address: int) -> int:
    [found] = struct.unpack("<Q", memory(address, 8))
    return int(found)
