"""Lines as NCCL, RCCL, torch, CUDA and schedulers of several releases print them: what they are, how bad, of which rank; and the harmless line that looks alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.log.job_messages import COMPONENTS, TABLES, JobMessage, JobMessages, JobOutput
from collectors.log.message_table import MessageTable
from collectors.log.traceback_reader import TRACEBACK

TABLE = JobMessages()

LINES = [
    ("node1:4123:4321 [2] transport/net_ib.cc:1094 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4791> with error 12, opcode 0, len 0, vendor err 129 (Recv)", ("nccl", "transport", "error"), ""),
    ("node1:4123:4321 [2] transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129", ("nccl", "transport", "error"), ""),
    ("[2025-05-07 04:01:02] node1:4123:4321 [2] transport/net_ib/p2p.cc:540 NCCL WARN NET/IB: Got completion from peer 10.0.0.7<50117> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send", ("nccl", "transport", "error"), ""),
    ("node1:4123:4321 [2] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error", ("nccl", "transport", "error"), ""),
    ("node1:4123:4321 [2] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_2:1 Got async event : port active", ("nccl", "warning", "notice"), ""),
    ("node1:4123:4321 [2] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_2:1 Got async event : client reregistration", ("nccl", "warning", "notice"), ""),
    ("node1:4123:4321 [2] ibvwrap.cc:245 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out", ("nccl", "transport", "error"), ""),
    ("node1:4123:4321 [2] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.7<43113> failed : Software caused connection abort", ("nccl", "transport", "error"), ""),
    ("node1:4123:4321 [2] include/socket.h:409 NCCL WARN Net : Connect to 10.148.7.174<43113> failed : Connection refused", ("nccl", "transport", "error"), ""),
    ("node1:4123:4321 [2] misc/socket.cc:57 NCCL WARN socketProgressOpt: Call to recv from 10.0.0.7<50123> failed : Connection reset by peer", ("nccl", "transport", "error"), ""),
    ("node1:4123:4321 [2] misc/socket.cc:57 NCCL WARN Net : Call to send to 10.0.0.7<50123> failed : Broken pipe", ("nccl", "transport", "error"), ""),
    ("node1:4123:4321 [2] misc/socket.cc:46 NCCL WARN socketProgress: Connection closed by remote peer node2<38492>", ("nccl", "transport", "error"), ""),
    ("node1:4123:4321 [2] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.7<38492>", ("nccl", "transport", "error"), ""),
    ("node1:4123:4321 [2] transport/net_socket.cc:200 NCCL WARN NET/Socket : peer 10.0.0.7<40000> message truncated : receiving 1024 bytes instead of 256. If you believe your socket network is in healthy state,", ("nccl", "size_mismatch", "error"), ""),
    ("node1:4123:4321 [2] enqueue.cc:1402 NCCL WARN Cuda failure 719 'unspecified launch failure'", ("nccl", "cuda_failure", "error"), ""),
    ("node1:4123:4321 [2] include/alloc.h:185 NCCL WARN Cuda failure 'an illegal memory access was encountered'", ("nccl", "cuda_failure", "error"), ""),
    ("node1:4123:4321 [2] include/alloc.h:185 NCCL WARN Cuda failure 2 'out of memory'", ("nccl", "cuda_failure", "error"), ""),
    ("node1:4123:4321 [2] /opt/rccl/src/enqueue.cc:1402 NCCL WARN HIP failure 'invalid device function'", ("nccl", "cuda_failure", "error"), ""),
    ("node1:4123:4321 [2] include/shm.h:28 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-gfBdUc (size 9637888), error: No space left on device (28)", ("memory", "shared_memory", "error"), ""),
    ("node1:4123:4321 [2] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-K5n1Tq to 33030532 bytes, error: No space left on device (28)", ("memory", "shared_memory", "error"), ""),
    ("node1:4123:4321 [2] init.cc:885 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1a000", ("nccl", "duplicate_gpu", "error"), ""),
    ("node1:4123:4321 [2] proxy.cc:1495 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable", ("nccl", "warning", "notice"), ""),
    ("node1:4123:4321 [2] bootstrap.cc:130 NCCL WARN Bootstrap : no socket interface found", ("nccl", "no_interface", "error"), ""),
    ("node1:4123:4321 [2] transport/nvls.cc:175 NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'", ("nccl", "nvlink_sharp", "error"), ""),
    ("node1:4123:4321 [2] graph/paths.cc:342 NCCL WARN P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case given their connectivity, and is probably due to a hardware issue. If you still want to proceed, you can set NCCL_IGNORE_DISABLED_P2P=1.", ("nccl", "peer_access_disabled", "error"), ""),
    ("node1:4123:4321 [2] NCCL WARN NET/OFI Request 0x7f1 completed with error. RC: 107. Error: unreachable (Unreachable remote). Completed length: 0", ("nccl", "transport", "error"), ""),
    ("node1:4123:4321 [2] nccl_net_ofi_create_plugin:1 NCCL WARN NET/OFI Couldn't find any optimal provider", ("nccl", "warning", "notice"), ""),
    ('node1:4123:4321 [2] init.cc:100 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!', ("nccl", "warning", "notice"), ""),
    ('node1:4123:4321 [2] init.cc:100 NCCL WARN NUMA auto balancing enabled which can lead to variability in the RCCL performance! Disable by "sudo sysctl kernel.numa_balancing=0"', ("nccl", "warning", "notice"), ""),
    ("node1:4123:4321 [2] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]", ("nccl", "warning", "notice"), ""),
    ("[1700000000.123456] [node1:4123 :0]    ib_mlx5_log.c:179  UCX  ERROR Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)", ("network", "ucx_error", "error"), ""),
    ("[rank3]:[E1023 10:11:12.345678 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1234, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.", ("torch", "collective_timeout", "error"), "3"),
    ("[E ProcessGroupNCCL.cpp:475] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=_ALLGATHER_BASE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800114 milliseconds before timing out.", ("torch", "collective_timeout", "error"), "5"),
    ("[E1023 10:11:12.345678 ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 0(default_pg) Rank 6] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.", ("torch", "collective_timeout", "error"), "6"),
    ("[PG 3 Rank 6] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.", ("torch", "collective_timeout", "error"), "6"),
    ("[E1023 10:11:12.345678 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 6] Exception (either an error or timeout) detected by watchdog at work: 1234, last enqueued NCCL work: 1235, last completed NCCL work: 1233.", ("torch", "watchdog_exception", "notice"), "6"),
    ("[rank6]:[E1023 10:11:12 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 6] Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the debug info. Last enqueued NCCL work: 5, last completed NCCL work: 4.", ("torch", "dump_signal", "notice"), "6"),
    ("[rank6]:[F1023 10:11:12 ProcessGroupNCCL.cpp:1289] [PG ID 0 PG GUID 0(default_pg) Rank 6] [PG ID 0 PG GUID 0(default_pg) Rank 6] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.", ("torch", "watchdog_stuck", "error"), "6"),
    ("[rank6]:[E1023 ProcessGroupNCCL.cpp:1375] [PG 0 (default_pg) Rank 6] First PG on this rank that detected no heartbeat of its watchdog.", ("torch", "watchdog_stuck", "error"), "6"),
    ("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.", ("torch", "store_timeout", "error"), ""),
    ("[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect to (10.0.0.1, 29500).", ("torch", "store_timeout", "error"), ""),
    ("[E socket.cpp:922] [c10d] The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).", ("torch", "port_in_use", "error"), ""),
    ("RuntimeError: NCCL communicator was aborted on rank 3. Original reason for failure was: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.", ("torch", "collective_timeout", "error"), "3"),
    ("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5", ("nccl", "error", "error"), ""),
    ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:12345", ("torch", "gloo_connection", "error"), ""),
    ("../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [0,0,0], thread: [0,0,0] Assertion `srcIndex < srcSelectDimSize` failed.", ("cuda", "device_assertion", "error"), ""),
    ("RuntimeError: CUDA error: device-side assert triggered", ("cuda", "error", "error"), ""),
    ("Failed to initialize NVML: Driver/library version mismatch", ("cuda", "driver_mismatch", "error"), ""),
    ("RuntimeError: No CUDA GPUs are available", ("cuda", "no_gpu", "error"), ""),
    ("E1023 10:11:12.123 12 torch/distributed/elastic/multiprocessing/api.py:833] failed (exitcode: -9) local_rank: 2 (pid: 1234) of binary: /usr/bin/python", ("torch", "worker_exit", "notice"), ""),
    ("  traceback : Signal 9 (SIGKILL) received by PID 1234", ("torch", "worker_exit", "notice"), ""),
    ("RuntimeError: DataLoader worker (pid 1234) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.", ("memory", "shared_memory", "error"), ""),
    ("RuntimeError: DataLoader worker (pid(s) 1234, 1235) exited unexpectedly", ("python", "data_loader_ended", "error"), ""),
    ("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/juicefs/data'", ("storage", "not_connected", "error"), ""),
    ("RuntimeError: [enforce fail at inline_container.cc:588] . PytorchStreamWriter failed writing file data/17: file write failed", ("storage", "checkpoint_write", "error"), ""),
    ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", ("storage", "checkpoint_damaged", "error"), ""),
    ("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", ("storage", "checkpoint_damaged", "error"), ""),
    ("OSError: [Errno 24] Too many open files: '/data/a'", ("python", "file_limit", "error"), ""),
    ("OSError: [Errno 121] Remote I/O error: '/data/a'", ("storage", "remote_io_error", "error"), ""),
    ("Bus error (core dumped)", ("python", "bus_error", "error"), ""),
    ("Aborted (core dumped)", ("python", "aborted", "error"), ""),
    ("slurmstepd: error: *** STEP 123.0 ON node1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***", ("scheduler", "time_limit", "error"), ""),
    ("slurmstepd: error: *** JOB 123 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", ("scheduler", "node_failure", "error"), ""),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=123.0. Some of the step tasks have been OOM Killed.", ("scheduler", "oom_kill", "error"), ""),
    ("srun: error: node3: task 5: Killed", ("scheduler", "task_ended", "notice"), ""),
    ("srun: error: n1: tasks 0-7: Exited with exit code 1", ("scheduler", "task_ended", "notice"), ""),
    ("srun: error: n1: task 3: Out Of Memory", ("scheduler", "oom_kill", "error"), "3"),
    ("srun: error: Node failure on node3", ("scheduler", "node_failure", "error"), ""),
    ("slurmstepd: error: Exceeded job memory limit at some point.", ("scheduler", "oom_kill", "error"), ""),
    ("mpirun noticed that process rank 3 with PID 1234 on node n1 exited on signal 9 (Killed).", ("scheduler", "task_ended", "notice"), "3"),
    ("srun: error: gpu-1: task 0: Bus error (core dumped)", ("scheduler", "task_ended", "notice"), ""),
    ("srun: error: gpu-1: task 0: Segmentation fault (core dumped)", ("scheduler", "task_ended", "notice"), ""),
    ("/usr/bin/bash: line 1: 123 Aborted                 (core dumped) python x.py", ("python", "aborted", "error"), ""),
    ("/usr/bin/bash: line 1: 123 Bus error               python x.py", ("python", "bus_error", "error"), ""),
    ("./run.sh: line 12: 12345 Killed                  python train.py", ("python", "killed", "error"), ""),
    ("MemoryError", ("memory", "out_of_memory", "error"), ""),
    ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 12.0 GiB for an array with shape (1, 2)", ("memory", "out_of_memory", "error"), ""),
    ("OSError: [Errno 108] Cannot send after transport endpoint shutdown", ("storage", "not_connected", "error"), ""),
    ("TimeoutError: [Errno 110] Connection timed out: '/mnt/nfs'", ("storage", "timed_out", "error"), ""),
    ("OSError: [Errno 112] Host is down: '/mnt/cifs/a'", ("storage", "timed_out", "error"), ""),
    ("socket.gaierror: [Errno -3] Temporary failure in name resolution", ("network", "name_resolution", "error"), ""),
    ("OSError: [Errno 113] No route to host", ("network", "no_route", "error"), ""),
    ("gpu-1:1234:5678 [5] NCCL INFO socketPollConnect: connect to 10.0.0.2<1> returned No route to host, retrying (1/34) after sleep for 100 msec", ("network", "retry", "notice"), ""),
    ("gpu-1:1234:5678 [5] misc/socket.cc:484 NCCL WARN socketPollConnect: connect to 10.0.0.2<1> failed : No route to host", ("nccl", "transport", "error"), ""),
    ("RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: store_based_barrier_key:1 (world_size=4, worker_count=3, timeout=0:30:00)", ("torch", "store_timeout", "error"), "3"),
    ("torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /0/default_pg/0/store_based_barrier_key:1", ("torch", "store_timeout", "error"), ""),
    ("[E TCPStore.cpp:330] [c10d] TCP client failed to connect/validate to host 10.0.0.1:29500 - timed out (try=1, timeout=600000ms): Connection timed out", ("torch", "store_timeout", "error"), ""),
    ("[W TCPStore.cpp:330] [c10d] TCP client failed to connect/validate to host 10.0.0.1:29500 - retrying (try=0, timeout=600000ms, delay=512ms): Connection refused", ("torch", "store_retry", "notice"), ""),
    ("RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Timeout waiting for key: default_pg/0/0 after 1800000 ms", ("torch", "communicator_setup", "error"), "1"),
    ("torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer", ("torch", "communicator_setup", "error"), "3"),
    ("RuntimeError: Timeout waiting for key: default_pg/0/0 after 1800000 ms", ("torch", "store_timeout", "error"), ""),
    ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", ("torch", "rendezvous_failed", "error"), ""),
    ("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed.", ("torch", "rendezvous_failed", "error"), ""),
    ("RuntimeError: Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 1.", ("torch", "monitored_barrier", "error"), ""),
    ("[E ProcessGroupNCCL.cpp:587] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, TensorShape=[1], Timeout(ms)=1800000) ran for 1802710 milliseconds before timing out.", ("torch", "collective_timeout", "error"), "3"),
    ("[E ProcessGroupNCCL.cpp:341] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.", ("torch", "watchdog_ended", "error"), ""),
    ("[E ProcessGroupNCCL.cpp:915] [Rank 3] NCCL watchdog thread terminated with exception: CUDA error: unspecified launch failure", ("torch", "watchdog_ended", "error"), ""),
    ("RuntimeError: NCCL communicator was aborted on rank 3.  Original reason for failure was: NCCL error: unhandled system error", ("torch", "communicator_aborted", "error"), "3"),
    ("RuntimeError: NCCL error in: /opt/conda/torch/lib/c10d/ProcessGroupNCCL.cpp:911, unhandled system error, NCCL version 2.7.8", ("nccl", "error", "error"), ""),
    ("  what():  NCCL error in: ProcessGroupNCCL.cpp:1, unhandled cuda error", ("nccl", "error", "error"), ""),
    ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.", ("nccl", "error", "error"), ""),
    ("ncclInternalError: Internal check failed.", ("nccl", "error", "error"), ""),
    ("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.", ("nccl", "error", "error"), ""),
    ("RuntimeError: CUDA driver error: device not ready", ("cuda", "error", "error"), ""),
    ("RuntimeError: CUDA driver error: unknown error", ("cuda", "internal_error", "error"), ""),
    ("RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered", ("cuda", "error", "error"), ""),
    ("RuntimeError: Triton Error [CUDA]: uncorrectable ECC error encountered", ("cuda", "ecc_error", "error"), ""),
    ("cuda runtime error (59) : device-side assert triggered at /pytorch/x.cu:1", ("cuda", "error", "error"), ""),
    ("RuntimeError: HIP error: an illegal memory access was encountered", ("cuda", "error", "error"), ""),
    ("torch.AcceleratorError: CUDA error: out of memory", ("memory", "gpu_out_of_memory", "error"), ""),
    ("RuntimeError: CUDA driver error: out of memory", ("memory", "gpu_out_of_memory", "error"), ""),
    ("RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable", ("cuda", "init_failed", "error"), ""),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? Error 101: invalid device ordinal", ("cuda", "init_failed", "error"), ""),
    ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? Error 802: system not yet initialized", ("cuda", "not_ready", "error"), ""),
    ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", ("cuda", "no_driver", "error"), ""),
    ("[2025-12-19 13:07:07] PEER_DEAD: Process 1524345 on node 172.16.64.245 managing GPU 1", ("nccl", "process_dead", "error"), ""),
    ('  "event": "PEER_DEAD",', ("nccl", "process_dead", "error"), ""),
]

INNOCENT = [
    "RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...",
    "UserWarning: No CUDA GPUs are available, the CPU is used",
    "node1:4123:4321 [2] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
    "node1:4123:4321 [2] NCCL INFO [Service thread] Connection closed by localRank 1",
    "node1:4123:4321 [2] NCCL INFO comm 0x55e3 rank 2 nranks 16 cudaDev 2 busId 4e000 - Init COMPLETE",
    "node1:4123:4321 [2] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.",
    "node1:4123:4321 [2] NCCL INFO Connected all rings",
    "[1700000000.123456] [node1:4123 :0]  ucp_context.c:2119 UCX  INFO  Version 1.17.0",
    "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node1]:29500 (errno: 111 - Connection refused).",
    "iteration 10/100 | lm loss: 2.3 | grad norm: 1.0",
    "INFO: CUDA error checking is enabled",
    "[W ProcessGroupNCCL.cpp:1856] Warning: 0NCCL_AVOID_RECORD_STREAMS=1 has no effect for point-to-point collectives.",
    "downloading shard segfaults.tar Segmentation-dataset",
    "Setting ulimit to avoid too many open files",
    "Waiting in store based barrier to initialize process group for rank: 3, key: store_based_barrier_key:1 (world_size=4, num_workers_joined=3, timeout=0:30:00)",
    "Rank 3: Completed store-based barrier for key:store_based_barrier_key:1 with 4 nodes.",
    "TimeoutError: [Errno 110] Connection timed out",
    "[rank0]: Rank 3 successfully reached monitoredBarrier",
    "WorkNCCL(OpType=ALLREDUCE, TensorShape=[1], Timeout(ms)=1800000)",
]


def read(line: str) -> list[JobMessage]:
    return list(JobOutput(TABLE).read(line.encode() + b"\n", 0.0))


@pytest.mark.parametrize(("line", "says", "rank"), LINES)
def test_a_line_says_what_it_is_and_how_bad(line: str, says: tuple[str, str, str], rank: str) -> None:
    [message] = read(line)
    assert (message.component, message.code, message.level) == says
    assert message.rank == rank


@pytest.mark.parametrize("line", INNOCENT)
def test_twin_what_looks_alike_and_is_harmless_is_no_error(line: str) -> None:
    assert not any(message.level == "error" for message in read(line))


def test_the_hints_of_one_search_are_few_enough_to_be_searched_fast() -> None:
    """Aho-Corasick's packed search takes 64 texts: with 71 it was five times slower."""
    texts = [text for texts in TABLE.searches for text in texts]
    assert max(map(len, TABLE.searches)) <= 64
    assert sorted(texts) == sorted({row.hint for row in MessageTable.load(TABLES, COMPONENTS).rows} | {TRACEBACK})


