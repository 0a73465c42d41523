"""What the output of a job says: known errors and whole tracebacks."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.log import job_messages
from collectors.log.job_messages import JobMessage, JobMessages, JobOutput
from eagle_eye.errors import ConfigError

MESSAGES = JobMessages()

FAULTS = [
    ("[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered", ("cuda", "error", "3")),
    ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", ("cuda", "ecc_error", "")),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity", ("memory", "gpu_out_of_memory", "")),
    (
        "[E1124 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 5] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=124, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds",
        ("torch", "collective_timeout", "5"),
    ),
    ("gpu-7:401:8846 [2] transport/net_ib.cc:1024 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=12", ("nccl", "transport", "")),
    ("3: gpu-7:401:8846 [2] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.2 failed : Connection refused", ("nccl", "transport", "3")),
    ("gpu-7:401:8846 [2] net_ib/common.cc:179 NCCL WARN NET/IB : mlx5_0:1 Got non-fatal async event: port error(10)", ("nccl", "transport", "")),
    ("gpu-7:401:8846 [2] net_ib.cc:199 NCCL WARN NET/IB : mlx5_32:1 Got async error event: port error", ("nccl", "transport", "")),
    ("gpu-7:401:8846 [2] net_ib/common.cc:160 NCCL WARN NET/IB : mlx5_0:1 async fatal event: local catastrophic error", ("nccl", "transport", "")),
    ("gpu-7:401:8846 [2] net_ib/p2p.cc:80 NCCL WARN NET/IB: Got CQE with error (devIndex=0, req=0x7f, comm=0x7e (Send), wr_id=7, qp_num=9)", ("nccl", "transport", "")),
    ("gpu-7:401:8846 [2] init.cc:900 NCCL WARN Mismatched NCCL version detected : rank 0 version 22809 rank 9 version 22703", ("nccl", "version_mismatch", "")),
    ("gpu-7:401:8846 [2] init.cc:12 NCCL WARN Cuda failure 'out of memory'", ("nccl", "cuda_failure", "")),
    ("Fatal Python error: Segmentation fault", ("python", "fatal_error", "")),
    ("/bin/sh: line 1: 4711 Segmentation fault      (core dumped) python train.py", ("python", "segmentation_fault", "")),
    ("OSError: [Errno 28] No space left on device: '/ckpt/step-3.pt'", ("storage", "no_space", "")),
    ("slurmstepd: error: *** JOB 1999618 ON r6i4n5 CANCELLED AT 2021-05-27T21:52:36 DUE TO TIME LIMIT ***", ("scheduler", "time_limit", "")),
    ("slurmstepd: error: *** JOB 7 ON n5 CANCELLED AT 2026-05-27T21:52:36 DUE TO PREEMPTION ***", ("scheduler", "preempted", "")),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.", ("scheduler", "oom_kill", "")),
    ("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:51122", ("torch", "gloo_connection", "")),
    ("n1:1:2 [0] misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-UbzKZ9 (size 9637888)", ("memory", "shared_memory", "")),
    ("RuntimeError: cuda runtime error (39) : uncorrectable ECC error at /pytorch/THCGeneral.cpp:50", ("cuda", "ecc_error", "")),
    ("RuntimeError: CUDA error: system not yet initialized", ("cuda", "not_ready", "")),
    ("  what():  CUDA error: unknown error", ("cuda", "internal_error", "")),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.", ("torch", "impossible_allocation", "")),
    ("RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(", ("torch", "collective_mismatch", "")),
    ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.", ("framework", "loss_scale", "")),
    ("AssertionError: rank 7: found NaN in local grad norm for bucket #0 in backward pass", ("framework", "loss_not_finite", "")),
]

INNOCENT = [
    "iteration 1200/ 500000 | elapsed time per iteration (ms): 1234.5 | lm loss: 2.345E+00 | grad norm: 1.23",
    "[rank3]: NCCL INFO Channel 00/08 : 3[3] -> 4[4] via P2P/CUMEM",
    "gpu-7:401:8846 [2] NCCL INFO comm 0x55 rank 2 nranks 16 cudaDev 2 busId 3b000 - Init COMPLETE",
    "CUBLAS_STATUS_SUCCESS",
    "found 0 NaN values in the data set",
    "eval: error rate 0.12, timeout of the loader is 60 s",
    "Setting CUDA device to 3; no errors so far",
]


def said(text: str, output: JobOutput | None = None, now: float = 0.0) -> list[JobMessage]:
    return list((output or JobOutput(MESSAGES)).read(text.encode(), now))


@pytest.mark.parametrize(("line", "says"), FAULTS)
def test_an_error_is_known_with_its_rank(line: str, says: tuple[str, str, str]) -> None:
    (message,) = said(line + "\n")
    assert (message.component, message.code, message.rank, message.level) == (*says, "error")


@pytest.mark.parametrize("line", INNOCENT)
def test_twin_a_line_of_a_healthy_job_says_nothing(line: str) -> None:
    assert said(line + "\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "gpu-7:401:8846 [2] net_ib/common.cc:179 NCCL WARN NET/IB : mlx5_0:1 Got non-fatal async event: port active(9)",
        "gpu-7:401:8846 [2] net_ib.cc:199 NCCL WARN NET/IB : mlx5_32:1 Got async error event: port active",
        "gpu-7:401:8846 [2] net_ib.cc:90 NCCL WARN NET/IB : mlx5_0:1 Got async event : client reregistration",
        "mi300x-01:401:8846 [2] /src/rccl/init.cc:12 NCCL WARN Cannot enable MSCCL++ on this machine",
        "[1759897476.65] [n6:333972:f] vfs_fuse.c:440  UCX  DIAG  failed to watch on '/run/ucx/vfs.sock': Input/output error, VFS will be disabled",
        "slurmstepd: error: *** JOB 7 ON n5 CANCELLED AT 2026-05-27T21:52:36 ***",
    ],
)
def test_twin_what_healthy_jobs_print_too_is_a_notice(line: str) -> None:
    assert [message.level for message in said(line + "\n")] == ["notice"]


TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 12, in <module>
    main()

  File "train.py", line 7, in main
    raise ValueError("bad token")
ValueError: bad token
"""


