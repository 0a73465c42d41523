"""The prefix of a log line, in each form in which kernel messages are kept, and the time in it.

>>> kernel_line("[   12.500000] NVRM: loaded", boot_time=100.0)
LogLine(time=112.5, text='NVRM: loaded', written_by='')
>>> kernel_line("2025-01-21T04:41:44.283+00:00 gpu-7 kernel: [  9.1] NVRM: loaded", boot_time=0.0).text
'NVRM: loaded'
>>> kernel_line('Jul  3 04:05:06 gpu-7 watch[99]: saw "NVRM: Xid (PCI:0000:9b:00): 79"', boot_time=0.0).written_by
'watch'
"""

import json
import math
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

MOST_RECORD = 8192
"""Bytes of one record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg)."""
_KERN = 0
"""The facility of what the kernel itself writes; a program that writes into /dev/kmsg gets another one."""
PROGRAM = "a program"
"""Who wrote what the kernel did not, where the line does not name it."""
_SINCE_BOOT = re.compile(r"\A(?:<(\d{1,4})>)?\[\s*(\d+\.\d+)\]\s?")
_CALENDAR = re.compile(r"\A\[(\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4})\]\s?")
_FABRIC = re.compile(r"\A\[(\w{3} \d\d \d{4} \d\d:\d\d:\d\d)\]\s?")
_DMESG_ISO = re.compile(r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6}[+-]\d\d:?\d\d\s")
"""`dmesg --time-format iso`: only the kernel's text follows, no host and no sender."""
_LEVELS = re.compile(r"\A(kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d)\s*:\s*\w+\s*:\s*")
_ISO = re.compile(r"\A(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?\s+")
_SYSLOG = re.compile(r"\A\w{3} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?\s+")
_SENDER = re.compile(r"\A(?:\S+ )?kernel(?:\[\d+\])?: ?")
_TAG = re.compile(r"\A\S+ (?:\w+\.\w+ )?(?:([\w./@+()-]+)(?:\[\d+\])?|([^:\[\"']{1,64})\[\d+\]): ")
"""Host, perhaps facility and level (BusyBox), and sender of a line of syslog."""
_PROCESS = re.compile(r"\A([\w./@+()-]+)\[\d+\]: (?!segfault at |bad frame in |unhandled |vsyscall )")
"""What a program writes into the kernel's log begins so; what the kernel says of a process may, too."""
_OWN_TAGS = re.compile(r"kernel|NVRM|nvidia-nvswitch\d*|nv-fabricmanager|nvidia-fabricmanager")
"""Senders whose lines are their own: the kernel, its drivers where a relay takes their first word for the sender, and the fabric manager."""
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


class LogLine(NamedTuple):
    """One line without its prefix."""

    time: float
    """Seconds since 1970; NaN: the line does not say, or not in which year or zone."""
    text: str
    written_by: str = ""
    """The program that wrote it, and not the kernel, a driver or the fabric manager; '' = one of these, or it is not said."""


class KmsgRecord(NamedTuple):
    """One record of /dev/kmsg."""

    sequence: int
    since_boot_s: float
    of_kernel: bool
    """The kernel wrote it, and not a program."""
    text: str


def kmsg_record(data: bytes) -> KmsgRecord | None:
    """A record as one read of /dev/kmsg returns it: `priority,sequence,microseconds,flags;text` and lines of its device; None if it is none.

    >>> kmsg_record(b"4,12,1500000,-;NVRM: loaded\\n SUBSYSTEM=pci\\n")
    KmsgRecord(sequence=12, since_boot_s=1.5, of_kernel=True, text='NVRM: loaded')
    """
    head, found, body = data.partition(b";")
    fields = head.split(b",")
    if not found or len(fields) < 4 or not all(field.isdigit() and len(field) < 20 for field in fields[:3]):
        return None
    priority, sequence, microseconds = (int(field) for field in fields[:3])
    text = _ESCAPE.sub(_unescaped, body.partition(b"\n")[0].decode(errors="replace"))
    return KmsgRecord(sequence, microseconds / 1e6, priority >> 3 == _KERN, text)


class JournalEntry(NamedTuple):
    """One line of `journalctl --output=json`."""

    time: float
    """Seconds since 1970; NaN: not told."""
    cursor: str
    text: str
    written_by: str = ""
    """As in a LogLine."""


