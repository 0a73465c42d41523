"""What a line of the kernel's log says: component, code, device and remedy, by the tables in kernel/.

>>> table = KernelMessages()
>>> message = table.read("NVRM: Xid (PCI:0000:9b:00): 79, pid=12, name=python, GPU has fallen off the bus.")
>>> message.component, message.code, message.number, message.pci, message.pid
('gpu', 'xid', 79, '0000:9b:00.0', 12)
>>> table.read("nvidia-nvswitch2: open (major=510)") is None
True
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eagle_eye.xids import qualifier_of

from .message_table import MatchedLine, MessageTable

COMPONENTS = (
    "gpu", "nvswitch", "memory", "cpu", "pcie", "network", "disk", "filesystem", "network_filesystem", "process", "kernel",
)  # fmt: skip
TABLES = ("kernel/gpu.toml", "kernel/host.toml", "kernel/network.toml", "kernel/storage.toml")
_PROCESS = re.compile(r"pid='?(\d{1,9})'?(?:, name=([^,]*))?")
_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)
_SXID_FATAL = re.compile(r"\b(non-?fatal|fatal)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMessage:
    """One line of the kernel's log that a row of the table knows."""

    component: str
    code: str
    level: Literal["error", "notice"]
    advice: str
    text: str
    """The line without its prefix."""
    number: int = -1
    """The code of an Xid or SXid."""
    qualifier: str = ""
    """What the rest of an Xid or SXid says: fatal, nonfatal, or the driver's recovery action."""
    device: str = ""
    pci: str = ""
    """As eagle_eye.gpu_devices writes addresses, such as 0000:65:00.0."""
    pid: int = 0
    """Of the kernel's first pid namespace; 0: none is named."""
    process: str = ""
    detail: str = ""
    own: bool = False
    """By a row of the user's own."""


class KernelMessages:
    """The tables in kernel/, ready to read lines."""

    def __init__(self, own: Path | None = None) -> None:
        """`own`: a file with rows of the user's own. Raises ConfigError, with file and row."""
        self._table = MessageTable.load(TABLES, COMPONENTS, own)

    def read(self, text: str) -> KernelMessage | None:
        """What a line without its prefix says; None where no row knows it."""
        line = self._table.match(text.replace("\n", " "))  # one message of the driver may have several lines
        return _message(line) if line is not None else None


def pci_address_of(text: str) -> str:
    """An address as the kernel, NVML or the fabric manager writes it, in one form; '' if it is none.

    >>> pci_address_of("00000000:86:00.0"), pci_address_of("9B:00"), pci_address_of("garbage")
    ('0000:86:00.0', '0000:9b:00.0', '')
    """
    found = _PCI.fullmatch(text.strip())
    if found is None:
        return ""
    domain, bus, device, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or 0}".lower()


def _message(line: MatchedLine) -> KernelMessage:
    row, found = line.row, line.groups
    detail = found.get("detail", "").strip(" ,")
    number = int(found["number"]) if found.get("number") else -1
    named = _PROCESS.search(detail)
    pid = found.get("pid") or (named[1] if named else "")
    process = found.get("process") or (named[2] or "" if named else "")
    return KernelMessage(
        component=row.component,
        code=row.code,
        level=row.level,
        advice=row.advice,
        text=line.text,
        number=number,
        qualifier=_qualifier(row.code, number, detail),
        device=found.get("device", ""),
        pci=pci_address_of(found.get("pci", "")),
        pid=int(pid) if pid.isdecimal() and len(pid) < 10 else 0,
        process=process.strip(),
        detail=detail,
        own=line.own,
    )


def _qualifier(code: str, number: int, detail: str) -> str:
    if code == "sxid":
        found = _SXID_FATAL.search(detail)
        return found[1].lower().replace("-", "") if found else ""
    return qualifier_of(number, detail) if code == "xid" else ""
