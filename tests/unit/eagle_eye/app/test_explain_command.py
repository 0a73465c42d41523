"""`eagle-eye explain`: reports as people paste them, each failure beside its innocent twin, and what is said of a report that says nothing."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from eagle_eye.app.cli import main
from eagle_eye.app.evaluation.data_sets import llm_incidents, nccl_issue_incidents
from eagle_eye.app.evaluation.incident_cases import COMMON
from eagle_eye.app.report_reader import ReportReader

READER = ReportReader()
TIMEOUT = "[rank2]:[E ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600080 milliseconds before timing out."
ITERATION = " iteration {step}/ 500 | elapsed time per iteration (s): {seconds} | learning rate: 1.0E-05 | lm loss: {loss} | grad norm: 0.2 |"


def explain(*words: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(main, ["explain", *words], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def first(*lines: str) -> tuple[str, str]:
    found = READER.explain(lines)
    return (found[0].name, found[0].repair.value) if found else ("", "")


@pytest.mark.parametrize(
    ("lines", "name", "repair"),
    [
        (["NVRM: Xid (PCI:0000:9b:00): 79, pid=12, GPU has fallen off the bus."], "gpu_off_the_bus", "evict"),
        (["NVRM: Xid (PCI:0000:9b:00): 31, pid=12, Ch 00000008, MMU Fault", "RuntimeError: CUDA error: an illegal memory access was encountered"], "program_error_on_gpu", "restart"),
        ([TIMEOUT, "RuntimeError: CUDA error: uncorrectable ECC error encountered"], "gpu_memory_error", "evict"),
        ([TIMEOUT], "collective_timeout", "retry"),
        (["[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, TensorShape=[1], Timeout(ms)=1800000) ran for 1802710 milliseconds"], "collective_timeout", "retry"),
        (["RuntimeError: NCCL communicator was aborted on rank 3."], "collective_timeout", "retry"),
        (["RuntimeError: Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 1."], "collective_timeout", "retry"),
        (["RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: x (world_size=4)"], "rendezvous_unreachable", "retry"),
        (["torch.distributed.DistStoreError: wait timeout after 600000ms, keys: /0/x"], "rendezvous_unreachable", "retry"),
        (["[c10d] TCP client failed to connect/validate to host 10.0.0.1:29500 - timed out (try=1, timeout=600000ms): Connection timed out"], "rendezvous_unreachable", "retry"),
        (["RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via x, but store->get('0') got error: Timeout waiting for key: 0"], "rendezvous_unreachable", "retry"),
        (["torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"], "rendezvous_unreachable", "retry"),
        (["torch.distributed.elastic.rendezvous.api.RendezvousStateError: the state is of another form"], "rendezvous_unreachable", "retry"),
        (["RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment"], "gpu_not_visible", "advise"),
        (["RuntimeError: Found no NVIDIA driver on your system."], "gpu_not_visible", "advise"),
        (["RuntimeError: CUDA driver error: unknown error"], "gpu_internal_error", "restart"),
        (["TimeoutError: [Errno 110] Connection timed out: '/mnt/nfs'"], "storage_unavailable", "retry"),
        (["Jul  3 04:05:06 gpu-1 kernel: NVRM: Xid (PCI:0000:9b:00): 48, pid=1, DBE"], "gpu_memory_error", "evict"),
        (["Jul  3 04:05:06 gpu-1 sudo[812]: ops : COMMAND=/usr/bin/grep NVRM: Xid (PCI:0000:9b:00): 48 /var/log/syslog"], "", ""),
        (["saving checkpoint at iteration 33", TIMEOUT], "checkpoint_save_late", "retry"),
        (["Running tokenizer on dataset:  9%", TIMEOUT], "long_work_on_one_rank", "advise"),
        ([TIMEOUT, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory."], "follow_on_error", "restart"),
        (["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."], "gpu_out_of_memory", "advise"),
        (["hang after 3 days, nodes lost afterwards"], "unexplained_hang", "restart"),
        (["whole cluster gone", "16 machines fail checks after restore"], "cluster_gone", "advise"),
        (["node-7 went down"], "node_down", "evict"),
        (["step 7: loss nan, grad norm 1.2"], "loss_not_finite", "advise"),
        (["slurmstepd: error: *** JOB 7 ON n5 CANCELLED AT 2026-05-27T21:52:36 DUE TO TIME LIMIT ***"], "time_limit", "advise"),
        ([ITERATION.format(step=step, seconds=seconds, loss=2.1) for step, seconds in enumerate([105.2, 105.1, 105.2, 110.9, 111.0, 111.1])], "slow_hardware", "advise"),
        ([ITERATION.format(step=step, seconds=105.2, loss=loss) for step, loss in enumerate([2.2, 2.2, 2.2, 5.1, 4.0, 2.2])], "loss_spike", "nothing"),
        ([ITERATION.format(step=step, seconds=105.2, loss=2.1) for step in range(9)], "", ""),
        (["gpu-7:401:8846 [2] NCCL INFO Channel 08/0 : 7[7] -> 15[7] via P2P/CUMEM, hang detection on"], "", ""),
        (["[n6:333972:f] vfs_fuse.c:440  UCX  DIAG  failed to watch on '/run/ucx/vfs.sock': Input/output error, VFS will be disabled"], "", ""),
        (["all is well, no error and no hang, 0 ECC errors"], "", ""),
    ],
)  # fmt: skip
def test_a_report_speaks_for_a_failure_and_its_repair(lines: list[str], name: str, repair: str) -> None:
    assert first(*lines) == (name, repair)


def test_the_command_names_lines_cause_repair_and_who_is_not_at_fault(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("epoch 1\nNCCL WARN Error while creating shared memory segment /dev/shm/nccl-x (size 9)\n")
    (tmp_path / "b.txt").write_text("token=hf_abcdefghijklmnopqrstuvwx the job crashed: bus error in the data loader\n")
    shown = explain(str(tmp_path / "a.txt"), str(tmp_path / "b.txt"))
    assert shown.exit_code == 0, shown.output
    assert "/dev/shm is too small [shared_memory_too_small], clear: configuration; repair: advise" in shown.output
    assert f"{tmp_path / 'a.txt'}:2: NCCL WARN" in shown.output
    assert f"{tmp_path / 'b.txt'}:1: " in shown.output
    assert "evict nobody" in shown.output
    assert "hf_abc" not in shown.output


def test_from_stdin_as_json() -> None:
    told = explain("--json", stdin="the job hangs at eval\n")
    (row,) = [json.loads(line) for line in told.stdout.splitlines()]
    assert (row["name"], row["repair"], row["lines"][0]["line"]) == ("evaluation_hang", "restart", 1)


def test_a_report_that_says_nothing_ends_with_1_and_asks_for_more(tmp_path: Path) -> None:
    silent = explain(stdin="hello\n")
    assert silent.exit_code == 1
    assert "add the first error of all ranks" in silent.output
    missing = explain(str(tmp_path / "none.txt"))
    assert missing.exit_code == 1
    assert "cannot be read" in missing.output


def test_of_a_long_log_the_errors_before_its_end_are_read_too() -> None:
    lines = ["we hang here", "RuntimeError: CUDA error: uncorrectable ECC error encountered", "x", "y"]
    found = ReportReader(most_lines=2).explain(lines)
    assert [each.name for each in found] == ["gpu_memory_error"]
    assert found[0].lines[0].line == 2


def test_of_many_equal_lines_the_first_ones_are_read_and_every_other_line_still_is() -> None:
    lines = [*(f"exit code: {number}" for number in range(1, 60)), "step 3 hangs"]
    signs = list(READER.signs_of(lines))
    assert "hang" in {sign.name for sign in signs}
    assert [sign.line for sign in READER.signs_of(["the job hangs 1"] * 60) if sign.name == "hang"] == list(range(1, 21))


def test_every_class_that_an_adapter_asks_for_is_a_known_failure() -> None:
    known = {failure.name for failure in READER.catalogue.failures}
    asked = [*llm_incidents.CLASSES.values(), *nccl_issue_incidents.CLASSES.values(), *(expected for _, expected in COMMON)]
    assert {name for expected in asked for name in expected.classes} <= known
