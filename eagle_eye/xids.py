"""Xid codes of NVIDIA's GPU driver with the vendor's advice (lookup only).

`XIDS` is the column "Resolution Bucket (Immediate Action)" of NVIDIA's Xid catalog for Ampere and newer
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as of October 2025). Severity follows from the bucket:
restart the application → SEV2; reset the GPU, restart the machine or follow a workflow that ends in either → SEV1,
since workers must leave the GPU first; ignore → informs. A code that the catalog calls unused, or that the table lacks,
informs only: on what we do not know we evict nobody. Two are weaker than their bucket, as nothing says that training is
hurt: the engines for video (who uses one gets an exception), and 156, a part that was retired.

Codes 144 to 150 (NVLink 5) and 154 say by themselves nothing of what is to be done: the rest of the driver's line does
(the catalog's sheet "XID 144-150 Decode", and nvmlDeviceGpuRecoveryAction_t for 154). That rest is their qualifier; without
it, as NVML's event tells them, they inform.
"""

import re
from dataclasses import dataclass, replace

from eagle_eye.types import Severity


@dataclass(frozen=True, slots=True)
class Xid:
    """What the vendor advises on one code."""

    code: int
    name: str
    advice: str
    severity: Severity
    qualifier: str = ""
    """Of codes 144 to 150: fatal or nonfatal; of 154: the driver's recovery action; else empty."""

    @property
    def of_the_program(self) -> bool:
        """What a program does to its own part of the GPU: it shows nothing against the GPU."""
        return self.code in OF_THE_PROGRAM

    @property
    def status(self) -> str:
        """As evidence names it: `xid 79`, `xid 145 nonfatal`; `xid_of_status` reads it."""
        return f"xid {self.code} {self.qualifier}".rstrip()


OF_THE_PROGRAM = frozenset({13, 31, 43, 45, 69})
"""Xids that NVIDIA's catalog puts down to the user's application: an illegal address or instruction, and the cleanup after it."""
NVLINK_5 = range(144, 151)
RECOVERY_ACTION = 154
_RESTART = "restart the application"
_RESET = "reset the GPU once no process uses it"
_NOTHING = "none at once; watch for others"
_NVLINK = "follow the NVLink workflow: check both ends of the link, reset both GPUs"
_SUPPORT = "contact support"
_UNQUALIFIED = "none without the rest of the driver's line; see the kernel's log"

_COPY_ENGINES = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
_VIDEO_ENGINES = (60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139)

