"""Lines that libraries in C, JAX, ROCm and the C library print before a process ends; and the line of a healthy job that looks alike."""

import pytest

from collectors.log.job_messages import JobMessage, JobMessages, JobOutput
from collectors.log.kernel_messages import KernelMessages

TABLE, KERNEL = JobMessages(), KernelMessages()

LINES = [
    ("ValueError: Rank 3, node x, device 3, iteration 12: Unexpected result inf (message='found Inf in local forward loss calculation')", "framework", "loss_not_finite"),
    ("RuntimeError: found Inf in local grad norm for bucket #0 in backward pass before data-parallel communication collective. Device: 1, node: x", "framework", "loss_not_finite"),
    ("RuntimeError: Function 'MmBackward0' returned nan values in its 0th output.", "framework", "loss_not_finite"),
    ("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.", "memory", "gpu_out_of_memory"),
    ("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes.", "memory", "gpu_out_of_memory"),
    ("E0101 10:00:00.000000 123 coordination_service_agent.cc:771] Polled an error from coordination service. UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats):", "framework", "task_lost"),
    ("F0101 10:00:00.0 123 client.h:80] Terminating process because the JAX distributed service detected fatal errors. This most likely indicates that another task died", "framework", "task_lost"),
    ("F0101 10:00:00.0 123 rendezvous.cc:127] Termination timeout for `first call to collective operation 0; run_id=1` of 40 seconds exceeded. Exiting to ensure a consistent program state. Expected 8 threads to join the rendezvous, but not all of them arrived on time.", "framework", "collective_timeout"),
    ("[node1:1234 :0:1234] Caught signal 7 (Bus error: nonexistent physical address)", "python", "bus_error"),
    ("[node1:1234 :0:1234] Caught signal 4 (Illegal instruction: illegal operand)", "python", "illegal_instruction"),
    ("[node1:01234] Signal: Bus error (7)", "python", "bus_error"),
    ("double free or corruption (!prev)", "python", "heap_corruption"),
    ("free(): double free detected in tcache 2", "python", "heap_corruption"),
    ("free(): invalid pointer", "python", "heap_corruption"),
    ("malloc(): corrupted top size", "python", "heap_corruption"),
    ("malloc(): unaligned tcache chunk detected", "python", "heap_corruption"),
    ("munmap_chunk(): invalid pointer", "python", "heap_corruption"),
    ("realloc(): invalid next size", "python", "heap_corruption"),
    ("corrupted size vs. prev_size while consolidating", "python", "heap_corruption"),
    ("corrupted double-linked list", "python", "heap_corruption"),
    ("*** Error in `python': free(): invalid pointer: 0x00007f12 ***", "python", "heap_corruption"),
    ("*** stack smashing detected ***: terminated", "python", "heap_corruption"),
    ("*** SIGSEGV received at time=1700000000 on cpu 12 ***", "python", "segmentation_fault"),
    ("[rank3]:*** SIGBUS received at time=1700000000 on cpu 12 ***", "python", "bus_error"),
    ("*** SIGABRT received at time=1700000000 on cpu 12 ***", "python", "aborted"),
    ("RuntimeError: received 0 items of ancdata", "python", "file_limit"),
    ("RuntimeError: can't start new thread", "python", "thread_limit"),
    ("OpenBLAS blas_thread_init: pthread_create failed for thread 5 of 64: Resource temporarily unavailable", "python", "thread_limit"),
    ("python: symbol lookup error: /lib/libtorch_cuda.so: undefined symbol: ncclCommRegister", "python", "library_missing"),
    ("python: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such file or directory", "python", "library_missing"),
    ("Memory access fault by GPU node-1 (Agent handle: 0x55d0) on address 0x7f5e. Reason: Page not present or supervisor privilege.", "cuda", "error"),
    ("HW Exception by GPU node-2 (Agent handle: 0x55) reason :GPU Hang", "cuda", "internal_error"),
    (":0:rocdevice.cpp            :2982: 1234 us: [pid:1 tid:0x7f] Callback: Queue 0x7f aborting with error : HSA_STATUS_ERROR_EXCEPTION: An HSAIL operation resulted in a hardware exception. code: 0x1016", "cuda", "error"),
    ("Queue error - HSA_STATUS_ERROR_OUT_OF_RESOURCES", "memory", "gpu_out_of_memory"),
    ("2024-01-01 10:00:00.0: E external/xla/cuda_driver.cc:1] failed to synchronize the stop event: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered", "cuda", "ecc_error"),
    ("jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to execute: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure", "cuda", "error"),
    ("RuntimeError: GET was unable to find an engine to execute this computation", "cuda", "library_error"),
    ("Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error", "cuda", "no_gpu"),
    ("Failed to initialize NVML: Unknown Error", "cuda", "no_gpu"),
    ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.", "cuda", "no_driver"),
    ("RuntimeError: Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error", "torch", "gloo_connection"),
    ("RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 1099511627776 bytes.", "memory", "out_of_memory"),
    ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "memory", "out_of_memory"),
    ("mlx5: node1: got completion with error: 00000000 00000000 00000000", "network", "completion_error"),
    ("[node1:123:0:123] ib_mlx5_log.c:177  Local QP operation error on mlx5_0:1/IB (synd 0x2)", "network", "ucx_error"),
]  # fmt: skip