def test_hits_of_several_searches_come_in_the_order_of_the_lines() -> None:
    piece = b"".join(f"RuntimeError: {text} x\n".encode() for texts in zip(*TABLE.searches, strict=False) for text in texts)
    hits = list(TABLE.hits(piece))
    assert hits == sorted(hits)
    assert len({piece.count(b"\n", 0, hit) for hit in hits}) == piece.count(b"\n")


QUOTATIONS = [
    "prompt: How do I fix CUDA out of memory?",
    "decoded: Q: What does 'No space left on device' mean? A: the disk is full",
    'eval sample 12: "Segmentation fault" appears when a pointer is invalid',
    "Loaded StackOverflow dump: title='OSError: [Errno 24] Too many open files in Python'",
    '{"text": "I get Input/output error when reading my drive", "label": 3}',
    'sample text: "RuntimeError: CUDA error: an illegal memory access was encountered"',
    "INFO checkpoint: handling 'Stale file handle' by retry, ok",
    "INFO pip: Installing collected packages: torch; No route to host fallback disabled",
    "OSError caught: [Errno 28] No space left on device, writing to /fallback instead",
    "INFO retry: OSError: [Errno 116] Stale file handle, retrying (1/5)",
    "2025-07-03 04:05:06 INFO loader: [Errno 5] Input/output error",
    "WARNING batch 3: CUDA out of memory. skipping batch",
    "comment = CUDA error: what does it mean?",
    "    except MemoryError:",
    "    raise MemoryError",
    "    raise RendezvousTimeoutError(message)",
    "paper: we study ncclSystemError: and its causes?",
    "answer: `RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED`",
    "step 3: how to read a Segmentation fault",
    "the shell prints Killed  when memory runs out",
    "UserWarning: CUDA initialization: CUDA unknown error - this may be due to an incorrectly set up environment",
    "UserWarning: CUDA initialization: Found no NVIDIA driver on your system.",
    "export PYTHONFAULTHANDLER=1 # prints Fatal Python error: on crash",
]