def test_a_traceback_is_one_message_with_all_its_lines() -> None:
    (message,) = said(f"before\n{TRACEBACK}after\n")
    assert (message.component, message.code, message.level, message.text) == ("python", "traceback", "notice", "ValueError: bad token")
    assert message.traceback == TRACEBACK.strip()


def test_a_chain_of_tracebacks_is_one_message_that_ends_with_the_last_exception() -> None:
    chain = TRACEBACK + "\nDuring handling of the above exception, another exception occurred:\n\n" + TRACEBACK.replace("ValueError: bad token", "RuntimeError: gave up")
    (message,) = said(chain + "after\n")
    assert message.text == "RuntimeError: gave up"
    assert "ValueError: bad token" in message.traceback


def test_two_tracebacks_one_after_the_other_are_two() -> None:
    assert [message.text for message in said(TRACEBACK + TRACEBACK.replace("bad", "worse") + "after\n")] == ["ValueError: bad token", "ValueError: worse token"]


def test_ranks_that_print_into_one_log_at_once_are_kept_apart() -> None:
    lines = [line for pair in zip(*([f"[rank{rank}]: {line}" for line in TRACEBACK.splitlines()] for rank in (0, 1)), strict=True) for line in pair]
    messages = said("\n".join([*lines, "[rank0]: on", "[rank1]: on"]) + "\n")
    assert [(message.rank, message.traceback) for message in messages] == [("0", TRACEBACK.strip()), ("1", TRACEBACK.strip())]


def test_the_error_that_a_traceback_ends_with_is_told_too() -> None:
    messages = said(TRACEBACK.replace("ValueError: bad token", "RuntimeError: CUDA error: device-side assert triggered") + "after\n")
    assert [message.code for message in messages] == ["error", "traceback"]