TWINS = [
    "sample 7: how do I fix double free or corruption (!prev) in my C program?",
    '{"text": "it prints free(): invalid pointer and ends", "label": 1}',
    "answer: `malloc(): corrupted top size` means that the heap is damaged",
    "prompt: what does *** SIGSEGV received at time=1 on cpu 2 *** mean?",
    "*** SIGTERM received at time=1700000000 on cpu 12 ***",
    "INFO retry: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5 bytes, retrying with a smaller batch",
    "INFO grpc: UNAVAILABLE: connection attempt failed, trying again",
    "RESOURCE_EXHAUSTED: Quota exceeded for quota metric",
    "INFO all tasks are healthy again: task 3 has stopped sending heartbeats for 2 s only",
    "E0101 10:00:00.0 123 rendezvous.cc:98] This thread has been waiting for `first call to collective operation 0; run_id=1` for 20 seconds and may be stuck. Expected 8 threads to join the rendezvous, but not all of them arrived on time.",
    "E0101 10:00:10.0 123 rendezvous.cc:105] Thread is unstuck! Warning above was a false-positive. Perhaps the timeout is too short.",
    "2024-01-01 10:00:00.0: W tsl/framework/bfc_allocator.cc:296] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.3GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available.",
    "I0101 10:00:00.0 9 cuda_executor.cc:1] failed to allocate 79.2G (85059674112 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "I0101 10:00:00.0 9 cuda_diagnostics.cc:1] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
    "docs: HSA_STATUS_ERROR_EXCEPTION is what ROCm says when a kernel fails",
    "wiki: 'Memory access fault by GPU node-1' was seen by 3 users",
    "loss: 2.3 inf_grads: 0 # no Inf found in local grad norm",
    "NCCL INFO NET/Plugin: Could not find: libnccl-net.so. libnccl-net.so: cannot open shared object file: No such file or directory",
    "[1700000000.1] [node1:123:0] ib_mlx5_log.c:177  UCX  INFO  nothing of note",
    "test_the_heap: mremap(): invalid arguments are refused ... ok",
    "validate(): invalid rows 0 of 10000",
    "UserWarning: Can't initialize NVML",
]


def read(line: str) -> list[JobMessage]:
    return list(JobOutput(TABLE).read(line.encode() + b"\n", 0.0))


@pytest.mark.parametrize(("line", "component", "code"), LINES)
def test_fault_a_line_says_what_it_is(line: str, component: str, code: str) -> None:
    [message] = read(line)
    assert (message.component, message.code, message.level) == (component, code, "error")


@pytest.mark.parametrize("line", TWINS)
def test_twin_a_line_that_only_speaks_of_it_or_of_what_went_well_is_no_error(line: str) -> None:
    assert not any(message.level == "error" for message in read(line))


@pytest.mark.parametrize("what", ["poison consumption handled by gfx", "poison consumption, fall back to gpu reset flow: client id 27"])
def test_fault_a_gpu_that_read_a_damaged_word(what: str) -> None:
    found = KERNEL.read(f"amdgpu 0000:c1:00.0: amdgpu: RAS {what}")
    assert found is not None
    assert (found.component, found.code, found.level, found.pci) == ("gpu", "amd_poison", "error", "0000:c1:00.0")


@pytest.mark.parametrize("line", ["debug: enable mode2 reset for poison consumption recovery", "amdgpu 0000:c1:00.0: amdgpu: RAS INFO: ras initialized successfully, poison mode enabled"])
def test_twin_a_gpu_that_could(line: str) -> None:
    assert KERNEL.read(line) is None


def test_twin_a_device_whose_driver_knows_no_recovery_is_a_notice_beside_its_error() -> None:
    """A laptop's Thunderbolt port prints it at each sleep."""
    found = KERNEL.read("nvidia 0000:01:00.0: AER: can't recover (no error_detected callback)")
    assert found is not None
    assert (found.component, found.code, found.level, found.pci) == ("pcie", "not_recoverable", "notice", "0000:01:00.0")
