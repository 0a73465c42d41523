"""`eagle-eye evaluate` on data sets of a few lines: verdicts beside labels, and what is said of a torn or missing one."""

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from eagle_eye.app.cli import main
from eagle_eye.app.evaluation.evaluation_page import page_of
from eagle_eye.app.evaluation.figures import Figure, figures_of
from eagle_eye.errors import DataSetError

Sample = Callable[[Path], None]


def evaluate(data: Path, *words: str) -> Result:
    result = CliRunner().invoke(main, ["evaluate", "--data", str(data), *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def figures(data: Path, name: str) -> dict[str, Figure]:
    return {each.what: each for each in figures_of(data, name)}


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def dump(number: int, state: str) -> dict[str, object]:
    entry = {"process_group": ["0", "default_pg"], "collective_seq_id": number, "profiling_name": "nccl:all_reduce", "state": state, "retired": state == "completed", "is_p2p": False}
    return {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}, "entries": [entry]}


def job_with_a_missing_rank(data: Path, truth: str = "[1]", name: str = "job") -> None:
    for rank, (number, state) in enumerate([(7, "scheduled"), (6, "completed"), (7, "scheduled")]):
        write(data / "flight_recorder" / name / f"_dump_{rank}", dump(number, state))
    write(data / "flight_recorder" / name / "fault_injection.log", f"Fault ranks: {truth}\nFault delay: 1.0\n")


def test_the_faulty_rank_is_named_and_a_healthy_one_is_not(tmp_path: Path) -> None:
    job_with_a_missing_rank(tmp_path)
    for rank in range(3):
        write(tmp_path / "flight_recorder" / "well" / f"_dump_{rank}", dump(7, "completed"))
    write(tmp_path / "flight_recorder" / "well" / "fault_injection.log", "Fault ranks: []\n")
    found = figures(tmp_path, "flight_recorder")
    assert [(each.figure, each.met) for each in found.values()] == [("1", True), ("nobody", True), ("2 of 2", True)]


def test_a_goal_that_is_missed_has_its_reason_and_ends_the_command_with_1(tmp_path: Path) -> None:
    job_with_a_missing_rank(tmp_path, truth="[0, 1]")
    result = evaluate(tmp_path)
    assert result.exit_code == 1
    assert "not named: 0" in result.output


def test_figures_as_json_lines_and_a_page(tmp_path: Path) -> None:
    job_with_a_missing_rank(tmp_path)
    result = evaluate(tmp_path, "--json", "--html", str(tmp_path / "e.html"))
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["met"] for line in result.stdout.splitlines()] == [True, True]
    assert "<code>eagle-eye evaluate --data" in (tmp_path / "e.html").read_text()


def test_the_page_needs_nothing_else_and_shows_foreign_text_as_text() -> None:
    page = page_of([Figure(data_set="d", what="<script>x</script>", figure="1 of 2", goal="all", met=False, reason="a & b")], "eagle-eye evaluate")
    assert "<script" not in page
    assert not any(word in page for word in ("src=", "href=", "@import"))
    assert "a &amp; b" in page
    assert "0 of 1 goals" in page


