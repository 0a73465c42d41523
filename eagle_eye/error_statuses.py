"""Table of error statuses with their severities (lookup only); Xid codes are in xids.py.

`STATUSES` is Unicron's table 1 (arXiv 2401.00134): error status → the in-band method that finds it → the weakest
repair that can help. We added the patterns that recognise a status in an exception's text, and the rows marked so.

An eviction needs proof, and words are a hint: a script may say "NVLink" of its own accord. A row that isolates a node
is recognised only by the exact text with which CUDA names broken hardware (cudaGetErrorString: cudaErrorECCUncorrectable,
214, and cudaErrorNvlinkUncorrectable, 220; read from libcudart 13.0, named in the CUDA Runtime API, "Data types used by
CUDA Runtime", docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html), at the beginning of an exception of the
type and with the prefix that torch, Triton or NCCL give it; or by NVML's NVML_ERROR_GPU_IS_LOST from pynvml
(docs.nvidia.com/deploy/nvml-api, nvmlReturn_t). Nothing that reaches Python says "invalid DMA mapping" of hardware
alone; that, and a link that fails in another way, is seen by its Xid.

A symptom's words prove as little beside the type of an exception by which nobody tells of a network: `KeyError: 'infiniband'`. Where the exception
was raised tells more (exception_status.py).
"""

import builtins
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from eagle_eye.types import Severity


class DetectionMethod(StrEnum):
    """Unicron's four in-band methods; the last one is ours."""

    NODE_HEALTH = "node health monitoring"
    PROCESS = "process supervision"
    EXCEPTION = "exception propagation"
    STATISTICS = "online statistical monitoring"
    DRIVER = "driver's log"


@dataclass(frozen=True, slots=True)
class ErrorStatus:
    """One row of the table."""

    name: str
    method: DetectionMethod
    severity: Severity
    pattern: str = ""
    """Regular expression, case ignored, over "type: message"; '' = not recognised by an exception's text. A stronger severity is asked first, then the upper row."""
    symptom: bool = False
    """Also what a healthy worker sees when a peer dies or hangs: the worker that reports it is no culprit by that."""


_MODULE = r"\A(?:[\w.]+\.)?"
_CUDA_SAYS = (
    _MODULE + r"(?:(?:RuntimeError|AcceleratorError): (?:CUDA (?:driver )?error|Triton Error \[CUDA\]): |CudaError: "
    r"|DistBackendError: NCCL error[\s\S]*Last error:\s*Cuda failure (?:\d+ )?')"
)
"""As torch, Triton and NCCL pass on what CUDA says, type first: nothing stands before it but the module of the type."""

STATUSES = (
    ErrorStatus("lost connection", DetectionMethod.NODE_HEALTH, Severity.SEV1),
    ErrorStatus("exited abnormally", DetectionMethod.PROCESS, Severity.SEV2),
    ErrorStatus("killed", DetectionMethod.PROCESS, Severity.SEV2),  # ours: by a signal from outside
    ErrorStatus(
        "connection refused or reset",
        DetectionMethod.PROCESS,
        Severity.SEV3,
        r"connection (was |is )?(likely )?(closed|reset|refused|aborted)|broken ?pipe|reseterror|refusederror"
        r"|remote process exited|ncclremoteerror|remote server shutdown|failed to recv|connectfullmesh"
        r"|communicator (was|is) aborted|process group (was|is) aborted|distnetworkerror",
        symptom=True,
    ),
    ErrorStatus(
        "nccl timeout",
        DetectionMethod.STATISTICS,
        Severity.SEV3,
        r"collective operation timeout|timed out waiting \d+ ?ms|operation timed out|wait timeout|watchdog"
        r"|failed to pass monitoredbarrier|application timeout|timeout\(ms\)=|store.*timeout|distStoreError",
        symptom=True,
    ),
    ErrorStatus("ecc error", DetectionMethod.EXCEPTION, Severity.SEV1, _CUDA_SAYS + "uncorrectable ECC error encountered"),
    ErrorStatus("nvlink error", DetectionMethod.EXCEPTION, Severity.SEV1, _CUDA_SAYS + "uncorrectable NVLink error detected during the execution"),
    ErrorStatus("invalid dma mapping", DetectionMethod.EXCEPTION, Severity.SEV1),
    ErrorStatus("gpu driver error", DetectionMethod.EXCEPTION, Severity.SEV1, _MODULE + r"NVMLError(?:_\w+)?: .*(?:gpu is lost|fallen off the bus)"),
    # ours: Unicron's "other software errors", kept apart because neither a restart nor another node makes room
    ErrorStatus(
        "storage error",
        DetectionMethod.EXCEPTION,
        Severity.SEV2,
        r"no space left on device|disk quota exceeded|read-only file system|stale (nfs )?file handle|input/output error|file too large"
        r"|structure needs cleaning|no medium found|\[errno (28|122|30|116|5|27|121|117|74|123)\]"
        # with a file, which ends Python's words of it; without one these are a socket's (storage_failure.STORAGE_ERRNOS_OF_A_PATH)
        r"|\[errno (67|100|101|103|104|107|108|110|111|112|113|127)\] [^:'\"\n]+: b?['\"](?![\w+.-]+://)"
        r"|pytorchstreamwriter failed writing|inline_container\.cc.{1,20}unexpected pos",  # torch.save without room
    ),
    ErrorStatus("illegal memory access", DetectionMethod.EXCEPTION, Severity.SEV2, r"illegal memory access|misaligned address"),
    # ours: Unicron's "other software errors", kept apart because a restart alone repeats it
    ErrorStatus("out of memory", DetectionMethod.EXCEPTION, Severity.SEV2, r"out ?of ?memory|memoryerror|cannot allocate memory"),
    # what no row knows, and what CUDA says of a program: not built for this GPU, launched wrongly, or used while the interpreter ends
    ErrorStatus(
        "other software error",
        DetectionMethod.EXCEPTION,
        Severity.SEV2,
        r"cuda (runtime |driver )?error: (named symbol not found|device kernel image is invalid|no kernel image is available"
        r"|invalid device function|invalid configuration argument|driver shutting down)",
    ),
    # with what may be the node's: its driver, its GPUs or its environment; moving the rank shows whose it is
    ErrorStatus(
        "cuda error",
        DetectionMethod.EXCEPTION,
        Severity.SEV2,
        r"cuda (runtime |driver )?error|cudaerror|acceleratorerror|cublas_status|cudnn_status|device-side assert"
        r"|unspecified launch failure|cudagetdevicecount|no cuda-capable device|driver/library version mismatch|driver version is insufficient"
        r"|nvmlerror\w*: (driver not loaded|rm has detected|gpu requires)|gpu is lost|fallen off the bus",
    ),
    ErrorStatus(
        "other network error",
        DetectionMethod.EXCEPTION,
        Severity.SEV3,
        r"no route to host|connection timed out|timed out connecting|network is (unreachable|down)|host is (unreachable|down)|name or service not known"
        r"|temporary failure in name resolution|\bibv_|infiniband|socket ?timeout|ncclsystemerror|ncclinternalerror",
        symptom=True,
    ),
    ErrorStatus("link flapping", DetectionMethod.STATISTICS, Severity.SEV3),
    ErrorStatus("task hang", DetectionMethod.STATISTICS, Severity.SEV2),
)