def test_a_traceback_goes_over_pieces() -> None:
    output, lines = JobOutput(MESSAGES), TRACEBACK.splitlines(keepends=True)
    messages = [message for line in [*lines, "after\n"] for message in said(line, output)]
    assert [message.traceback for message in messages] == [TRACEBACK.strip()]


def test_a_traceback_that_never_ends_is_given_out_after_a_while() -> None:
    output = JobOutput(MESSAGES)
    assert said(TRACEBACK.rpartition("ValueError")[0], output, 0.0) == []
    (message,) = said("", output, 10.0)
    assert message.text.strip() == 'raise ValueError("bad token")'
    assert said("and on\n", output, 11.0) == []


def test_colours_are_taken_off() -> None:
    (message,) = said("\x1b[31mRuntimeError: CUDA error: misaligned address\x1b[0m\n")
    assert message.text == "RuntimeError: CUDA error: misaligned address"


def test_of_a_flood_the_first_lines_are_read_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_messages, "MOST_LINES", 3)
    output = JobOutput(MESSAGES)
    assert len(said("RuntimeError: CUDA error: x\n" * 10, output)) == 3
    assert output.unread_lines == 7


ASSERTION = "Indexing.cu:1292: indexSelectLargeIndex: block: [{0},0,0], thread: [{0},0,0] Assertion `srcIndex < srcSelectDimSize` failed.\n"


def test_a_flood_of_one_error_hides_neither_another_one_nor_a_traceback() -> None:
    output = JobOutput(MESSAGES)
    flood = "".join(ASSERTION.format(number) for number in range(2048))
    messages = said(flood + "OSError: [Errno 28] No space left on device\n" + TRACEBACK + "after\n", output)
    assert [message.code for message in messages if message.code != "device_assertion"] == ["no_space", "traceback"]
    assert output.unread_lines == 2048 - job_messages.MOST_LINES


BAR = "".join(f"\r {step}%|{'#' * 10}          | {step}/100 [00:0{step}<01:40,  5.50it/s, loss=2.31, lr=1e-4]" for step in range(10))


@pytest.mark.parametrize("bar", [BAR * 3, BAR, BAR.rpartition("\r")[2], "\rEpoch 0 of 3\r"])
@pytest.mark.parametrize(("line", "says"), FAULTS)
def test_an_error_behind_a_progress_bar_is_known(bar: str, line: str, says: tuple[str, str, str]) -> None:
    (message,) = said(bar + line + "\n")
    assert (message.component, message.code, message.rank, message.level) == (*says, "error")


def test_a_progress_bar_does_not_end_a_traceback() -> None:
    first, second = TRACEBACK[:60], TRACEBACK[60:]
    cut = first.rindex("\n") + 1
    for bar in (BAR + "\r", "\n" + BAR[1:] + "\n", "\rEpoch 0 of 3\rEpoch 1 of 3\r"):
        (message,) = said(first[:cut] + bar.lstrip("\n") + first[cut:] + second + "after\n")
        assert (message.text, message.traceback) == ("ValueError: bad token", TRACEBACK.strip()), bar


def test_lines_of_windows_are_lines() -> None:
    (message,) = said((TRACEBACK + "after\n").replace("\n", "\r\n"))
    assert message.traceback == TRACEBACK.strip()