def lines_of_kernels(data: Path) -> None:
    rows = [
        {"line": "NVRM: Xid (PCI:0000:9b:00): 79, pid=12, GPU has fallen off the bus.", "component": "nvidia/xid", "kind": "xid", "code": 79},
        {"line": "nvidia-nvswitch2: open (major=510)", "component": "nvidia/sxid", "kind": "", "code": None},
    ]
    write(data / "gpu_node_logs" / "kernel_lines.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    labels = [{"file": "kernel/well.log", "label": "benign_open"}, {"file": "kernel/sick.log", "label": "xid_119"}, {"file": "slurm/s.txt", "label": "x"}]
    write(data / "gpu_node_logs" / "labels.json", labels)
    write(data / "gpu_node_logs" / "kernel" / "well.log", "nvidia-nvswitch2: open (major=510)\n")
    write(data / "gpu_node_logs" / "kernel" / "sick.log", "NVRM: Xid (PCI:0000:9b:00): 119, pid=1, Timeout waiting for RPC from GSP!\n")


def test_lines_of_kernels_go_through_the_chain_to_an_incident(tmp_path: Path) -> None:
    lines_of_kernels(tmp_path)
    found = [(each.figure, each.met) for each in figures_of(tmp_path, "gpu_node_logs")]
    assert found == [("1 of 2", False), ("1 of 1", True), ("1 of 1", True), ("no error; incidents: 0", True), ("gpu 119; incidents: 1", True)]


def test_a_warning_in_the_log_of_a_healthy_job_is_no_error(tmp_path: Path) -> None:
    write(tmp_path / "nccl_logs" / "labels.json", [{"file": "a.gz", "label": "healthy"}, {"file": "b.gz", "label": "ended by time limit"}])
    write(tmp_path / "nccl_logs" / "a.gz", "n1:1:2 [0] NCCL WARN Cannot enable MSCCL++\n")
    write(tmp_path / "nccl_logs" / "b.gz", "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n")
    assert [each.met for each in figures_of(tmp_path, "nccl_logs")] == [True, True]


def test_described_incidents_hardware_is_evicted_and_a_program_is_not(tmp_path: Path) -> None:
    rows = [
        {"id": "a#1", "label": "gpu_ecc_uncorrectable", "facts": {}, "rendered_log": ["RuntimeError: CUDA error: uncorrectable ECC error encountered"]},
        {"id": "a#2", "label": "teardown_hang", "facts": {"phase": "after the last step"}, "rendered_log": ["watchdog got stuck for 600 seconds"]},
        {"id": "a#4", "label": "teardown_hang", "facts": None, "rendered_log": ["RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"]},
    ]
    path = tmp_path / "nccl_issue_incidents" / "incidents.jsonl"
    write(path, "".join(json.dumps(row | {"label_confidence": "maintainer", "action": "x"}) + "\n" for row in rows))
    found = list(figures_of(tmp_path, "nccl_issue_incidents"))
    assert [each.figure for each in found] == ["2 of 3 (67%)", "1 of 1 (100%)", "1 of 2 (50%)", "2 of 3 (67%)", "2 of 3 (67%)", "1 of 2 (50%)"]


def trace(data: Path, times: float) -> None:
    steps, replicas, stages = 30, 4, 2
    rng = np.random.default_rng(3)
    step, replica, stage = (each.ravel() for each in np.meshgrid(np.arange(steps), np.arange(replicas), np.arange(stages), indexing="ij"))
    seconds = (1.0 + 0.5 * stage) * np.exp(rng.normal(0.0, 0.01, len(step)))
    seconds[(replica == 2) & (stage == 1)] *= times
    (data / "straggler_ops").mkdir(parents=True)
    when = {"start_ts": 10.0 * step, "mb_id": np.zeros(len(step), np.int8)}
    np.savez(
        data / "straggler_ops" / "trace_X.npz", **when, optype_names=np.array(["forward-compute"]), optype=np.zeros(len(step), np.int8), step=step, dp_rank=replica, stage=stage, duration=seconds
    )


@pytest.mark.parametrize(("times", "label", "met"), [(2.0, "individual_worker_slowdown", True), (1.0, "long stage", True), (2.0, "long stage", False)])
def test_a_slow_worker_is_found_and_a_long_stage_accuses_nobody(tmp_path: Path, times: float, label: str, met: bool) -> None:
    trace(tmp_path, times)
    parts = {"blocking_decompose_by_dp_rank": {"0": 1.0, "2": 2.0}, "blocking_decompose_by_stage": {"0": 1.0, "1": 2.0}}
    write(tmp_path / "straggler_ops" / "labels.json", [{"trace": "X", "label": label, "published_what_if": parts}])
    (found,) = figures_of(tmp_path, "straggler_ops")
    assert found.met is met, found


def test_our_what_if_stands_beside_the_published_one(tmp_path: Path) -> None:
    trace(tmp_path, 2.0)
    write(tmp_path / "straggler_ops" / "labels.json", [{"trace": "X", "label": "long stage", "Mw": 0.9, "Ms": 0.1, "published_what_if": {"blocking_slowdown": 1.8}}])
    _, found = figures_of(tmp_path, "straggler_ops")
    assert found.met is None
    assert "worker 5 as the others" in found.figure
    assert found.others == "published: all equal 1.80; Mw 0.90, Ms 0.10"


def torn_lines(data: Path) -> None:
    lines_of_kernels(data)
    write(data / "gpu_node_logs" / "kernel_lines.jsonl", '{"line": "x", "component": "cpu", "kind": "", "code": null}\n{"line": ')


def of_another_form(data: Path) -> None:
    lines_of_kernels(data)
    write(data / "gpu_node_logs" / "labels.json", [{"name": "x"}])


def torn_dump(data: Path) -> None:
    job_with_a_missing_rank(data)
    write(data / "flight_recorder" / "job" / "_dump_1", '{"entries": [')


def without_truth(data: Path) -> None:
    job_with_a_missing_rank(data)
    (data / "flight_recorder" / "job" / "fault_injection.log").unlink()


def torn_archive(data: Path) -> None:
    trace(data, 1.0)
    write(data / "straggler_ops" / "labels.json", [{"trace": "X", "label": "long stage"}])
    path = data / "straggler_ops" / "trace_X.npz"
    path.write_bytes(path.read_bytes()[:200])


def torn_gzip(data: Path) -> None:
    write(data / "pai_minibatch" / "job_1.csv.gz", "worker,batch_time_norm\n0,1\n")
    path = data / "pai_minibatch" / "job_1.csv.gz"
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("sample", "named"),
    [
        (torn_lines, "kernel_lines.jsonl, line 2"), (of_another_form, "labels.json, object 1: file, label is missing"), (torn_dump, "_dump_1"),
        (without_truth, "fault_injection.log: No such file"), (torn_archive, "trace_X.npz"), (torn_gzip, "job_1.csv.gz"),
    ],
)  # fmt: skip
def test_a_torn_data_set_is_named_with_a_remedy(tmp_path: Path, sample: Sample, named: str) -> None:
    sample(tmp_path)
    name = next(path.name for path in tmp_path.iterdir())
    with pytest.raises(DataSetError, match="copy the data set again") as raised:
        list(figures_of(tmp_path, name))
    assert named in str(raised.value)


