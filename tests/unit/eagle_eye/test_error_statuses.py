"""The tables: Unicron's statuses, and the vendor's advice on Xids."""

import pytest

from eagle_eye.error_statuses import STATUSES, DetectionMethod, classify
from eagle_eye.types import Severity

# Unicron, table 1
TABLE = {
    "lost connection": (DetectionMethod.NODE_HEALTH, Severity.SEV1),
    "exited abnormally": (DetectionMethod.PROCESS, Severity.SEV2),
    "connection refused or reset": (DetectionMethod.PROCESS, Severity.SEV3),
    "ecc error": (DetectionMethod.EXCEPTION, Severity.SEV1),
    "invalid dma mapping": (DetectionMethod.EXCEPTION, Severity.SEV1),
    "nvlink error": (DetectionMethod.EXCEPTION, Severity.SEV1),
    "gpu driver error": (DetectionMethod.EXCEPTION, Severity.SEV1),
    "illegal memory access": (DetectionMethod.EXCEPTION, Severity.SEV2),
    "cuda error": (DetectionMethod.EXCEPTION, Severity.SEV2),
    "other software error": (DetectionMethod.EXCEPTION, Severity.SEV2),
    "other network error": (DetectionMethod.EXCEPTION, Severity.SEV3),
    "nccl timeout": (DetectionMethod.STATISTICS, Severity.SEV3),
    "link flapping": (DetectionMethod.STATISTICS, Severity.SEV3),
    "task hang": (DetectionMethod.STATISTICS, Severity.SEV2),
}


def test_every_row_of_unicrons_table_is_there() -> None:
    ours = {status.name: (status.method, status.severity) for status in STATUSES}
    assert {name: ours.get(name) for name in TABLE} == TABLE


NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled cuda error, NCCL version 2.21.5\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure '{}'"
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4", "connection refused or reset"),
        ("RuntimeError: [pair.cc:537] Read error [127.0.0.1]:4: Connection reset by peer", "connection refused or reset"),
        ("ConnectionRefusedError: [Errno 111] Connection refused", "connection refused or reset"),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", "connection refused or reset"),
        ("RuntimeError: [unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete", "nccl timeout"),
        ("torch.distributed.DistStoreError: wait timeout after 300000ms", "nccl timeout"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal memory access"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "ecc error"),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", "nvlink error"),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", "cuda error"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "out of memory"),
        ("AcceleratorError: CUDA error: uncorrectable ECC error encountered\nSearch for `cudaErrorECCUncorrectable'", "ecc error"),
        ("RuntimeError: CUDA driver error: uncorrectable ECC error encountered", "ecc error"),
        ("RuntimeError: Triton Error [CUDA]: uncorrectable ECC error encountered", "ecc error"),
        ("torch.cuda.CudaError: uncorrectable ECC error encountered (214)", "ecc error"),
        (NCCL.format("uncorrectable ECC error encountered"), "ecc error"),
        (NCCL.format("uncorrectable NVLink error detected during the execution"), "nvlink error"),
        ("NVMLError_GpuIsLost: GPU is lost", "gpu driver error"),
        ("pynvml.NVMLError: The GPU has fallen off the bus or has otherwise become inaccessible", "gpu driver error"),
        ("OSError: [Errno 113] No route to host", "other network error"),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [10.78.0.1]:60302: Connection timed out. This is typically caused by a remote worker hanging", "other network error"),
        ("TimeoutError: [Errno 110] Connection timed out", "other network error"),
        ("ValueError: the column 'connection timed out' is missing", "other software error"),
        ("psycopg.OperationalError: connection timed out", "other software error"),
        ("TimeoutError: [Errno 110] Connection timed out: '/data/shard-1'", "storage error"),
        ("OSError: [Errno 28] No space left on device: '/ckpt/step-3.pt'", "storage error"),
        ("OSError: [Errno 30] Read-only file system: '/ckpt'", "storage error"),
        ("OSError: [Errno 122] Disk quota exceeded", "storage error"),
        ("OSError: [Errno 116] Stale file handle", "storage error"),
        ("OSError: [Errno 5] Input/output error", "storage error"),
        ("RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534", "storage error"),  # torch.save on a full disk
        ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", "other software error"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data.bin'", "other software error"),
        ("PermissionError: [Errno 13] Permission denied: '/ckpt'", "other software error"),
        ("ValueError: too many values to unpack", "other software error"),
    ],
)
def test_exceptions_are_named(text: str, name: str) -> None:
    assert classify(text).name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RuntimeError: this model needs NVLink", "other software error"),
        ("AssertionError: NVSwitch not found, falling back", "other software error"),
        ("ValueError: uncorrectable NVLink error detected during the execution: unknown word", "other software error"),
        ("KeyError: 'nvlink'", "other software error"),
        ("RuntimeError: invalid DMA mapping", "other software error"),
        ("RuntimeError: DMA mapping table of the data loader is empty", "other software error"),
        ("ValueError: ECC error column is missing in the telemetry data set", "other software error"),
        ("RuntimeError: double-bit ECC errors are counted per GPU", "other software error"),
        ("ValueError: CUDA error: uncorrectable ECC error encountered", "cuda error"),
        ("RuntimeError: node-7 said: CUDA error: uncorrectable ECC error encountered", "cuda error"),
        ("RemoteError: of another node:\nRuntimeError: CUDA error: uncorrectable ECC error encountered", "cuda error"),
        ("MyRuntimeError: CUDA error: uncorrectable ECC error encountered", "cuda error"),
        ("RuntimeError: file system not yet initialized", "other software error"),
        ("DatabaseError: driver not loaded", "other software error"),
        ("NVMLError_InvalidArgument: Invalid Argument", "other software error"),
        ("RuntimeError: GPU is lost", "cuda error"),
        ("RuntimeError: CUDA driver error: unknown error", "cuda error"),
    ],
)
def test_words_about_hardware_that_nobody_but_the_script_says_prove_nothing(text: str, name: str) -> None:
    status = classify(text)
    assert (status.name, status.severity) == (name, Severity.SEV2)


@pytest.mark.parametrize("prefix", ["CUDA error: ", "CUDA driver error: "])
@pytest.mark.parametrize(
    "words",
    [
        "named symbol not found",
        "device kernel image is invalid",
        "no kernel image is available for execution on the device",
        "invalid device function",
        "invalid configuration argument",
        "driver shutting down",
    ],
)
def test_what_the_driver_says_of_a_program_is_the_programs(prefix: str, words: str) -> None:
    assert classify(f"torch.AcceleratorError: {prefix}{words}").name == "other software error"


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: no CUDA-capable device is detected",
        "RuntimeError: CUDA driver error: no CUDA-capable device is detected",
        "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        "RuntimeError: CUDA error: system has unsupported display driver / cuda driver combination",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
        "NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch.",
        "NVMLError: Driver/library version mismatch",
        "NVMLError_DriverNotLoaded: Driver Not Loaded",
    ],
)
def test_a_wrong_installation_or_environment_may_be_the_nodes_and_words_do_not_prove_it(text: str) -> None:
    status = classify(text)
    assert (status.name, status.severity) == ("cuda error", Severity.SEV2)


def test_a_broken_connection_is_a_symptom_and_a_broken_gpu_is_not() -> None:
    assert classify("RuntimeError: Connection reset by peer").symptom
    assert not classify("RuntimeError: CUDA error: uncorrectable ECC error encountered").symptom