LONGER = [
    (
        "RuntimeError: Error(s) in loading state_dict for GPT:\n\tMissing key(s) in state_dict: \"h.0.w\".\n\tsize mismatch for wte",
        'RuntimeError: Error(s) in loading state_dict for GPT: Missing key(s) in state_dict: "h.0.w". size mismatch for wte',
    ),
    (
        "torch.distributed.DistBackendError: NCCL error\nncclRemoteError: A call failed.\nLast error:\nConnection closed by remote peer node7<41234>",
        "torch.distributed.DistBackendError: NCCL error ncclRemoteError: A call failed. Last error: Connection closed by remote peer node7<41234>",
    ),
    (
        "ValueError: no\nCUDA kernel errors might be asynchronously reported\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "ValueError: no",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("exception", "text"), LONGER)
def test_an_exception_of_several_lines_is_kept_whole(exception: str, text: str) -> None:
    trace = TRACEBACK.replace("ValueError: bad token", exception)
    (message,) = [message for message in said(trace + "after\n") if message.code == "traceback"]
    assert (message.text, message.traceback) == (text, trace.strip())


def test_an_exception_group_is_one_message_that_says_what_is_in_it() -> None:
    group = """\
  + Exception Group Traceback (most recent call last):
  |   File "t.py", line 3, in f
  |     g()
  | ExceptionGroup: two failed (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "t.py", line 3, in f
    | ValueError: inner
    +---------------- 2 ----------------
    | OSError: other
    +------------------------------------
"""
    (message,) = said(group + "after\n")
    assert (message.text, message.traceback) == ("ExceptionGroup: two failed (2 sub-exceptions) ValueError: inner OSError: other", group.rstrip())


PREFIXES = [
    ("worker-0: ", ""), ("worker-0: [rank3]: ", "3"), ("[1,3]<stderr>:", "3"), ("(RayTrainWorker pid=12, ip=10.0.0.1) ", ""), ("[pod/gpt-3/pytorch] ", ""),
    ("2025-11-30T10:00:00.123456789Z stderr F ", ""), ("2025-11-30T10:00:00.123456789Z stderr F [rank3]: ", "3"), ("3: ", "3"), ("[default3]:", "3"),
]  # fmt: skip


@pytest.mark.parametrize(("prefix", "rank"), PREFIXES)
def test_the_prefix_of_who_collects_the_output_does_not_break_a_traceback(prefix: str, rank: str) -> None:
    (message,) = said("".join(f"{prefix}{line}\n" for line in (TRACEBACK + "after").splitlines()))
    assert (message.text, message.rank, message.traceback) == ("ValueError: bad token", rank, TRACEBACK.strip())


def test_the_json_of_a_container_does_not_break_a_traceback() -> None:
    lines = [json.dumps({"log": f"{line}\n", "stream": "stderr"}, separators=(",", ":")) for line in (TRACEBACK + "after").splitlines()]
    (message,) = said("\n".join(lines) + "\n")
    assert message.traceback == TRACEBACK.strip()


def test_hosts_that_print_into_one_log_at_once_are_kept_apart() -> None:
    lines = [f"node{host}: {line}\n" for line in (TRACEBACK + "after").splitlines() for host in (1, 2)]
    assert [message.traceback for message in said("".join(lines))] == [TRACEBACK.strip()] * 2


def test_twin_a_logger_before_a_traceback_is_no_host() -> None:
    (message,) = said("root.ERROR: " + TRACEBACK + "after\n")
    assert message.text == "ValueError: bad token"


def test_a_long_line_is_cut_behind_its_secrets() -> None:
    long = "ValueError: " + "x" * 1900 + " password='" + "S" * 300 + "'" + "y" * 1_000_000
    (message,) = said(TRACEBACK.replace("ValueError: bad token", long) + "after\n")
    assert "SSS" not in message.text + message.traceback
    assert len(message.traceback) < 3000


@settings(deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=8), st.sampled_from([line for line, _ in FAULTS] + [TRACEBACK]), st.integers(0, 200))
def test_nothing_that_a_job_prints_stops_it(pieces: list[bytes], line: str, cut: int) -> None:
    output = JobOutput(MESSAGES)
    for number, piece in enumerate([*pieces, line[:cut].encode(), *pieces]):
        list(output.read(piece + b"\n", float(number)))
    known, says = FAULTS[0]
    assert says in [(message.component, message.code, message.rank) for message in said(known + "\n", output, 100.0)], "what comes after is read"


def test_a_row_of_ones_own_needs_a_hint(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[[message]]\ncomponent = "python"\ncode = "ours"\npattern = "our (?P<detail>.*)"\n')
    with pytest.raises(ConfigError, match="ours: hint is missing"):
        JobMessages(own)
    own.write_text('[[message]]\ncomponent = "python"\ncode = "ours"\nhint = "our "\npattern = "our (?P<detail>.*)"\n')
    (message,) = JobOutput(JobMessages(own)).read(b"our own error\n", 0.0)
    assert message.code == "ours"