XIDS = {
    xid.code: xid
    for xid in (
        Xid(8, "GPU stopped processing", _RESTART, Severity.SEV2),
        Xid(11, "invalid or corrupted push buffer", _RESTART, Severity.SEV2),
        Xid(13, "graphics engine exception", _RESTART, Severity.SEV2),
        Xid(25, "invalid push buffer", _RESTART, Severity.SEV2),
        Xid(31, "GPU memory page fault", _RESTART, Severity.SEV2),
        Xid(32, "invalid or corrupted push buffer", _RESTART, Severity.SEV2),
        Xid(33, "unused on Ampere and newer", _SUPPORT, Severity.INFO),
        Xid(37, "driver firmware error", _NOTHING, Severity.INFO),
        Xid(38, "driver firmware error", _NOTHING, Severity.INFO),
        *(Xid(code, "copy engine exception", _RESTART, Severity.SEV2) for code in _COPY_ENGINES),
        Xid(43, "GPU stopped processing a faulty channel", _NOTHING, Severity.INFO),
        Xid(44, "graphics engine fault during a context switch", _NOTHING, Severity.INFO),
        Xid(45, "cleanup after an earlier error or an ended process", "follow the Xid before it", Severity.INFO),
        Xid(46, "GPU stopped processing", _RESET, Severity.SEV1),
        Xid(48, "double-bit ECC error", "drain, then reset the GPU; run the field diagnosis", Severity.SEV1),
        Xid(54, "auxiliary power is not connected", "check cables and power", Severity.SEV1),
        *(Xid(code, "video or optical-flow engine exception", _RESTART, Severity.INFO) for code in _VIDEO_ENGINES),
        Xid(61, "micro-controller breakpoint; unused on Ampere and newer", _SUPPORT, Severity.INFO),
        Xid(62, "micro-controller halt", _RESET, Severity.SEV1),
        Xid(63, "memory row remapped", _NOTHING, Severity.INFO),
        Xid(64, "memory row could not be remapped", _RESET, Severity.SEV1),
        Xid(66, "illegal access by the driver", _NOTHING, Severity.INFO),
        Xid(67, "illegal access by the driver", _NOTHING, Severity.INFO),
        Xid(69, "graphics engine class error", _RESTART, Severity.SEV2),
        Xid(74, "NVLink error", _NVLINK, Severity.SEV1),
        Xid(78, "vGPU could not start", "update driver or firmware", Severity.INFO),
        Xid(79, "GPU has fallen off the bus", "restart the machine", Severity.SEV1),
        Xid(80, "corrupted data sent to the GPU", _RESTART, Severity.SEV2),
        Xid(92, "many single-bit ECC errors", _NOTHING, Severity.INFO),
        Xid(93, "wear limit of the InfoROM", _NOTHING, Severity.INFO),
        Xid(94, "contained memory error", _RESTART, Severity.SEV2),
        Xid(95, "uncontained memory error", _RESET, Severity.SEV1),
        Xid(106, "test message", _NOTHING, Severity.INFO),
        Xid(107, "test message", _NOTHING, Severity.INFO),
        Xid(109, "context switch timed out", _RESET, Severity.SEV1),
        Xid(110, "security fault", _RESET, Severity.SEV1),
        Xid(119, "GSP firmware does not answer", _RESET, Severity.SEV1),
        Xid(120, "GSP firmware error", _RESET, Severity.SEV1),
        Xid(121, "chip-to-chip link error", _NOTHING, Severity.INFO),
        Xid(136, "link training failed", _RESET, Severity.SEV1),
        Xid(137, "NVLink privilege error", _NOTHING, Severity.INFO),
        Xid(140, "unrecovered ECC error", _RESET, Severity.SEV1),
        Xid(141, "CUDA fast path error", _NOTHING, Severity.INFO),
        Xid(142, "video encoder error", _SUPPORT, Severity.INFO),
        Xid(143, "GPU initialisation error", _RESET, Severity.SEV1),
        Xid(144, "NVLink SAW error", _UNQUALIFIED, Severity.INFO),
        Xid(145, "NVLink RLW error", _UNQUALIFIED, Severity.INFO),
        Xid(146, "NVLink TLW error", _UNQUALIFIED, Severity.INFO),
        Xid(147, "NVLink TREX error", _UNQUALIFIED, Severity.INFO),
        Xid(148, "NVLink NVLPW_CTRL error", _UNQUALIFIED, Severity.INFO),
        Xid(149, "NVLink NETIR error", _UNQUALIFIED, Severity.INFO),
        Xid(150, "NVLink MSE error", _UNQUALIFIED, Severity.INFO),
        Xid(151, "key rotation error", "restart the virtual machine", Severity.SEV1),
        Xid(152, "DLA SMMU error", _NOTHING, Severity.INFO),
        Xid(153, "DLA timed out", _NOTHING, Severity.INFO),
        Xid(154, "recovery action changed", _UNQUALIFIED, Severity.INFO),
        Xid(155, "NVLink error reported by software", _RESET, Severity.SEV1),
        Xid(156, "resource retired", "reset the GPU when its job has ended", Severity.INFO),
        Xid(157, "resource could not be retired", _NOTHING, Severity.INFO),
        Xid(158, "GPU fatal timeout", _RESET, Severity.SEV1),
        Xid(159, "CHI non-data error", "check the process that uses unified memory", Severity.INFO),
        Xid(160, "channel retired", _NOTHING, Severity.INFO),
        Xid(161, "channel could not be retired", _NOTHING, Severity.INFO),
        Xid(162, "power smoothing works again", _NOTHING, Severity.INFO),
        Xid(163, "power smoothing is off", _NOTHING, Severity.INFO),
        Xid(164, "power smoothing: little lifetime is left", _NOTHING, Severity.INFO),
        Xid(165, "power smoothing: its lifetime is over", _NOTHING, Severity.INFO),
        Xid(166, "NVLink traffic before encryption was set up", _NOTHING, Severity.INFO),
        Xid(167, "PCIe fatal timeout", _NOTHING, Severity.INFO),
        Xid(168, "less GPU memory: errors in the write-protected region", _NOTHING, Severity.INFO),
        Xid(169, "micro-controller SEC2 halt", _NOTHING, Severity.INFO),
        Xid(170, "NVLink interrupt in confidential computing", _NOTHING, Severity.INFO),
        Xid(171, "uncorrectable DRAM error; details of Xid 48", "follow Xid 48", Severity.INFO),
        Xid(172, "uncorrectable SRAM error; details of Xid 48", "follow Xid 48", Severity.INFO),
    )
}
"""Codes 162 to 172 have no bucket in the catalog yet: they inform."""

