"""Where kernel messages can be read: /dev/kmsg, the systemd journal, a file.

Each gives the lines since the last call, never waits, and says in `position` where it stopped, so that the agent that is
started next goes on there.
"""

import errno
import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from eagle_eye.clock import Clock

from .file_tailer import FilePosition, FileTailer
from .log_prefix import MOST_RECORD, PROGRAM, journal_entry, kernel_line, kmsg_record

KMSG = Path("/dev/kmsg")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
JOURNAL_S = 2.0
"""Seconds between two calls of journalctl, each of which is a process."""
MOST_RECORDS = 2000
"""Records taken at once; the rest waits for the next call."""
MOST_LINES_BYTES = 1 << 20
DRIVER = "NVRM: "


class KernelLine(NamedTuple):
    """One message of the kernel."""

    time: float
    """Seconds since 1970 by this node's clock; NaN: unknown."""
    text: str
    written_by: str = ""
    """The program that wrote it; '' = the kernel, or the fabric manager."""


class SourcePosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where a source stopped; each uses what it needs of it."""

    boot: str = ""
    sequence: int = -1
    cursor: str = ""
    time: float = 0.0
    """Of the last entry, in seconds since 1970: where to begin anew if nothing can be read behind the cursor; 0: unknown."""
    file: FilePosition = FilePosition()


class KernelSource(Protocol):
    """What the collector needs of a source. `lost`: records that were overwritten or passed over before they were read."""

    @property
    def name(self) -> str: ...
    @property
    def lost(self) -> int: ...
    @property
    def position(self) -> SourcePosition: ...
    def read(self) -> list[KernelLine]: ...
    def close(self) -> None: ...


class KmsgSource:
    """/dev/kmsg. The first start begins with what is written from then on; a later one where the last one stopped, after a reboot with all of the new boot.

    The kernel's buffer bounds that, and each call takes MOST_RECORDS of it.
    """

    def __init__(self, clock: Clock, position: SourcePosition, open_device: Callable[[], int] | None = None) -> None:
        """`open_device` returns a descriptor that does not wait. Raises OSError: usually EPERM, without CAP_SYSLOG where kernel.dmesg_restrict is 1."""
        self.name, self.lost = str(KMSG), 0
        self._clock = clock
        self._boot = _boot_id()
        self._sequence = position.sequence if position.boot == self._boot else -1
        self._from_here = self._sequence < 0 and position.boot in ("", self._boot)
        """What is older than this source is not for it."""
        self._device = open_device() if open_device else os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if self._from_here:
            _seek_end(self._device)

    @property
    def position(self) -> SourcePosition:
        return SourcePosition(boot=self._boot, sequence=self._sequence)

    def read(self) -> list[KernelLine]:
        """Raises OSError if the device is gone."""
        started = self._clock.now() - self._clock.monotonic()
        lines: list[KernelLine] = []
        for _ in range(MOST_RECORDS):
            data = self._record()
            if data is None:
                break
            record = kmsg_record(data)
            if record is None or record.sequence <= self._sequence:
                continue
            if self._sequence >= 0 or not self._from_here:  # a boot begins with number 0
                self.lost += record.sequence - self._sequence - 1
            self._sequence = record.sequence
            lines.append(KernelLine(started + record.since_boot_s, record.text, "" if record.of_kernel else PROGRAM))
        return lines

    def close(self) -> None:
        os.close(self._device)

    def _record(self) -> bytes | None:
        while True:
            try:
                return os.read(self._device, MOST_RECORD) or None
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno != errno.EPIPE:  # overwritten: the next read gives the oldest that is left
                    raise


class JournalSource:
    """The systemd journal, through journalctl: a member of the group systemd-journal may read it without being root."""

    def __init__(self, clock: Clock, position: SourcePosition, command: tuple[str, ...] = ("journalctl",)) -> None:
        """The first start begins with what is written from then on; a position without a cursor begins behind its time. Raises OSError where journalctl is missing or may not read."""
        self.name, self.lost = "journald", 0
        self._clock, self._command, self._cursor, self._time = clock, command, position.cursor, position.time
        self._asked_at = -math.inf
        if not self._cursor and not self._time:
            self._take(self._entries("--lines=1"))

    @property
    def position(self) -> SourcePosition:
        return SourcePosition(cursor=self._cursor, time=self._time)

    def read(self) -> list[KernelLine]:
        """Raises OSError where journalctl fails or does not answer, as where the place at which the last call stopped was deleted."""
        if self._clock.monotonic() - self._asked_at < JOURNAL_S:
            return []
        self._asked_at = self._clock.monotonic()
        return self._take(self._entries(*self._begin(), f"--lines={MOST_RECORDS}")[:MOST_RECORDS])

    def close(self) -> None:
        """Nothing is held open."""

    def _begin(self) -> tuple[str, ...]:
        """Behind a cursor `--lines` counts from there; else it takes the newest."""
        if self._cursor:
            return (f"--after-cursor={self._cursor}",)
        return (f"--since=@{self._time + 1e-6:.6f}",) if self._time else ()

    def _entries(self, *begin: str) -> list[bytes]:
        return _output((*self._command, "--output=json", "--no-pager", "--all", *begin, "_TRANSPORT=kernel")).splitlines()

    def _take(self, entries: list[bytes]) -> list[KernelLine]:
        lines = []
        for data in entries:
            entry = journal_entry(data)
            if entry is None:
                self.lost += 1
                continue
            self._cursor, self._time = entry.cursor or self._cursor, entry.time if entry.time > 0.0 else self._time
            lines.append(KernelLine(entry.time, entry.text, entry.written_by))
        return lines


class FileSource:
    """A file: kern.log of rsyslog, the log of all programs (syslog, messages), the fabric manager's, or a copy."""

    def __init__(self, path: Path, clock: Clock, position: SourcePosition) -> None:
        self.name = str(path)
        self._tailer = FileTailer(path, position.file if position.file.inode else None)
        self._clock = clock

    @property
    def lost(self) -> int:
        return self._tailer.skipped_bytes

    @property
    def position(self) -> SourcePosition:
        return SourcePosition(file=self._tailer.position)

    def read(self) -> list[KernelLine]:
        """Raises OSError where the file cannot be read."""
        data = self._tailer.read(MOST_LINES_BYTES)
        boot_time = self._clock.now() - self._clock.monotonic()
        found = (kernel_line(line, boot_time) for line in _joined(data.decode(errors="replace").splitlines()))
        return [KernelLine(*line) for line in found]

    def close(self) -> None:
        self._tailer.close()


def _joined(lines: list[str]) -> list[str]:
    """Further lines of one message of the driver, which dmesg and journalctl indent, behind its first."""
    whole: list[str] = []
    for line in lines:
        if whole and line[:1] in (" ", "\t") and line.lstrip().startswith(DRIVER):
            whole[-1] = f"{whole[-1]} {line.strip()}"
        else:
            whole.append(line)
    return whole


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _seek_end(device: int) -> None:
    try:
        os.lseek(device, 0, os.SEEK_END)
    except OSError as error:
        if error.errno != errno.ESPIPE:
            raise


def _output(command: tuple[str, ...]) -> bytes:
    try:
        done = subprocess.run(command, capture_output=True, timeout=5.0, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, "it did not answer within 5 s", command[0]) from error
    if done.returncode:
        raise OSError(errno.EIO, done.stderr.decode(errors="replace").strip()[-200:] or f"exit code {done.returncode}", command[0])
    return done.stdout