def without_labels(data: Path) -> None:
    write(data / "straggler_ops" / "labels.json", [])


def with_no_known_file(data: Path) -> None:
    write(data / "nccl_samples" / "README.md", "x")


def with_no_lines(data: Path) -> None:
    write(data / "gpu_node_logs" / "kernel_lines.jsonl", "")
    write(data / "gpu_node_logs" / "labels.json", [])


@pytest.mark.parametrize("sample", [without_labels, with_no_known_file, with_no_lines])
def test_a_data_set_in_which_nothing_is_judged_is_missed(tmp_path: Path, sample: Sample) -> None:
    sample(tmp_path)
    result = evaluate(tmp_path, "--json")
    assert result.exit_code == 1
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert rows[-1]["figure"] == "nothing evaluated"
    assert not any(row["met"] for row in rows)


def test_twin_one_case_is_enough_and_an_empty_part_is_neither_met_nor_missed(tmp_path: Path) -> None:
    row = {"line": "I/O error, dev sda, sector 4", "component": "disk", "kind": "", "code": None}
    write(tmp_path / "gpu_node_logs" / "kernel_lines.jsonl", json.dumps(row))
    write(tmp_path / "gpu_node_logs" / "labels.json", [])
    assert [(each.figure, each.met) for each in figures_of(tmp_path, "gpu_node_logs")] == [("1 of 1", True), ("0 of 0", None), ("1 of 1", True)]


def test_a_pickle_in_place_of_arrays_is_refused_in_our_own_words(tmp_path: Path) -> None:
    torn_archive(tmp_path)
    path = tmp_path / "straggler_ops" / "trace_X.npz"
    for content in (pickle.dumps({"step": [1]}), path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(DataSetError, match=r"no archive of arrays \(\.npz\)") as raised:
            list(figures_of(tmp_path, "straggler_ops"))
        assert "allow_pickle" not in str(raised.value)


def test_one_data_set_that_is_torn_leaves_the_others_evaluated(tmp_path: Path) -> None:
    job_with_a_missing_rank(tmp_path)
    torn_gzip(tmp_path)
    result = evaluate(tmp_path)
    assert result.exit_code == 1
    assert "job_1.csv.gz" in result.stderr
    assert "not evaluated" in result.stdout
    assert "1 of 1" in result.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "none of the folders"), (("--only", "flight_recorder"), "is missing"), (("--only", "nothing"), "no adapter of a data set 'nothing'"), (("--html", "/nowhere/e.html"), "--html /nowhere/e.html"),
    ],
)  # fmt: skip
def test_a_folder_without_data_sets_is_refused(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    result = evaluate(tmp_path, *words)
    assert result.exit_code == 1
    assert told in result.output


def test_without_a_folder_the_option_is_named() -> None:
    result = CliRunner().invoke(main, ["evaluate"])
    assert result.exit_code == 2
    assert "--data is missing" in result.output