_NVLINK_ADVICE = {
    "fatal": (_RESET, Severity.SEV1),
    "nonfatal": ("none at once; Xid 154 says if more is to be done", Severity.INFO),
}
RECOVERY_ACTIONS = {
    0: ("none", "none: the GPU has recovered", Severity.INFO),
    1: ("reset", "reset the GPU once no process uses it: the driver asks for it", Severity.SEV1),
    2: ("reboot", "restart the machine: the driver asks for it", Severity.SEV1),
    3: ("drain-p2p", "stop peer-to-peer traffic of the GPU, then let the driver look again", Severity.INFO),
    4: ("drain-and-reset", "drain the GPU and reset it: the driver asks for it", Severity.SEV1),
}
"""nvmlDeviceGpuRecoveryAction_t → qualifier, advice, severity."""
_RECOVERY_ADVICE = {qualifier: (advice, severity) for qualifier, advice, severity in RECOVERY_ACTIONS.values()}

_NVLINK_QUALIFIER = re.compile(r"\b(?:link )?(non-?fatal|fatal)\b", re.IGNORECASE)
_RECOVERY_CHANGE = re.compile(r"changed from 0x[0-9a-f]+ \([^)]*\) to 0x([0-9a-f]{1,8})\b", re.IGNORECASE)


def xid(code: int, qualifier: str = "") -> Xid:
    """The row of a code, with what its qualifier adds; an unknown qualifier adds nothing.

    >>> xid(145).severity, xid(145, "fatal").severity
    (<Severity.INFO: 'info'>, <Severity.SEV1: 'sev1'>)
    """
    row = XIDS.get(code, Xid(code, "not in the table", "look it up in the vendor's catalog", Severity.INFO))
    if code in NVLINK_5:
        advice = _NVLINK_ADVICE.get(qualifier)
    else:
        advice = _RECOVERY_ADVICE.get(qualifier) if code == RECOVERY_ACTION else None
    return row if advice is None else replace(row, advice=advice[0], severity=advice[1], qualifier=qualifier)


def qualifier_of(code: int, text: str) -> str:
    """The qualifier in the rest of a driver's line; '' where the code has none or the line does not say it.

    >>> qualifier_of(145, "RLW_REMAP Nonfatal XC0 i0 Link 0 (0x00000004 0x00000001)")
    'nonfatal'
    >>> qualifier_of(154, "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)")
    'drain-and-reset'
    """
    if code in NVLINK_5 and (word := _NVLINK_QUALIFIER.search(text)):
        return word[1].lower().replace("-", "")
    if code == RECOVERY_ACTION and (change := _RECOVERY_CHANGE.search(text)):
        return RECOVERY_ACTIONS.get(int(change[1], 16), ("",))[0]
    return ""


def xid_of_status(status: str) -> Xid | None:
    """What `Xid.status` wrote; None for any other text.

    >>> xid_of_status("xid 145 nonfatal").severity
    <Severity.INFO: 'info'>
    """
    words = status.split()
    if len(words) not in (2, 3) or words[0] != "xid" or not words[1].isdecimal():
        return None
    return xid(int(words[1][:9]), words[2] if len(words) == 3 else "")