BY_NAME = {status.name: status for status in STATUSES}
_ORDERED = tuple((re.compile(status.pattern, re.IGNORECASE), status) for status in STATUSES if status.pattern)
# what the hardware says is stronger than what the network says afterwards
_BY_STRENGTH = sorted(_ORDERED, key=lambda pair: (pair[1].severity, pair[1].symptom))

DIST_ERROR = re.compile(r"(?:\A|[.:])Dist(?:Backend|Network|Store|QueueEmpty)?Error\Z")
"""Types of torch.distributed, in Python and in C++."""
_EXCHANGES = frozenset({"torch", "eagle_eye", "socket", "builtins"})
"""Packages whose exceptions may tell of a peer; those of a client of some service, such as requests, tell of that."""
_TYPE = re.compile(r"\s*(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?=:\s|\s*\Z)")
"""Before the message, in the last line of a traceback."""


def may_tell_of_a_peer(type_name: str) -> bool:
    """Not a builtin by which neither the system nor torch tells of a network, nor the type of another library.

    >>> may_tell_of_a_peer("ConnectionResetError"), may_tell_of_a_peer("KeyError"), may_tell_of_a_peer("requests.exceptions.ConnectionError")
    (True, False, False)
    """
    module, _, name = type_name.rpartition(".")
    if DIST_ERROR.search(type_name):
        return True
    if module and module.partition(".")[0] not in _EXCHANGES:
        return False
    builtin: Any = getattr(builtins, name, None)
    of_python = isinstance(builtin, type) and issubclass(builtin, BaseException)
    return not of_python or builtin in (RuntimeError, Exception, BaseException) or issubclass(builtin, OSError)


def classify(text: str) -> ErrorStatus:
    """The status that an exception's "type: message" tells; "other software error" if it tells none.

    >>> classify("RuntimeError: CUDA error: uncorrectable ECC error encountered").name
    'ecc error'
    >>> classify("ValueError: too many values").severity
    <Severity.SEV2: 'sev2'>
    """
    for pattern, status in _BY_STRENGTH:
        if pattern.search(text) if not status.symptom else any(pattern.search(line) for line in _lines_of_peers(text)):
            return status
    return BY_NAME["other software error"]


def _lines_of_peers(text: str) -> list[str]:
    """Without those that begin with a type that tells of no peer."""
    return [line for line in text.splitlines() if (found := _TYPE.match(line)) is None or may_tell_of_a_peer(found["type"])]


def stronger(statuses: Iterable[ErrorStatus]) -> ErrorStatus:
    """Of what several exceptions tell the one that explains the others; "other software error" if none tells anything.

    >>> stronger((BY_NAME["nccl timeout"], BY_NAME["cuda error"], BY_NAME["other software error"])).name
    'cuda error'
    """
    telling = (status for status in statuses if status.name != "other software error")
    return min(telling, key=lambda status: (status.severity, status.symptom), default=BY_NAME["other software error"])