@pytest.mark.parametrize("line", QUOTATIONS)
def test_twin_a_line_that_only_speaks_of_an_error_is_a_notice_at_most(line: str) -> None:
    assert all(message.level == "notice" for message in read(line))


PRINTED = [
    "2025-07-03 04:05:06,123 ERROR trainer: OSError: [Errno 28] No space left on device: '/x'",
    "ERROR:root:checkpoint failed: [Errno 28] No space left on device: '/ckpt/a b'",
    "2025-07-03 04:05:06.123 | ERROR    | train:main:12 - [Errno 28] No space left on device: '/x'",
    "cp: error writing '/x': No space left on device",
    "mkdir: cannot create directory ‘/x’: Read-only file system",
    "Error: write failed: No space left on device (os error 28)",
    "OSError: Can't write the ranks' data: [Errno 28] No space left on device",
    "RuntimeError: unable to mmap 1024 bytes from file <x>: Cannot allocate memory (12)",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes. Error code 12 (Cannot allocate memory)",
    "RuntimeError: unable to open shared memory object </torch_1> in read-write mode: Too many open files (24)",
    "[1,3]<stderr>:OSError: [Errno 5] Input/output error: '/d/x'",
    "(RayWorker pid=123, ip=10.0.0.1) OSError: [Errno 116] Stale file handle",
    "[n1:123:0:123] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x8)",
    "ERROR 07-03 04:05:06 engine.py:12] CUDA out of memory. Tried to allocate 2 GiB",
    "worker 3 failed: CUDA error: an illegal memory access was encountered",
    "failed to create cublas handle: CUBLAS_STATUS_NOT_INITIALIZED",
    "a prompt with 'CUDA out of memory' in it: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
]


@pytest.mark.parametrize("line", PRINTED)
def test_what_loggers_and_shells_put_before_an_error_makes_it_no_quotation(line: str) -> None:
    assert [message.level for message in read(line)] == ["error"]


@given(st.text(alphabet="\"'`“‘ :=(a1[]", max_size=900), st.sampled_from(["No space left on device", "OSError: [Errno 5] Input/output error: '/x'", "MemoryError"]))
def test_no_text_before_an_error_stops_it(before: str, error: str) -> None:
    assert all(message.level in ("error", "notice") for message in read((before + error).replace("\n", " ")))