def journal_entry(line: bytes) -> JournalEntry | None:
    """None for what is no JSON object.

    >>> journal_entry(b'{"__REALTIME_TIMESTAMP": "1500000", "MESSAGE": [78, 86]}')
    JournalEntry(time=1.5, cursor='', text='NV', written_by='')
    """
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    stamp, message = entry.get("__REALTIME_TIMESTAMP"), entry.get("MESSAGE")
    time = int(stamp) / 1e6 if isinstance(stamp, str) and stamp.isdecimal() and len(stamp) < 20 else math.nan
    if isinstance(message, list):  # of bytes, where it is no UTF-8
        message = bytes(byte for byte in message if isinstance(byte, int) and 0 <= byte < 256).decode(errors="replace")
    return JournalEntry(time, str(entry.get("__CURSOR", "")), message if isinstance(message, str) else "", _journal_sender(entry))


def _journal_sender(entry: dict[str, Any]) -> str:
    """What a program writes into the kernel's log has the kernel's transport, too, but a facility of its own."""
    sender = str(entry.get("SYSLOG_IDENTIFIER", "kernel"))
    if _OWN_TAGS.fullmatch(sender) and (sender != "kernel" or str(entry.get("_TRANSPORT", "kernel")) == "kernel"):
        return ""
    if entry.get("_TRANSPORT") == "kernel" and str(entry.get("SYSLOG_FACILITY", _KERN)) == str(_KERN):
        return ""
    return PROGRAM if sender == "kernel" else sender


def kernel_line(line: str, boot_time: float) -> LogLine:
    """A line of a file: what dmesg, rsyslog, journalctl (also as JSON), the fabric manager or a copy of /dev/kmsg writes. A text without a known prefix stays as it is.

    `boot_time`: when this machine was started, for lines that count from there; NaN if it was another.
    """
    if record := kmsg_record(line.encode()):
        return LogLine(boot_time + record.since_boot_s, record.text, "" if record.of_kernel else PROGRAM)
    if line.startswith("{") and (entry := journal_entry(line.encode())) and entry.text:
        return LogLine(entry.time, entry.text, entry.written_by)
    level = _LEVELS.match(line)
    written_by = PROGRAM if level and level[1] != "kern" else ""
    time, text, has_sender = math.nan, line[level.end() :] if level else line, False
    for pattern, read in _PREFIXES:
        if found := pattern.match(text):
            has_sender = pattern in (_ISO, _SYSLOG) and not _DMESG_ISO.match(text)
            time, text = read(found), text[found.end() :]
            break
    if has_sender and not _SENDER.match(text) and (tag := _TAG.match(text)):
        sender = tag[1] or tag[2]
        return LogLine(time, text, written_by if _OWN_TAGS.fullmatch(sender) else sender)
    text = _SENDER.sub("", text, count=1)
    if found := _SINCE_BOOT.match(text):
        text = text[found.end() :]
        time = boot_time + float(found[2]) if math.isnan(time) else time
        written_by = PROGRAM if found[1] and int(found[1]) >> 3 != _KERN else written_by
    text = _SENDER.sub("", text, count=1)
    if (process := _PROCESS.match(text)) and not _OWN_TAGS.fullmatch(process[1]):
        written_by = process[1]
    return LogLine(time, text, written_by)


def _iso(found: re.Match[str]) -> float:
    zone = (found[3] or "").replace("Z", "+00:00")
    if not zone:
        return math.nan
    moment = _parsed(lambda: datetime.fromisoformat(found[1] + zone))
    return moment + float(f"0.{found[2] or 0}")


def _parsed(parse: Callable[[], datetime]) -> float:
    try:
        return parse().timestamp()
    except (ValueError, OverflowError):  # such as February 30th
        return math.nan


def _calendar(found: re.Match[str]) -> float:
    """`dmesg -T`: local time, whose zone it does not say; on nodes that is UTC."""
    return _parsed(lambda: datetime.strptime(found[1], "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC))


def _fabric(found: re.Match[str]) -> float:
    return _parsed(lambda: datetime.strptime(found[1], "%b %d %Y %H:%M:%S").replace(tzinfo=UTC))


_PREFIXES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], float]], ...] = (
    (_ISO, _iso),
    (_CALENDAR, _calendar),
    (_FABRIC, _fabric),
    (_SYSLOG, lambda _found: math.nan),  # it says no year
)


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 16))
